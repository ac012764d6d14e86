"""vLLM: the reason length of an answer with calls, also where it is not streamed."""

from __future__ import annotations

import ast

from glm53.stage.edits import Value
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["FINISH_REASON"]

_FILE = "entrypoints/openai/chat_completion/serving.py"
_WHOLE = "OpenAIServingChat.chat_completion_full_generator"


def _solved(tree: Tree) -> str | None:
    source = tree.source(_FILE)
    calls = source.calls(_WHOLE, "resolve_finish_reason")
    if calls:
        return f"{source.file}: line {calls[0].lineno} asks resolve_finish_reason"
    for node in ast.walk(source.scope(_WHOLE)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "is_finish_reason_tool_calls":
            return None
    return f"{source.file}: {_WHOLE} decides nothing itself"


FINISH_REASON = Topic(
    id="finish-reason",
    project=PROJECTS["vllm"],
    title="[Frontend] Keep the finish reason length of answers with tool calls that are not streamed",
    releases=">=0.31,<0.33",
    how="An answer that is not streamed gets the reason tool_calls where the engine ended it by itself, as a streamed "
    "one does. It is for a release of 0.31 or 0.32: the main branch has it since 0.33.",
    risks="A client that took tool_calls for an answer that was cut off gets length, as in a stream.",
    near=_FILE,
    solved=_solved,
    edits=(
        Value(
            file=_FILE,
            scope=_WHOLE,
            target="is_finish_reason_tool_calls",
            code='(output.finish_reason or "stop") == "stop" and ({value})',
        ),
    ),
    tests=(
        Place(
            "recipes/glm53/stage/tests/vllm/test_finish_reason.py",
            "tests/entrypoints/openai/chat_completion/test_finish_reason.py",
        ),
    ),
    evidence=(
        Evidence(
            "an answer that max_tokens cut off inside of its second call: length in a stream, tool_calls otherwise",
            "pytest tests/glm53/test_stage_stock.py",
        ),
    ),
    records=("dynamo_structural_tags:cut-calls-in-choices",),
    said=Said(
        "An answer that is not streamed and has a tool call gets the finish reason tool_calls even if a limit cut it "
        "off, so a client cannot tell a call that is complete from one that is not. A streamed answer gets length.",
        "https://github.com/vllm-project/vllm/issues/58228",
        "Whole answers with calls keep the engine's reason length, as since vLLM 0.33.",
    ),
)
