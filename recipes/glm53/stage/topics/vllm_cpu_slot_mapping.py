"""vLLM 0.32: the slot mapping of the CPU takes what the kernel takes for which it stands."""

from __future__ import annotations

from glm53.stage.edits import Body
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["CPU_SLOT_MAPPING"]

_FILE = "utils/cpu_triton_utils.py"
_FUNCTION = "_compute_slot_mapping_kernel_impl"


def _solved(tree: Tree) -> str | None:
    source = tree.source(_FILE)
    return None if "block_size" in source.parameters(_FUNCTION) else f"{source.file}: {_FUNCTION}"


CPU_SLOT_MAPPING = Topic(
    id="cpu-slot-mapping",
    project=PROJECTS["vllm"],
    title="[CPU] Slot mapping: take the parameters of the kernel",
    releases=">=0.32,<0.33",
    how="The function has the kernel's parameters, so that they arrive by their names. It is for a release of 0.32: "
    "the main branch has it since 0.33.",
    risks="None: as it is, no model runs on the CPU without Triton.",
    near=_FILE,
    solved=_solved,
    edits=(
        Body(
            file=_FILE,
            scope=_FUNCTION,
            parameters=(
                "num_tokens: int",
                "max_num_tokens: int",
                "query_start_loc_ptr: torch.Tensor",
                "positions_ptr: torch.Tensor",
                "block_table_ptr: torch.Tensor",
                "block_table_stride: int",
                "slot_mapping_ptr: torch.Tensor",
                "KV_CACHE_BLOCK_SIZE: int",
                "TOTAL_CP_WORLD_SIZE: int",
                "TOTAL_CP_RANK: int",
                "CP_KV_CACHE_INTERLEAVE_SIZE: int",
                "PAD_ID: int",
                "BLOCK_SIZE: int",
            ),
            code="""\
            if TOTAL_CP_WORLD_SIZE != 1:
                raise NotImplementedError(
                    "Context parallelism is not supported on the CPU "
                    f"(got {TOTAL_CP_WORLD_SIZE} ranks)"
                )
            compute = torch.ops._C.compute_slot_mapping_kernel_impl
            compute(
                query_start_loc_ptr,
                positions_ptr,
                block_table_ptr,
                slot_mapping_ptr,
                KV_CACHE_BLOCK_SIZE,
            )
            """,
        ),
    ),
    tests=(
        Place("recipes/glm53/stage/tests/vllm/test_cpu_slot_mapping.py", "tests/v1/worker/test_cpu_slot_mapping.py"),
    ),
    evidence=(
        Evidence(
            "the kernel of 0.32 dropped a parameter, its stand-in kept it, and every argument behind it arrives one "
            "place off: of 51 tests of sparse MLA on the CPU the 33 that run a model ended with its first step",
            "pytest tests/glm53/test_stage_stock.py",
        ),
    ),
    records=("vllm_cpu_dsa:cpu-slot-mapping",),
    said=Said(
        "The kernel of vLLM 0.32 that computes slots dropped a parameter, but its CPU stand-in kept it. Every argument "
        "behind it arrives one place off, and any model on the CPU ends at its first step.",
        "https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/utils/cpu_triton_utils.py",
        "vLLM 0.32 is no longer supported; 0.33.0 has the stand-in corrected.",
    ),
)
