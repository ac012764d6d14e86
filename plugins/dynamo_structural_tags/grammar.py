"""The structural tag of a request: what the model may write, exactly as the parser reads it back.

One grammar in xgrammar's EBNF holds the free text, the calls and the answer, so rules are shared among tools and
nothing depends on how xgrammar reads JSON Schema. Whatever a schema is, a tag comes out: a tool that does not fit
falls to its keys with their types, or to its name, like on the ladder of `ladder`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .ebnf.json_values import JsonValues
from .ebnf.markers import Markers, free_text
from .ebnf.rules import Rules, one_of, quote
from .ebnf.turn import Begin, turn
from .families import Call, Family, family_named
from .kept import Kept
from .ladder import ANY_OBJECT, Level, types_only
from .offer import Offer, Tool
from .schema import Message, Verdict, read_shapes, worst
from .schema.charsets import CharSet, charset

__all__ = ["REASONING", "Built", "BuiltTool", "build", "build_tag"]

_log = logging.getLogger(__name__)

#: Characters of one tool's rules; more, and the tool falls to a lower level.
MOST_CHARACTERS = 200_000

#: Kinds of objects with undeclared keys, each with its own set of letters that these begin with. Each set costs
#: the compiler about as much as all of a common tool, so beyond this number all objects share one set.
MOST_OPEN = 4

#: Where the grammar begins: behind the reasoning, which the engine waits for, or without any; or inside of it.
#: `ebnf.turn.begin_with` changes it in a tag that is made.
REASONING = ("engine", "tag", "open")

Check = Callable[[dict[str, Any]], Any]
"""Takes a tag, and raises whatever xgrammar raises for one that does not compile."""


@dataclass(frozen=True, slots=True)
class BuiltTool:
    """What the tag enforces of one tool: at which level, and what of its schema is relaxed."""

    name: str
    level: Level
    messages: tuple[Message, ...]
    falls: tuple[tuple[Level, str], ...] = ()

    @property
    def verdict(self) -> Verdict:
        """`exact` if every call that the tag allows is valid."""
        found = worst([message.verdict for message in self.messages])
        return Verdict.RELAXED if found is Verdict.EXACT and self.level is not Level.FULL else found


@dataclass(frozen=True, slots=True)
class Built:
    """A tag, and what it enforces of each tool that may be called."""

    tag: dict[str, Any]
    tools: tuple[BuiltTool, ...]


def build_tag(
    tools: Iterable[Any] | None,
    *,
    family: str = "glm",
    tool_choice: Any = "auto",
    parallel: bool = True,
    reasoning: str = "engine",
    response_format: Any = None,
    check: Check | None = None,
) -> dict[str, Any]:
    """The structural tag of a request, as a JSON-like dict of type ``structural_tag``.

    tools: OpenAI's (chat or responses) or Anthropic's; entries without a name are passed over.
    family: the tool format, see `families.FAMILIES`.
    tool_choice: "auto", "none", "required", a named tool, or ``allowed_tools``, as OpenAI or Anthropic write them.
    parallel: whether several calls may come; a named tool is called once.
    reasoning: "engine" if the grammar begins behind the reasoning or there is none, "tag" if the output begins in it,
        "open" if nobody knows.
    response_format: OpenAI's ``json_object`` or ``json_schema``: the answer where the model calls no tool.
    check: tries a tag with xgrammar. If it raises, the tools are tried one by one, and those that fail fall.

    Raises ValueError for a family or reasoning that does not exist, and for a forced call that no tool can be called
    with; never for a schema. Results are kept by content, but for those that a ``check`` had a part in: what it says
    may depend on more than the tag.
    """
    return build(
        tools,
        family=family,
        tool_choice=tool_choice,
        parallel=parallel,
        reasoning=reasoning,
        response_format=response_format,
        check=check,
    ).tag


_kept: Kept[Built] = Kept(256)
#: Tools by content, with their rules and their call: a list that differs in one tool costs no more than that one.
_tools: Kept[tuple[Rules, str, BuiltTool]] = Kept(4096)


def build(
    tools: Iterable[Any] | None,
    *,
    family: str = "glm",
    tool_choice: Any = "auto",
    parallel: bool = True,
    reasoning: str = "engine",
    response_format: Any = None,
    check: Check | None = None,
    until: float | None = None,
) -> Built:
    """`build_tag` with what is enforced of each tool. A kept result is shared: do not change it.

    until: tools that are not written by then, in seconds of `time.monotonic`, fall to their names.
    """
    if reasoning not in REASONING:
        raise ValueError(
            f"reasoning={reasoning!r}: nobody else can own the reasoning; allowed are {', '.join(REASONING)}: "
            f"'tag' if the output begins in the reasoning and the engine does not wait for its end"
        )
    form = family_named(family)
    wish = list(tools) if isinstance(tools, Iterable) and not isinstance(tools, str | bytes | dict) else []

    def fresh() -> Built:
        return _Builder(form, parallel, reasoning, response_format, check, until).build(Offer(wish, tool_choice))

    if check is not None or until is not None:
        return fresh()
    try:
        content = json.dumps([wish, family, tool_choice, parallel, reasoning, response_format])
        key = hashlib.sha256(content.encode()).hexdigest()
    except (TypeError, ValueError, RecursionError):
        return fresh()
    return _kept.get(key) or _kept.put(key, fresh())


class _Builder:
    def __init__(
        self,
        family: Family,
        parallel: bool,
        reasoning: str,
        response_format: Any,
        check: Check | None,
        until: float | None,
    ) -> None:
        self.family, self.parallel, self.reasoning, self.check = family, parallel, reasoning, check
        self.until = math.inf if until is None else until
        self.answer, self.answer_strict = _answer_schema(response_format)

    def build(self, offer: Offer) -> Built:
        """The tag for what a request offers."""
        offered = [tool for tool in offer.offered() if self._speakable(tool.name)]
        if offer.forced and not offered:
            raise ValueError(_nothing_to_call(offer, self.family))
        rules = Rules()
        written = [self._tool(rules, tool, ()) for tool in offered]
        if len(rules.first_letters) > MOST_OPEN:
            rules = Rules(taken=charset(span for letters in rules.first_letters for span in letters))
            written = [self._tool(rules, tool, ()) for tool in offered]
        tag = self._tag(rules, [call for call, _ in written], offer)
        if self.check is None or _passes(self.check, tag) is None:
            return Built(tag, tuple(made for _, made in written))
        rules = Rules(rules.taken)
        written = [self._checked(rules, tool, offer) for tool in offered]
        return Built(self._tag(rules, [call for call, _ in written], offer), tuple(made for _, made in written))

    def _speakable(self, name: str) -> bool:
        family = self.family
        barred = (family.trigger, *family.text_markers, *family.name_markers)
        good = name.strip() == name and not any(marker in name for marker in barred) and not _SURROGATE.search(name)
        good = good and family.speaks(name)
        if not good:
            _log.warning("tool=%r: its name cannot be written in a call of family %s: left out", name, self.family.name)
        return good

    def _checked(self, rules: Rules, tool: Tool, offer: Offer) -> tuple[str, BuiltTool]:
        """The tool at the tightest level that compiles alone."""
        falls: tuple[tuple[Level, str], ...] = ()
        for level in (Level.FULL, Level.TYPES):
            alone = Rules()
            call, made = self._tool(alone, tool, falls)
            reason = _passes(self.check, self._tag(alone, [call], offer)) if self.check else None
            if reason is None or made.level is Level.NAMES:
                break
            falls = (*made.falls, (max(level, made.level, key=_STEPS.index), reason))
            _log.warning("tool=%r: level %s does not compile: %s", tool.name, level, reason)
        return self._tool(rules, tool, falls)

    def _tool(self, rules: Rules, tool: Tool, falls: tuple[tuple[Level, str], ...]) -> tuple[str, BuiltTool]:
        """The tool's call below the levels that it fell from, and what it enforces."""
        try:
            content = json.dumps(tool.parameters)
        except (TypeError, ValueError, RecursionError):
            content = None
        key = (self.family, rules.taken, falls, tool.name, tool.strict, content)
        found = None if content is None else _tools.get(key)
        if found is None:
            found = self._written(rules.taken, tool, falls)
            if content is not None and not any(reason == _SPENT for _, reason in found[2].falls):
                _tools.put(key, found)
        own, call, made = found
        return rules.include(own, call), made

    def _written(
        self, taken: CharSet, tool: Tool, falls: tuple[tuple[Level, str], ...]
    ) -> tuple[Rules, str, BuiltTool]:
        parameters = {} if tool.parameters is None else tool.parameters
        gone = {level for level, _ in falls}
        for level in _STEPS:
            if level in gone:
                continue
            if level is not Level.NAMES and time.monotonic() > self.until:
                falls = (*falls, (level, _SPENT))
                continue
            rules = Rules(taken)
            shapes = read_shapes(_schema_at(level, parameters), strict=tool.strict, arguments=True)
            try:
                call = self.family.call(rules, Call(tool.name, shapes, tool.parameters, tool.strict))
            except (ValueError, RecursionError) as error:
                falls = (*falls, (level, str(error) or type(error).__name__))
                continue
            if rules.size > MOST_CHARACTERS and level is not Level.NAMES:
                falls = (*falls, (level, f"its rules are longer than {MOST_CHARACTERS} characters"))
                continue
            return rules, call, BuiltTool(tool.name, level, shapes.messages, falls)
        raise AssertionError("any object can be written")

    def _tag(self, rules: Rules, calls: list[str], offer: Offer) -> dict[str, Any]:
        trigger, markers = self.family.trigger, self.family.text_markers
        answer = self._answer(rules)
        alone = self.family.answer(rules)
        if alone is not None:
            root = self._alone(rules, calls, offer, answer or alone)
        elif calls:
            section, more = self.family.calls(rules, rules.add(one_of(calls)), self.parallel and not offer.named)
            section = rules.add(section)
            after = free_text(rules, markers, [(trigger, section)], loop=True) if more else '""'
            if offer.forced or answer:
                more_calls = after if not answer else self._further(rules, section, more)
                root = f"({quote(self.family.lead)})? {quote(trigger)} {section} {more_calls}"
                root = one_of([root, answer]) if answer and not offer.forced else root
            else:
                root = free_text(rules, markers, [(trigger, section)], loop=more)
        else:
            root = answer or free_text(rules, [trigger])
        begin = _BEGINS[self.reasoning]
        # Where calls come at the beginning or not at all, nobody looks for them in the reasoning.
        text = turn(rules, root, begin, (self.family.think, self.family.think_end), trigger if alone is None else None)
        return {"type": "structural_tag", "format": {"type": "grammar", "grammar": text}}

    def _alone(self, rules: Rules, calls: list[str], offer: Offer, answer: str) -> str:
        """Calls or an answer, where no text stands beside calls."""
        if not calls:
            return answer
        section, _ = self.family.calls(rules, rules.add(one_of(calls)), self.parallel and not offer.named)
        root = f"{quote(self.family.trigger)} {section}"
        return root if offer.forced else one_of([root, answer])

    def _further(self, rules: Rules, section: str, more: bool) -> str:
        """More calls where no free text may come between them."""
        return f'("\\n"? {quote(self.family.trigger)} {section})*' if more else '""'

    def _answer(self, rules: Rules) -> str | None:
        if self.answer is None:
            return None
        shapes = read_shapes(self.answer, strict=self.answer_strict)
        if not shapes.definitions.has_values(shapes.shape):
            shapes = read_shapes({})
        trigger = self.family.trigger
        marker = trigger[trigger.rfind(trigger[0]) :]  # as `Markers` wants it
        # One of a single character tells calls at the very beginning only.
        values = JsonValues(rules, Markers((marker,) * (len(marker) > 1)), shapes, self.answer_strict)
        return f'"\\n"? {values.value(shapes.shape)}'


