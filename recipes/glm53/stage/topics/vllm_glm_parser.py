"""vLLM: a tool parser for GLM's calls that gives back what the model wrote."""

from __future__ import annotations

from glm53.stage.edits import Body, Cut, Entry, Value
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["GLM_PARSER"]

_HERE, _THERE = "plugins/dynamo_structural_tags", "tool_parsers/glm"
_PACKAGE = "vllm.tool_parsers.glm"
_READER = (
    *(
        "allowed",
        "call_reader",
        "events",
        "glm_format",
        "json_prefix",
        "offer",
        "parser",
        "stream",
        "tape",
        "turn_reader",
    ),
    *("type_names", "value_reader", "value_sink", "values"),
)
_CLASS = "GlmToolParser"


def _solved(tree: Tree) -> str | None:
    """vLLM's own parser of GLM looks at the schema of a value's tool with all its keywords."""
    source = tree.source("tool_parsers/glm47_moe_tool_parser.py")
    found = [name for name in ("resolve_refs", "allowed_types") if source.calls("", name)]
    return f"{source.file}: calls {found[0]}" if found else None


def _module(name: str) -> Place:
    return Place(f"{_HERE}/{name}.py", f"{{package}}/{_THERE}/{name}.py", f"{_PACKAGE}.{name}")


GLM_PARSER = Topic(
    id="glm-parser",
    project=PROJECTS["vllm"],
    title="[Tool Parser] GLM: read calls by the tools of the request, the same in streams and whole answers",
    releases=">=0.31,<0.34",
    how="--tool-call-parser glm is one reader for streamed and whole answers, linear in their length. It types values "
    "by the schemas of the request's tools, keeps their text where a type could be a string, leaves markers inside of "
    "values alone, and drops no call. glm45 and glm47 stay as they are. Dynamo's Python frontend takes vLLM's parsers "
    "by their names, this one, too. What a parser cannot do by itself, as vLLM divides an answer and gives its reason "
    "before and after it, is in changes of their own: reasoning-end, parser-tokens and finish-reason.",
    risks="A new name, so nobody gets it who does not ask for it. It does not make the structural tag of a request: "
    "vLLM's own for glm_4_7 goes with it.",
    near="tool_parsers/glm47_moe_tool_parser.py",
    solved=_solved,
    edits=(
        Entry(
            file="tool_parsers/__init__.py",
            target="_TOOL_PARSERS_TO_REGISTER",
            key="glm",
            code=f"""(
        "glm_tool_parser",
        "{_CLASS}",
    )""",
        ),
    ),
    places=(
        Place(f"{_HERE}/frontend/__init__.py", f"{{package}}/{_THERE}/__init__.py", f"{_PACKAGE}"),
        *map(_module, _READER),
        Place(
            f"{_HERE}/vllm_deltas.py",
            f"{{package}}/{_THERE}/deltas.py",
            f"{_PACKAGE}.deltas",
            without=("NOTES_FIELD", "note_fields", "join"),
            edits=(Cut(file="", scope="delta_of", call="metrics.streamed"),),
        ),
        Place(
            f"{_HERE}/vllm_request.py",
            f"{{package}}/{_THERE}/request.py",
            f"{_PACKAGE}.request",
            only=("tools_of", "_tool", "choice_of"),
        ),
        Place(
            f"{_HERE}/vllm_parser.py",
            "{package}/tool_parsers/glm_tool_parser.py",
            "vllm.tool_parsers.glm_tool_parser",
            only=("_TAIL", _CLASS),
            without=tuple(f"{_CLASS}.{name}" for name in ("split_reasoning", "divided", "joined", "_relaxed_names")),
            edits=(
                Value(file="", scope=_CLASS, target="structural_tag_model", code='"glm_4_7"'),
                Body(
                    file="",
                    scope=f"{_CLASS}.__init__",
                    code="""\
                    super().__init__(tokenizer, tools)
                    self._stream: GlmStream | None = None
                    self._request: Any = None
                    self._tail: deque[int] = deque(maxlen=_TAIL)
                    """,
                ),
                Body(
                    file="",
                    scope=f"{_CLASS}.adjust_request",
                    code="""\
                    request.skip_special_tokens = False
                    return request
                    """,
                ),
                Body(
                    file="",
                    scope=f"{_CLASS}._open",
                    code="""\
                    self._request = request
                    return GlmStream(tools_of(request), choice_of(request), thinking=False)
                    """,
                ),
                Body(file="", scope=f"{_CLASS}._counted", code="return events"),
            ),
        ),
    ),
    tests=(Place("recipes/glm53/stage/tests/vllm/test_glm_parser.py", "tests/tool_parsers/test_glm_tool_parser.py"),),
    evidence=(
        Evidence(
            "raw outputs of the model with the right result of each, whole and cut at every place",
            "pytest tests/dynamo_structural_tags/test_parser_outputs.py",
        ),
        Evidence(
            "outputs that released parsers get wrong, by kind of defect, each with the value that is right",
            "pytest tests/dynamo_structural_tags/test_parser_defects.py",
        ),
    ),
    said=Said(
        "glm45 and glm47 type a value by the first type that its schema names and else by what it looks like, so a "
        "string that looks like a number, or text with a marker in it, reaches the tool as something else; streams and "
        "whole answers differ, and calls of tools that were not offered are dropped or passed on.",
        "https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/tool_parsers/glm47_moe_tool_parser.py",
        "vLLM's own GLM parser gives back every value that the request's schemas allow.",
    ),
    renamed={
        "Dynamo's frontend with this plugin's chat engine: ``python -m dynamo_structural_tags.frontend <stock "
        "arguments>``.": "GLM's tool calls: from text to values, by the tools of the request.",
        "The tool parser ``glm47_safe`` of ``vllm serve``: this plugin's reader behind vLLM's interface.": "The tool "
        "parser ``glm``: its reader behind vLLM's interface.",
        "is not dropped; what is unusual about an output is told in the field\n`tool_call_notes` of the message and of "
        "the streamed deltas.": "is not dropped.",
        "to the text, and put a tag into the request that this parser reads back.": "to the text.",
        "as this plugin's functions take them": "as the reader takes them",
        "    # vLLM's own tag, except where `with_tag` makes a better one.\n": "",
    },
)
