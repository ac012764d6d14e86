"""vLLM: one descriptor a block where decode reads block-outermost rows."""

from __future__ import annotations

import ast

from glm53.stage.edits import Insert
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["WHOLE_ROWS"]

_NIXL = "distributed/kv_transfer/kv_connector/v1/nixl"
_BASE = f"{_NIXL}/base_worker.py"
_CLASS = "NixlBaseConnectorWorker"


def _solved(tree: Tree) -> str | None:
    source = tree.source(_BASE)
    for node in ast.walk(source.scope(f"{_CLASS}.__init__")):
        if isinstance(node, ast.Attribute) and node.attr == "_packed_member_layouts":
            return f"{source.file}: line {node.lineno} keeps the pages of its rows"
    return None


WHOLE_ROWS = Topic(
    id="whole-rows",
    project=PROJECTS["vllm"],
    title="[KV Connector] NIXL pull: register whole block rows, and compare them with the peer's",
    releases=">=0.31,<0.33",
    how="In a block-outermost layout a block's pages of all layers lie in one row. Pull workers of MLA models without "
    "pipeline stages register rows as push workers do, so a run of blocks is one descriptor. Rows that move as one "
    "unit must hold the same pages in the same places, so the handshake compares them and refuses the peer if not.",
    risks="A decode worker with this and a prefill worker without it, or with another layout or block size, do not "
    "transfer: the handshake says so. Padding at the end of a row, at most one alignment, is moved too.",
    near=_BASE,
    solved=_solved,
    edits=(
        Insert(
            file=f"{_NIXL}/pull_worker.py",
            anchor="NixlPullConnectorWorker.__init__",
            where="first",
            code="""\
            # Every rank and stage holds the rows whole: nothing of them has to be found by layer.
            self._supports_pp_hma = (
                vllm_config.model_config.use_mla
                and vllm_config.parallel_config.pipeline_parallel_size == 1
            )
            """,
        ),
        Insert(
            file=_BASE,
            anchor=f"{_CLASS}.register_kv_caches",
            where="last",
            code="self._packed_member_layouts = agent_metadata.packed_member_layouts",
        ),
        Insert(
            file=_BASE,
            anchor=f"{_CLASS}.add_remote_agent",
            where="first",
            code="""\
            mine = self._packed_member_layouts
            theirs = nixl_agent_meta.packed_member_layouts
            if mine and not self._transfer_layer_region_indices and mine != theirs:
                differing = sorted(
                    name
                    for name in mine.keys() | theirs.keys()
                    if mine.get(name) != theirs.get(name)
                )
                raise RuntimeError(
                    f"{nixl_agent_meta.engine_id}: its block rows differ from this worker's in "
                    f"{len(differing)} layers, such as {differing[0]}: {theirs.get(differing[0])} "
                    f"there and {mine.get(differing[0])} here (offset, bytes). Rows move as one "
                    "unit, so both sides need the same model, cache dtype, layout and block size."
                )
            """,
            blank=1,
        ),
    ),
    tests=(
        Place(
            "recipes/glm53/stage/tests/vllm/test_whole_rows.py", "tests/v1/kv_connector/unit/test_nixl_whole_rows.py"
        ),
    ),
    evidence=(
        Evidence(
            "200,000 tokens of GLM-5.3 in FP8, in runs of 10 blocks: 313 descriptors instead of 315,625",
            "pytest tests/vllm_blhnc/test_row_plan.py tests/vllm_blhnc/test_transfer_plan.py",
        ),
    ),
    said=Said(
        "Without this a pull worker registers every page of a row as a strided region of its own, so a block costs a "
        "descriptor for each cache of the model, 101 for GLM-5.3, although its pages lie side by side.",
        "https://github.com/vllm-project/vllm/issues/55434",
        "The base worker keeps and compares the pages of its rows, as since 0.33.",
    ),
)
