"""GLM-4.5, 4.6, 4.7 and 5.x: one element per call, strings as they are.

``<tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value>...</tool_call>``; GLM-4.5 and 4.6 have line ends between
the parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ebnf.rules import Rules, quote
from ..ebnf.tagged import PairFormat, TaggedArguments
from ..glm_format import CALL, CALL_END, KEY, KEY_END, THINK, THINK_END, VALUE, VALUE_END
from ..offer import Tool
from .family import Call, Family

__all__ = ["GLM", "GLM45", "GlmFamily"]


@dataclass(frozen=True, slots=True)
class GlmFamily(Family):
    """The format.

    gap: the text between its parts. value_markers: what no value may contain. arguments: writes the arguments.
    """

    gap: str = ""
    value_markers: tuple[str, ...] = (VALUE_END, VALUE)
    arguments: type[TaggedArguments] = TaggedArguments

    def call(self, rules: Rules, call: Call) -> str:
        keys = (KEY, KEY_END, VALUE, VALUE_END, CALL, CALL_END, THINK, THINK_END)
        form = PairFormat((KEY, KEY_END + self.gap), (VALUE, VALUE_END + self.gap), keys, self.value_markers)
        tool = Tool(call.name, call.parameters)

        def kinds(key: str | None) -> frozenset[str]:
            return (tool.allowed(key) if key is not None else tool.allowed_otherwise()).kinds()

        arguments = self.arguments(rules, form, call.shapes, call.strict, kinds).write()
        return f"{quote(call.name + self.gap)} {rules.add(f'{arguments} {rules.mark(CALL_END)}', alone=True)}"


_TEXT_MARKERS = (THINK, THINK_END, CALL_END, KEY, KEY_END, VALUE, VALUE_END)
GLM = GlmFamily("glm", "chat templates of GLM-4.7 and GLM-5", CALL, _TEXT_MARKERS)
GLM45 = GlmFamily("glm45", "chat templates of GLM-4.5 and GLM-4.6", CALL, _TEXT_MARKERS, gap="\n")
