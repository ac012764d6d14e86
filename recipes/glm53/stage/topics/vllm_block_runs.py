"""vLLM: free blocks handed out in runs of consecutive ids, so that a transfer needs fewer descriptors."""

from __future__ import annotations

from glm53.stage.edits import Call, Import, Insert
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["BLOCK_RUNS"]

_POOL = "v1/core/block_pool.py"
_MANAGER = "v1/core/single_type_kv_cache_manager.py"
_NIXL = "distributed/kv_transfer/kv_connector/v1/nixl/connector.py"
_CLASS = "SingleTypeKVCacheManager"


def _solved(tree: Tree) -> str | None:
    source = tree.source(_POOL)
    given = source.parameters("BlockPool.get_new_blocks")
    return f"{source.file}: get_new_blocks takes {', '.join(given[2:])}" if len(given) > 2 else None


BLOCK_RUNS = Topic(
    id="block-runs",
    project=PROJECTS["vllm"],
    title="[Core][KV Connector] Hand out free blocks in runs of consecutive ids",
    releases=">=0.31,<0.34",
    how="RunQueue takes the place of the free block queue when a NIXL deployment sets block_allocation to 'runs' in "
    "kv_connector_extra_config. Among the blocks that may go it takes those that lie side by side, and those that "
    "follow the request's last block first. Without eviction_window exactly the blocks are evicted that are evicted "
    "today, at the same moment.",
    risks="Off by default. Handing out costs a constant per run, not per block; the block pool's order among blocks "
    "without content changes, which means nothing to anybody but HiSparse, with which it is refused.",
    near=_POOL,
    solved=_solved,
    edits=(
        Call(
            file=_MANAGER,
            scope=f"{_CLASS}.allocate_new_blocks",
            call="self.block_pool.get_new_blocks",
            code="self._get_following_blocks(request_id, {arguments})",
            times=2,
        ),
        Insert(
            file=_MANAGER,
            anchor=f"{_CLASS}.allocate_new_blocks",
            where="after",
            code='''\
            def _get_following_blocks(
                self, request_id: str, num_blocks: int
            ) -> list[KVCacheBlock]:
                """New blocks that follow the request's last one where the queue can."""
                following = getattr(self.block_pool.free_block_queue, "following", None)
                blocks = self.req_to_blocks.get(request_id)
                if following is None or not blocks:
                    return self.block_pool.get_new_blocks(num_blocks)
                with following(blocks[-1].block_id):
                    return self.block_pool.get_new_blocks(num_blocks)
            ''',
            blank=1,
        ),
        Insert(
            file=_NIXL,
            anchor="NixlBaseConnector",
            where="last",
            code="""\
            def bind_kv_cache_manager(self, kv_cache_manager) -> None:
                super().bind_kv_cache_manager(kv_cache_manager)
                extra = self._vllm_config.kv_transfer_config.kv_connector_extra_config
                if (chosen := extra.get("block_allocation", "queue")) == "runs":
                    refuse_hisparse(self._vllm_config)
                    hand_out_runs(
                        kv_cache_manager.block_pool, int(extra.get("eviction_window", 0))
                    )
                elif chosen != "queue":
                    raise ValueError(
                        f"kv_connector_extra_config.block_allocation={chosen!r}: "
                        "it is 'queue' or 'runs'"
                    )
            """,
            blank=1,
        ),
        Import(file=_NIXL, code="from vllm.v1.core.run_queue import hand_out_runs, refuse_hisparse"),
    ),
    places=(
        Place("plugins/vllm_blhnc/free_runs.py", "{package}/v1/core/free_runs.py", "vllm.v1.core.free_runs"),
        Place("plugins/vllm_blhnc/allocation.py", "{package}/v1/core/run_queue.py", "vllm.v1.core.run_queue"),
    ),
    tests=(
        Place("tests/vllm_blhnc/test_free_runs.py", "tests/v1/core/test_free_runs.py"),
        Place("recipes/glm53/stage/tests/vllm/test_run_queue.py", "tests/v1/core/test_run_queue.py"),
    ),
    evidence=(
        Evidence(
            "see the tables of docs/blhnc.md, which this command prints",
            "python benchmarks/block_runs.py",
        ),
    ),
    why="vLLM asks its block pool for a number of blocks and does not say for whom, so a prompt that is prefilled in "
    "chunks gets a run of consecutive ids per chunk at best.",
    records=("vllm_blhnc:blocks-follow-the-request",),
    renamed={
        'blhnc.block_allocation="stock"': 'block_allocation="queue"',
        "blhnc.eviction_window": "eviction_window",
        "vllm.vllm_blhnc": "vllm.v1.core.run_queue",
        "vllm_blhnc: ": "",
    },
)
