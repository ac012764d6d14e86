"""vLLM: tool parsers are told the tokens of an answer that is not streamed."""

from __future__ import annotations

import ast

from glm53.stage.edits import Insert
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["PARSER_TOKENS"]

_BASE = "tool_parsers/abstract_tool_parser.py"


def _solved(tree: Tree) -> str | None:
    source = tree.source(_BASE)
    for node in ast.walk(source.scope("ToolParser")):
        if isinstance(node, ast.FunctionDef) and node.name != "extract_tool_calls_streaming":
            told = [
                one for one in source.parameters(f"ToolParser.{node.name}") if "finish" in one or "token_ids" in one
            ]
            if told:
                return f"{source.file}: line {node.lineno}: {node.name} takes {told[0]}"
    return None


PARSER_TOKENS = Topic(
    id="parser-tokens",
    project=PROJECTS["vllm"],
    title="[Tool Parser] Tell tool parsers the tokens of a whole answer",
    releases=">=0.31,<0.34",
    how="DelegatingParser.parse() gives the tool parser the answer's tokens, which it has, before it asks for the "
    "calls. ToolParser.note_tokens() does nothing, so no parser must change; one that overrides it sees whether the "
    "engine ended the answer with a token of its own, as it can in a stream.",
    risks="None for parsers that do not override it. The finish reason itself would say more; it does not reach this "
    "place in any of these releases.",
    near=_BASE,
    solved=_solved,
    edits=(
        Insert(
            file=_BASE,
            anchor="ToolParser.extract_tool_calls",
            where="before",
            code='''\
            def note_tokens(self, token_ids: Sequence[int]) -> None:
                """The tokens of an answer that is not streamed, before its text is parsed.

                The last one tells whether the model ended the answer, or a limit did.
                """
                return
            ''',
            blank=1,
        ),
        Insert(
            file="parser/abstract_parser.py",
            anchor="DelegatingParser.parse",
            where="first",
            code="""\
            if self._tool_parser is not None:
                self._tool_parser.note_tokens(model_output_token_ids)
            """,
        ),
    ),
    tests=(Place("recipes/glm53/stage/tests/vllm/test_parser_tokens.py", "tests/parser/test_parser_tokens.py"),),
    evidence=(
        Evidence(
            "a call that a limit cut off and one whose last marker the model left out are the same text; with the "
            "tokens the one is reported as cut and the other is kept",
            "pytest tests/dynamo_structural_tags/test_vllm_parser_stock.py",
        ),
    ),
    why="A tool parser gets a whole answer as text alone, so it cannot tell an answer that was cut off inside a call "
    "from one whose last marker is missing.",
    records=("dynamo_structural_tags:tokens-for-the-parser",),
)
