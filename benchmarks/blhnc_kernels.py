"""What block rows cost the decode kernels: time over all layers of GLM-5.3 on BLHNC against LBNHC, on a GPU.

Under BLHNC the pages of one layer are 3.1 MB apart, and a page that TRTLLM-gen addresses is the greatest common divisor
of the row's stride and 64 rows: 32 with vLLM's alignment, 64 with `--align-rows 64`. Measured is one pass over the 79
MLA caches or the 22 indexer caches, as a decode step makes it, on the same contents and the same blocks:

- `attention`: FlashInfer's TRTLLM-gen kernel for sparse MLA in fp8 (Blackwell), 2,048 selected tokens a request;
- `indexer`: DeepGEMM's paged scores in fp8, through vLLM, over the whole context;
- `gather`: torch reading the selected rows, on any device. It has no page size and shows the memory side alone.

Layouts take turns; ratios are within a turn; results of both layouts must be equal to the last bit but for attention,
whose order of sums the page size may change. A kernel that this device or installation lacks is left out by name.

Usage: ``python benchmarks/blhnc_kernels.py [--requests 16] [--context 65536] [--align-rows 32] [--json]``. On a GPU
times are CUDA events'; without one it says so and ends with code 0, unless `--device cpu` is given, which only `gather`
can follow and which tests the program, not the layout.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm_blhnc.plan import block_row

BLOCK, WIDTH, INDEX = 64, 576, 132  # tokens; bytes a token in an fp8 MLA and in an indexer cache
MLA, INDEXERS, HEADS, INDEX_HEADS = 79, 22, 64, 32
PAGES = {f"indexer.{i}": BLOCK * INDEX for i in range(INDEXERS)} | {f"mla.{i}": BLOCK * WIDTH for i in range(MLA)}


class Unavailable(Exception):
    """Why a kernel cannot run here."""


@dataclass
class Caches:
    """mla, indexer: one uint8 tensor [blocks, 64, 576 or 132] a layer; blocks as far apart as the layout says."""

    layout: str
    mla: list[Any]
    indexer: list[Any]


@dataclass
class Work:
    """A decode step: requests, their block tables [requests, blocks] and selected tokens [requests, 2048]."""

    device: str
    requests: int
    context: int
    tables: Any
    selected: Any

    def rows(self, cache: Any) -> Any:
        """Physical rows [requests, selected] of the selected tokens, counted from the layer's first row."""
        blocks = self.tables.gather(1, self.selected // BLOCK)
        return (blocks * (cache.stride(0) // cache.shape[2]) + self.selected % BLOCK).int()


def caches(layout: str, blocks: int, align_rows: int, device: str) -> Caches:
    """All caches of a layout in one allocation, empty."""
    import torch

    row = block_row(PAGES, [align_rows * WIDTH]).nbytes if layout == "BLHNC" else sum(PAGES.values())
    memory = torch.zeros(blocks * row, dtype=torch.uint8, device=device)
    views: dict[str, list[Any]] = {"mla": [], "indexer": []}
    start = 0
    for name, page in PAGES.items():
        width = page // BLOCK
        stride, first = (row, start) if layout == "BLHNC" else (page, start * blocks)
        views[name.partition(".")[0]].append(memory.as_strided((blocks, BLOCK, width), (stride, width, 1), first))
        start += page
    return Caches(layout, views["mla"], views["indexer"])


def fill(layouts: list[Caches], device: str) -> None:
    """The same contents in every layout: bytes that are small positive numbers as fp8, scales and exponents."""
    import torch

    generator = torch.Generator(device=device).manual_seed(0)
    for views in zip(*((*each.indexer, *each.mla) for each in layouts), strict=True):
        values = torch.randint(0x20, 0x40, views[0].shape, dtype=torch.uint8, device=device, generator=generator)
        for view in views:
            view.copy_(values)


def gather(found: Caches, work: Work) -> Callable[[], list[Any]]:
    """Read the selected rows of every MLA cache."""
    import torch

    rows = [work.rows(cache).flatten() for cache in found.mla]
    flat = [_flat(cache) for cache in found.mla]
    return lambda: [torch.index_select(view, 0, index) for view, index in zip(flat, rows, strict=True)]


def _flat(cache: Any) -> Any:
    """All rows [rows, width] from a layer's first one on; those of other layers lie between blocks."""
    blocks, block, width = cache.shape
    count = (blocks - 1) * (cache.stride(0) // width) + block
    return cache.as_strided((count, width), (width, 1))


def attention(found: Caches, work: Work) -> Callable[[], list[Any]]:
    """Sparse MLA over the selected rows of every MLA cache."""
    import torch

    if work.device == "cpu" or torch.cuda.get_device_capability()[0] != 10:
        raise Unavailable("TRTLLM-gen's sparse MLA needs a Blackwell GPU of compute capability 10.x")
    try:
        from flashinfer.decode import trtllm_batch_decode_with_kv_cache_mla as kernel
    except ImportError as error:
        raise Unavailable(f"FlashInfer is not installed: {error}") from error
    shape = (work.requests, 1, HEADS, WIDTH)
    generator = torch.Generator(device=work.device).manual_seed(1)
    query = torch.randn(shape, device=work.device, generator=generator).to(torch.float8_e4m3fn)
    workspace = torch.zeros(128 << 20, dtype=torch.uint8, device=work.device)
    lengths = torch.full((work.requests,), work.selected.shape[1], dtype=torch.int32, device=work.device)
    calls = []
    for cache in found.mla:
        page = math.gcd(cache.stride(0) // WIDTH, BLOCK)
        calls.append(
            {
                "kv_cache": _flat(cache).view(torch.float8_e4m3fn).view(-1, page, WIDTH).unsqueeze(1),
                "block_tables": work.rows(cache).unsqueeze(1),
            }
        )
    common = {
        "query": query,
        "workspace_buffer": workspace,
        "qk_nope_head_dim": 192,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "seq_lens": lengths,
        "max_seq_len": work.selected.shape[1],
        "sparse_mla_top_k": work.selected.shape[1],
        "bmm1_scale": 256**-0.5,
        "bmm2_scale": 1.0,
    }
    return lambda: [kernel(**common, **call) for call in calls]


def indexer(found: Caches, work: Work) -> Callable[[], list[Any]]:
    """Scores of the whole context in every indexer cache."""
    import torch

    if work.device == "cpu":
        raise Unavailable("DeepGEMM needs a GPU")
    try:
        from vllm.utils import deep_gemm
    except ImportError as error:
        raise Unavailable(f"vLLM is not installed: {error}") from error
    if not deep_gemm.has_deep_gemm():
        raise Unavailable("DeepGEMM is not installed")
    generator = torch.Generator(device=work.device).manual_seed(2)
    shape = (work.requests, 1, INDEX_HEADS, 128)
    query = torch.randn(shape, device=work.device, generator=generator).to(torch.float8_e4m3fn)
    weights = torch.rand((work.requests, INDEX_HEADS), device=work.device, generator=generator)
    scale = None
    if hasattr(deep_gemm, "mqa_logits_mx_inputs"):  # vLLM 0.33
        scale, weights = deep_gemm.mqa_logits_mx_inputs(query, None, weights)
    lengths = torch.full((work.requests, 1), work.context, dtype=torch.int32, device=work.device)
    properties = torch.cuda.get_device_properties(work.device)
    blackwell = torch.cuda.get_device_capability()[0] == 10
    ids = torch.arange(work.requests, dtype=torch.int32, device=work.device) if blackwell else None
    schedule = deep_gemm.get_paged_mqa_logits_metadata(lengths, BLOCK, properties.multi_processor_count, indices=ids)
    options: dict[str, Any] = {"max_model_len": work.context, "indices": ids}
    if "clean_logits" in inspect.signature(deep_gemm.fp8_fp4_paged_mqa_logits).parameters:  # vLLM 0.31, 0.32
        options["clean_logits"] = False
    tables = work.tables.int()
    return lambda: [
        deep_gemm.fp8_fp4_paged_mqa_logits(
            (query, scale), cache.unsqueeze(2), weights, lengths, tables, schedule, **options
        )
        for cache in found.indexer
    ]


KERNELS = {"attention": attention, "indexer": indexer, "gather": gather}


def _milliseconds(call: Callable[[], Any], device: str) -> float:
    if device == "cpu":
        began = time.perf_counter()
        call()
        return (time.perf_counter() - began) * 1e3
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def compare(name: str, layouts: list[Caches], work: Work, repeat: int) -> dict[str, Any]:
    """Milliseconds of a pass in both layouts and their ratio; raises `Unavailable`, or SystemExit if results differ."""
    import torch

    calls = {each.layout: KERNELS[name](each, work) for each in layouts}
    results = [call() for call in calls.values()]
    for number, (one, two) in enumerate(zip(*results, strict=True)):
        tolerance = {"rtol": 0.02, "atol": 1e-3} if name == "attention" else {"rtol": 0.0, "atol": 0.0}
        if not torch.allclose(one.float(), two.float(), **tolerance):
            raise SystemExit(
                f"{name}: layer {number} gives other results in {layouts[1].layout}; no time is worth that"
            )
    del results
    times: dict[str, list[float]] = {layout: [] for layout in calls}
    for turn in range(repeat):
        for layout in list(calls)[:: 1 if turn % 2 else -1]:
            times[layout].append(_milliseconds(calls[layout], work.device))
    ratios = [rows / stock for stock, rows in zip(*times.values(), strict=True)]
    medians = {f"{layout}_ms": round(statistics.median(values), 4) for layout, values in times.items()}
    spread = {"ratio": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    return medians | {key: round(value, 4) for key, value in spread.items()}


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def main() -> None:
    """Print one line a kernel."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=_positive, default=16, help="requests in a step (default 16)")
    parser.add_argument("--context", type=_positive, default=65536, help="tokens of each (default 65536)")
    parser.add_argument("--selected", type=_positive, default=2048, help="tokens attended to (default 2048)")
    parser.add_argument("--align-rows", type=int, choices=[1, 32, 64], default=32, help="row alignment (default 32)")
    parser.add_argument("--repeat", type=_positive, default=50, help="timed passes (default 50)")
    parser.add_argument("--kernels", nargs="+", choices=list(KERNELS), default=list(KERNELS))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.context % BLOCK or arguments.selected > arguments.context:
        parser.error(
            f"--context {arguments.context} must be a multiple of {BLOCK} and at least --selected {arguments.selected}"
        )
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("skipped: torch sees no CUDA device here, and kernel times need one")
        return
    blocks = arguments.requests * arguments.context // BLOCK
    layouts = [caches(layout, blocks, arguments.align_rows, arguments.device) for layout in ("LBNHC", "BLHNC")]
    fill(layouts, arguments.device)
    generator = torch.Generator().manual_seed(3)
    tables = torch.randperm(blocks, generator=generator).view(arguments.requests, -1)
    selected = torch.stack([torch.randperm(arguments.context, generator=generator) for _ in range(arguments.requests)])[
        :, : arguments.selected
    ]
    work = Work(
        arguments.device,
        arguments.requests,
        arguments.context,
        tables.to(arguments.device),
        selected.to(arguments.device),
    )
    report: dict[str, Any] = {}
    for name in arguments.kernels:
        try:
            report[name] = compare(name, layouts, work, arguments.repeat)
        except Unavailable as why:
            report[name] = {"skipped": str(why)}
    if arguments.json:
        facts = {key: getattr(arguments, key) for key in ("device", "requests", "context", "selected", "align_rows")}
        print(json.dumps(facts | {"kernels": report}))
        return
    for name, row in report.items():
        print(f"{name:10}  " + "  ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
