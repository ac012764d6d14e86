"""vLLM: a KV connector makes an idle engine look for work."""

from __future__ import annotations

import ast

from glm53.stage.edits import Insert
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["CONNECTOR_WAKEUP"]

_CORE = "v1/engine/core.py"
_CONNECTORS = "distributed/kv_transfer/kv_connector/v1"
_BASE = f"{_CONNECTORS}/base.py"


def _solved(tree: Tree) -> str | None:
    source = tree.source(_BASE)
    for node in ast.walk(source.scope("KVConnectorBase_V1")):
        if isinstance(node, ast.FunctionDef) and "wake" in node.name:
            return f"{source.file}: line {node.lineno} has {node.name}"
    return None


CONNECTOR_WAKEUP = Topic(
    id="connector-wakeup",
    project=PROJECTS["vllm"],
    title="[KV Connector] Let a connector wake an idle engine",
    releases=">=0.31,<0.34",
    how="The engine hands its connector a function, bind_wakeup(), that any of the connector's threads may call. It "
    "puts the engine's own wake-up message into the queue for which an idle engine waits; the engine then asks, as "
    "before, whether there is work, steps if the connector has some, and publishes its events at the end of the step. "
    "MultiConnector hands the function on. A connector that does not override the method notices nothing.",
    risks="A connector that calls it without having work costs a turn of the engine's loop, and no step. With "
    "vllm.LLM, which steps its engine itself, nothing is bound.",
    near=_CORE,
    solved=_solved,
    edits=(
        Insert(
            file=_BASE,
            anchor="KVConnectorBase_V1.has_pending_push_work",
            where="after",
            code='''\
            def bind_wakeup(self, wakeup: Callable[[], None]) -> None:
                """Take a function that makes an idle engine look for work.

                It may be called from any thread. The engine steps if
                has_pending_push_work() is true then, and publishes what
                take_events() returns. Called once on the scheduler's side, where
                the engine has a loop of its own.

                Args:
                    wakeup: puts a message into the engine's queue, and returns.

                """
                return
            ''',
            blank=1,
        ),
        Insert(
            file=f"{_CONNECTORS}/multi_connector.py",
            anchor="MultiConnector.has_pending_push_work",
            where="after",
            code="""\
            def bind_wakeup(self, wakeup) -> None:
                for connector in self._connectors:
                    connector.bind_wakeup(wakeup)
            """,
            blank=1,
        ),
        Insert(file=_CORE, anchor="EngineCoreProc.__init__", where="last", code="self._bind_wakeup()", blank=1),
        Insert(
            file=_CORE,
            anchor="EngineCoreProc._process_input_queue",
            where="before",
            code='''\
            def _bind_wakeup(self) -> None:
                """Let the connector's threads end this engine's wait for its queue."""

                def wakeup() -> None:
                    self.input_queue.put_nowait((EngineCoreRequestType.WAKEUP, None))

                if (connector := self.scheduler.get_kv_connector()) is not None:
                    connector.bind_wakeup(wakeup)
            ''',
            blank=1,
        ),
    ),
    tests=(
        Place(
            "recipes/glm53/stage/tests/vllm/test_connector_wakeup.py",
            "tests/v1/kv_connector/unit/test_connector_wakeup.py",
        ),
    ),
    evidence=(
        Evidence(
            "Dynamo's router stops sending requests after blocks that a store has evicted while its engine is idle; "
            "without a step it goes on until the engine has another request",
            "pytest tests/stack/test_tier_router_stock.py",
        ),
    ),
    records=("mooncake_tier:removals-wake-the-engine",),
    said=Said(
        "vLLM publishes KV events at the end of a step, and a connector has no means to ask an idle engine for one. So "
        "a router sends requests after blocks that a store behind the connector has evicted, until the engine gets a "
        "request anyway.",
        "https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/v1/engine/core.py",
        "A connector can ask vLLM for a step.",
    ),
)
