"""Sizes and launch shapes: numbers in, numbers out, standard library only."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "INDEXER_ROW_BYTES",
    "PREFILL_WORKSPACE_BYTES",
    "ROW_BYTES",
    "STAGE_KEYS",
    "launch_cost",
    "legal_cluster_sizes",
    "plan_clusters",
    "plan_splits",
    "row_bytes",
    "token_bytes",
]

STAGE_KEYS = 32
"""Keys per pipeline stage."""
STAGES = (3, 32)
"""Fewest and most stages of a CTA in the stock op: its ring of slots, and its table of 1024 indices."""
OVERHEAD_STAGES = 3
"""What filling the pipeline and merging within a launch is taken to cost."""
MERGE_STAGES = 4
"""What launching the merge kernel and passing partial results through memory is taken to cost."""
MAX_SPLITS = 16
SPLIT_STAGES = 3
"""Fewest stages of a split."""
CLUSTER_SIZES = range(1, 9)
"""8 CTAs is the largest cluster that every device launches without an opt-in."""

ROW_BYTES: dict[str, int] = {
    "bfloat16": 1152,
    "float16": 1152,
    "fp8": 576,
    "fp8_e4m3": 576,
    "fp8_ds_mla": 656,
    "nvfp4_ds_mla": 352,
}
"""Bytes of a token in one layer's MLA cache by ``--kv-cache-dtype``: 576 elements of a plain type; 512 FP8 codes, four
float32 scales and 64 bfloat16 values; `flashinfer_nvfp4.rowformat`."""
PREFILL_WORKSPACE_BYTES = 144 << 20
"""What prefill may use beside the cache: a twentieth of 5 x 1,048,576 rows of 576 bytes, the workspace that the fork of
vLLM in which these rows came up keeps at GLM-5.3's longest context."""
INDEXER_ROW_BYTES = 132
"""Bytes of a token in one indexer cache: 128 FP8 codes and a float32 scale."""


def legal_cluster_sizes(topk: int, capacity: Mapping[int, int], stages: tuple[int, int] = STAGES) -> list[int]:
    """The sizes in ``capacity`` that the device can run and that give every CTA its stages, largest first.

    The stages are dealt out as evenly as they go. ``stages``: fewest and most of a CTA; the default is the stock op's.
    """
    total, (fewest, most) = topk // STAGE_KEYS, stages
    return sorted(
        (
            size
            for size, at_once in capacity.items()
            if at_once > 0 and total // size >= fewest and -(-total // size) <= most
        ),
        reverse=True,
    )