def _nothing_to_call(offer: Offer, family: Family) -> str:
    """Why a forced call cannot be made."""
    wanted = f"the tool {offer.named!r}" if offer.named is not None else "a call"
    names = ", ".join(repr(name) for name in offer.tools)[:300]
    return (
        f"tool_choice asks for {wanted}, and no tool of the request can be called with it in family {family.name}: its "
        f"tools are {names or 'none'}. Name one of them, declare the tool, or send tool_choice 'auto'."
    )


_BEGINS = {"engine": Begin.ANSWER, "tag": Begin.THOUGHT, "open": Begin.ANYWHERE}
#: No text of a model holds one.
_SURROGATE = re.compile("[\ud800-\udfff]")

_SPENT = "the time for this request's tools is spent"
_STEPS = (Level.FULL, Level.TYPES, Level.NAMES)


def _schema_at(level: Level, parameters: Any) -> Any:
    if level is Level.FULL:
        return parameters
    return types_only(parameters) if level is Level.TYPES else ANY_OBJECT


def _passes(check: Check | None, tag: dict[str, Any]) -> str | None:
    """None if the check has nothing to say against the tag, else the reason."""
    try:
        if check is not None:
            check(tag)
    except Exception as error:  # xgrammar raises RuntimeError, ValueError and its own
        return " ".join(str(error).split())[-300:] or type(error).__name__
    return None


def _answer_schema(response_format: Any) -> tuple[Any, bool]:
    """The schema of the answer, None if it is free text, and whether it is strict."""
    if not isinstance(response_format, dict):
        return None, False
    match response_format.get("type"):
        case "json_object":
            return {"type": "object"}, False
        case "json_schema":
            inner = response_format.get("json_schema", response_format)
            inner = inner if isinstance(inner, dict) else {}
            return inner.get("schema", {}), inner.get("strict") is True
    return None, False
