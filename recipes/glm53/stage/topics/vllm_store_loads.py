"""vLLM: a request whose load from the Mooncake store failed is computed, not loaded again without end."""

from __future__ import annotations

import ast

from glm53.stage.edits import Insert
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["STORE_LOADS"]

_FILE = "distributed/kv_transfer/kv_connector/v1/mooncake/store/scheduler.py"
_CLASS = "MooncakeStoreScheduler"


def _solved(tree: Tree) -> str | None:
    source = tree.source(_FILE)
    for node in ast.walk(source.scope(_CLASS)):
        if isinstance(node, ast.Attribute) and any(word in node.attr for word in ("fail", "miss", "invalid")):
            return f"{source.file}: line {node.lineno} has {ast.unparse(node)}"
    return None


STORE_LOADS = Topic(
    id="store-loads",
    project=PROJECTS["vllm"],
    title="[KV Connector] Mooncake store: load a request once",
    releases=">=0.31,<0.34",
    how="The scheduler's side remembers for which requests it has asked for a load. If one of them comes back to be "
    "matched, its load has failed or it was preempted, and it is computed.",
    risks="A preempted request does not load its prefix from the store a second time; what is still in the GPU's "
    "prefix cache is found as before.",
    near=_FILE,
    solved=_solved,
    edits=(
        Insert(
            file=_FILE,
            anchor=f"{_CLASS}.__init__",
            where="last",
            code="""\
            # Requests that were told to load. One that is matched again has failed to.
            self._asked_to_load: set[str] = set()
            """,
        ),
        Insert(
            file=_FILE,
            anchor=f"{_CLASS}.get_num_new_matched_tokens",
            where="first",
            code="""\
            if request.request_id in self._asked_to_load:
                return 0, False
            """,
            blank=1,
        ),
        Insert(
            file=_FILE,
            anchor=f"{_CLASS}.update_state_after_alloc",
            where="first",
            code="""\
            if num_external_tokens > 0:
                self._asked_to_load.add(request.request_id)
            """,
            blank=1,
        ),
        Insert(
            file=_FILE,
            anchor=f"{_CLASS}.build_connector_meta",
            where="first",
            code="self._asked_to_load -= scheduler_output.finished_req_ids",
        ),
    ),
    tests=(
        Place(
            "recipes/glm53/stage/tests/vllm/test_store_loads.py",
            "tests/v1/kv_connector/unit/test_mooncake_store_loads.py",
        ),
    ),
    evidence=(
        Evidence(
            "a load that always fails was tried again without end: 143,295 gets in 60 s and no answer",
            "pytest tests/glm53/test_stage_stock.py",
        ),
    ),
    said=Said(
        "When a load from the Mooncake store fails, the request is matched against the store again; the same lookup "
        "hits and the same load fails, for as long as the object is there. The request never finishes.",
        "https://github.com/vllm-project/vllm/pull/55297",
        "A failed load is remembered until its request is computed.",
    ),
)