def launch_cost(num_tokens: int, topk: int, size: int, at_once: int) -> int:
    """Cost, in stages, of ``num_tokens`` clusters of ``size`` CTAs of which the device runs ``at_once``.

    A decode launch gives each query token one cluster of C thread blocks (CTAs), which share its top-k keys in stages
    of 32. A GPU runs only so many clusters of a size at once; the rest waits for the next *wave*. So a launch of T
    tokens costs, in units of one stage::

        waves = ceil(T / capacity[C])        cost = waves * (ceil(topk / 32 / C) + 3)

    where 3 stages stand for filling the pipeline and merging the cluster's partial results. Model and constant are
    those of the fork of FlashInfer in which ``nvfp4_sparse_mla_decode`` was developed (stu-cao/flashinfer, 0f08cb73),
    which plans so on a B300 for a top-k of 2048. FlashInfer 0.7.4 itself takes the largest C whose T clusters fit into
    one wave, and the smallest C when none does. Its published times on a GB300 are 26.7 us for 45 tokens (C = 3, one
    wave) and 50.5 us for 47 (C = 3, two waves), for which the model has 25 and 50; for C = 5 it has 32.
    """
    waves = -(-num_tokens // at_once)
    return waves * (-(-topk // STAGE_KEYS // size) + OVERHEAD_STAGES)


def plan_clusters(num_tokens: int, topk: int, capacity: Mapping[int, int], stages: tuple[int, int] = STAGES) -> int:
    """CTAs per token for a launch of ``num_tokens`` tokens with ``topk`` keys each.

    ``capacity``: clusters that run at once, by size, for the sizes that the kernel has (the stock op: 3 to 8), as
    ``cudaOccupancyMaxActiveClusters`` tells. The size of least `launch_cost` is taken, which by that model is never
    worse than FlashInfer's; the gain is largest where a wave would run nearly empty. Among sizes of equal cost the one
    with fewer waves is taken, then the larger. No token is planned as one token. Raises ValueError for a size outside
    1..8, a ``topk`` that is no positive multiple of 32, a negative ``num_tokens``, and where no size is legal.
    """
    if num_tokens < 0:
        raise ValueError(f"num_tokens={num_tokens} cannot be launched; allowed: 0 and more. Pass the batch's tokens.")
    if topk <= 0 or topk % STAGE_KEYS:
        raise ValueError(
            f"topk={topk} does not fill stages of {STAGE_KEYS} keys; allowed: positive multiples of {STAGE_KEYS}. "
            "Pad the index rows with -1."
        )
    if bad := [size for size in capacity if size not in CLUSTER_SIZES]:
        raise ValueError(
            f"capacity has cluster sizes {bad}, which no kernel can launch; allowed: 1 to 8. Leave them out."
        )
    sizes = legal_cluster_sizes(topk, capacity, stages)
    if not sizes:
        raise ValueError(
            f"topk={topk} with capacity={dict(capacity)} leaves no cluster size; allowed: sizes that run at once at "
            f"all and give each CTA {stages[0]} to {stages[1]} stages of {STAGE_KEYS} keys. Use another kernel."
        )
    tokens = max(num_tokens, 1)
    return min(sizes, key=lambda c: (launch_cost(tokens, topk, c, capacity[c]), -(-tokens // capacity[c]), -c))


def plan_splits(programs: int, topk: int, at_once: int) -> int:
    """Programs among which the Triton decode kernel divides a token's ``topk`` keys.

    ``programs``: of a launch without splits, tokens times tiles of heads; ``at_once``: how many a device runs at once.
    The cost, in stages of 32 keys, is that of the waves in which the programs run, each as long as the stages of one
    program and `OVERHEAD_STAGES`, plus `MERGE_STAGES` where a second kernel has to merge; it was not measured. Splits
    are at most `MAX_SPLITS` and no smaller than `SPLIT_STAGES`; of equal costs the fewest win. Raises ValueError for
    numbers that are no launch.
    """
    if programs < 0 or at_once < 1 or topk <= 0 or topk % STAGE_KEYS:
        raise ValueError(
            f"programs={programs}, topk={topk}, at_once={at_once} is no launch; allowed: 0 programs and more, positive "
            f"multiples of {STAGE_KEYS} keys, and at least 1 program at once. Pad the index rows with -1."
        )
    stages = topk // STAGE_KEYS

    def cost(splits: int) -> int:
        waves = -(-max(programs, 1) * splits // at_once)
        return waves * (-(-stages // splits) + OVERHEAD_STAGES) + (MERGE_STAGES if splits > 1 else 0)

    return min(range(1, max(1, min(MAX_SPLITS, stages // SPLIT_STAGES)) + 1), key=cost)


def row_bytes(cache_dtype: str) -> int:
    """Bytes of a token in one layer's MLA cache; raises ValueError for a dtype without a fixed size."""
    if cache_dtype not in ROW_BYTES:
        raise ValueError(
            f"cache_dtype={cache_dtype!r} has no known MLA row; allowed: {', '.join(ROW_BYTES)}. "
            "Name the dtype that 'auto' stands for."
        )
    return ROW_BYTES[cache_dtype]


def token_bytes(cache_dtype: str, mla_layers: int, indexer_layers: int) -> int:
    """Bytes of a token in all caches, without what a layout pads.

    GLM-5.3 has 79 MLA layers (78 and MTP) and 22 indexers (21 and MTP). Raises ValueError for a negative count and
    for more indexers than layers.
    """
    if not 0 <= indexer_layers <= mla_layers:
        raise ValueError(
            f"mla_layers={mla_layers} with indexer_layers={indexer_layers} is no model; allowed: no negative "
            "number and an indexer at most in every MLA layer. Count the layers again, MTP included."
        )
    return mla_layers * row_bytes(cache_dtype) + indexer_layers * INDEXER_ROW_BYTES
