"""vLLM: the medium of the Mooncake store's events."""

from __future__ import annotations

import ast

from glm53.stage.edits import Argument, Import
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["STORE_EVENTS"]

_FILE = "distributed/kv_transfer/kv_connector/v1/mooncake/store/worker.py"


def _solved(tree: Tree) -> str | None:
    source = tree.source(_FILE)
    for call in source.calls("", "BlockStored"):
        for keyword in call.keywords:
            if keyword.arg == "medium" and ast.unparse(keyword.value) != "'cpu'":
                return f"{source.file}: line {keyword.value.lineno} passes {ast.unparse(keyword.value)}"
    return None


STORE_EVENTS = Topic(
    id="store-events",
    project=PROJECTS["vllm"],
    title="[KV Connector] Mooncake store: name the medium as other events do",
    releases=">=0.31,<0.34",
    how="The store's BlockStored events take the constant that the CPU offload's events take.",
    risks="A consumer that looks for the lower-case text must look for the constant.",
    near=_FILE,
    solved=_solved,
    edits=(
        Argument(file=_FILE, scope="", call="BlockStored", name="medium", code="MEDIUM_CPU"),
        Import(file=_FILE, code="from vllm.distributed.kv_events import MEDIUM_CPU"),
    ),
    tests=(
        Place(
            "recipes/glm53/stage/tests/vllm/test_store_events.py",
            "tests/v1/kv_connector/unit/test_mooncake_store_medium.py",
        ),
    ),
    evidence=(
        Evidence(
            "Dynamo 1.6.1's router knows 'CPU' and drops events with the medium 'cpu'",
            "pytest tests/glm53/test_stage_stock.py",
        ),
    ),
    said=Said(
        "The Mooncake store connector publishes its blocks with the medium 'cpu', every other publisher with "
        "MEDIUM_CPU, 'CPU'. Routers compare the text, so they do not see the store's blocks.",
        "https://github.com/ai-dynamo/dynamo/issues/14842",
        "The store connector's events have a medium that kv_events names.",
    ),
)
