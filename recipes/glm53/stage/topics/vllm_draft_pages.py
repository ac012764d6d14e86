"""vLLM: pages of a GQA draft model that lie in block rows, moved once."""

from __future__ import annotations

import ast

from glm53.stage.edits import Argument, Import, Insert, Value
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["DRAFT_PAGES"]

_NIXL = "distributed/kv_transfer/kv_connector/v1/nixl"
_MODULE = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.draft_pages"
_BASE = f"{_NIXL}/base_worker.py"
_REGISTER = "NixlBaseConnectorWorker.register_kv_caches"
_UNTIL_032, _SINCE_033 = "<0.33", ">=0.33"


def _solved(tree: Tree) -> str | None:
    source = tree.source(_BASE)
    for node in ast.walk(source.scope(_REGISTER)):
        if isinstance(node, ast.Name) and "draft" in node.id and "row" in node.id:
            return f"{source.file}: line {node.lineno} has {node.id}"
    return None


def _apart(rows: str, releases: str) -> Insert:
    """rows: whether this release registers rows whole."""
    return Insert(
        file=_BASE,
        anchor=_REGISTER,
        where="first",
        releases=releases,
        code=f"""\
        all_caches, self._draft_pages = kv_caches, dict[str, tuple[int, int]]()
        if (
            self.use_mla
            and self.pp_size == 1
            and {rows}
            and not self.use_host_buffer
            and max(self.dcp_size, self.pcp_size) == 1
            and self._physical_blocks_per_logical_kv_block == 1
            and len(self.kv_cache_config.transfer_groups) == 1
            and _share_storage_and_block_stride(list(kv_caches.values()))
        ):
            # The rows are registered whole, and hold a GQA draft model's pages, too.
            specs = {{k: v for k, v in self._layer_specs.items() if k in kv_caches}}
            base = next(iter(kv_caches.values())).untyped_storage().data_ptr()
            drafts = head_sharded(specs)
            self._draft_pages = places(kv_caches, specs, drafts, base)
            kv_caches = {{k: v for k, v in kv_caches.items() if k not in drafts}}
        """,
        blank=1,
    )


DRAFT_PAGES = Topic(
    id="draft-pages",
    project=PROJECTS["vllm"],
    title="[KV Connector] NIXL: move the pages of a draft model with the rows that hold them",
    releases=">=0.31,<0.34",
    how="Where an MLA model's block rows are registered whole, the pages of a GQA draft model inside of them are not "
    "registered a second time. The handshake tells where they lie, and refuses a peer of another tensor-parallel size, "
    "whose rows hold other heads.",
    risks="Rows with draft pages need the same tensor-parallel size on both sides, which is refused by name if not. "
    "On 0.31 and 0.32 pull workers register no rows, so there the change concerns push, and pull with `whole-rows`.",
    near=_BASE,
    solved=_solved,
    edits=(
        _apart("self._tracks_region_layers()", _UNTIL_032),
        _apart("self._has_packed_cache\n            and not self._has_mamba", _SINCE_033),
        Insert(file=_BASE, anchor=_REGISTER, where="last", code="self.device_kv_caches = all_caches"),
        Argument(
            file=_BASE,
            scope=_REGISTER,
            call="NixlAgentMetadata",
            name="packed_member_layouts",
            code="{value} | self._draft_pages",
            releases=_UNTIL_032,
        ),
        Value(
            file=_BASE,
            scope=_REGISTER,
            target="self._packed_member_layouts",
            code="{value} | self._draft_pages",
            releases=_SINCE_033,
        ),
        Insert(
            file=_BASE,
            anchor="NixlBaseConnectorWorker.add_remote_agent",
            where="first",
            code="""\
            if self._draft_pages and remote_tp_size != self.transfer_tp_size:
                raise RuntimeError(
                    f"{nixl_agent_meta.engine_id}: tensor-parallel size {remote_tp_size} there and "
                    f"{self.transfer_tp_size} here, but the block rows hold pages of a draft model, "
                    "whose heads are split over ranks. Use the same size on both sides."
                )
            """,
            blank=1,
        ),
        Import(file=_BASE, code=f"from {_MODULE} import (\n    head_sharded,\n    places,\n)"),
    ),
    places=(Place("plugins/vllm_blhnc/draft_pages.py", f"{{package}}/{_NIXL}/draft_pages.py", _MODULE),),
    tests=(
        Place(
            "recipes/glm53/stage/tests/vllm/test_draft_pages.py", "tests/v1/kv_connector/unit/test_nixl_draft_pages.py"
        ),
    ),
    evidence=(
        Evidence(
            "8 blocks in 3 runs with 2 draft layers: 3 descriptors instead of 19, and 65,536 bytes a block less",
            "pytest tests/vllm_blhnc/test_draft_rows_stock.py",
        ),
    ),
    said=Said(
        "An EAGLE or DFlash draft model with GQA layers has its pages in the same block rows as the MLA model. Each of "
        "them is registered as a region beside the rows, so its bytes are sent twice, and each page is a descriptor.",
        "https://github.com/vllm-project/vllm/issues/55434",
        "The NIXL worker registers no page that lies in a row which it registers whole.",
    ),
)
