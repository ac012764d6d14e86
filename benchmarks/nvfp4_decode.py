"""Time of one sparse MLA decode launch on NVFP4 rows, over the tokens in the launch, on a GPU.

- `triton`: this plugin's kernel, FP8 query;
- `flashinfer`: `flashinfer.mla.nvfp4_sparse_mla_decode`, on the same rows, where its sources are installed;
- `flashmla`: FlashMLA through vLLM, on the same rows, BF16 query, 16 heads padded to 64 (compute capability 10.x);
- `trtllm`: FlashInfer's TRTLLM-gen kernel on an FP8 cache of 576 bytes a row (compute capability 10.x).

Every launch is recorded in a CUDA graph and replayed on a cold L2 cache; kernels take turns, and medians are printed in
microseconds. `floor` is the time that the device needs to read the rows that the launch selects, at the bandwidth that
it was measured to copy with here. `error` is the largest difference from float64 attention on the same rows, in percent
of a head's largest element. A kernel that this device or installation lacks is left out by name.

Usage: ``python benchmarks/nvfp4_decode.py [--tokens 1 5 15 ...] [--heads 16] [--topk 2048] [--json]``. Without a GPU it
says so and ends with code 0, unless ``--device cpu`` is given: that runs `triton` in Triton's interpreter and tests
this program, not the kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flashinfer_nvfp4.codec import decode_rows, encode_rows
from flashinfer_nvfp4.rowformat import LATENT, ROPE, ROW_BYTES

TOKENS = [1, 5, 10, 15, 20, 25, 35, 45, 47, 64, 96, 128]
BLOCK = 64
SCALE = 256**-0.5
FLUSH_BYTES = 256 << 20

Call = Callable[[], Any]


class Unavailable(Exception):
    """Why a kernel cannot run here."""


@dataclass
class Work:
    """query: bfloat16 [tokens, heads, 576]; indices: int32 [tokens, topk]; rows: uint8 [slots, 352]."""

    device: str
    query: Any
    indices: Any
    rows: Any

    @property
    def fp8(self) -> Any:
        return self.query.to(torch.float8_e4m3fn)

    def error(self, out: Any, query: Any, keys: Any) -> float:
        """Percent of a head's largest element, over the first tokens; ``keys`` float32 [slots, 576]."""
        few = slice(0, 4)
        chosen = keys.double()[self.indices[few].long()]
        weights = (torch.einsum("thd,tkd->thk", query[few].double(), chosen) * SCALE).softmax(-1)
        right = torch.einsum("thk,tkd->thd", weights, chosen[..., :LATENT])
        wrong = (out[few].double() - right).abs().amax(-1) / right.abs().amax(-1)
        return 100 * wrong.max().item()


def triton(work: Work) -> tuple[Call, Any, Any]:
    """The launch, its query, and the keys that it attends to."""
    from flashinfer_nvfp4.kernels.decode import decode

    query, cache = work.fp8, work.rows.view(-1, BLOCK, ROW_BYTES)
    return lambda: decode(query, cache, work.indices, SCALE)[0], query, _keys(work)


def flashinfer(work: Work) -> tuple[Call, Any, Any]:
    """FlashInfer's own op for these rows."""
    try:
        from flashinfer.mla import nvfp4_sparse_mla_decode as kernel
    except ImportError as error:
        raise Unavailable(f"FlashInfer has no nvfp4_sparse_mla_decode: {error}") from error
    query = work.fp8
    try:
        kernel(query, work.rows, work.indices, SCALE)
    except Exception as error:  # no sources, no compiler, other heads, another device: each its own type
        raise Unavailable(f"FlashInfer's op does not run here: {type(error).__name__}: {error}") from error
    return lambda: kernel(query, work.rows, work.indices, SCALE), query, _keys(work)


def flashmla(work: Work) -> tuple[Call, Any, Any]:
    """vLLM's FlashMLA backend as it decodes these rows."""
    if torch.cuda.get_device_capability()[0] != 10:
        raise Unavailable("FlashMLA reads NVFP4 rows on compute capability 10.x only")
    try:
        from vllm.v1.attention.ops import flashmla as ops
    except ImportError as error:
        raise Unavailable(f"vLLM is not installed: {error}") from error
    supported, why = ops.is_flashmla_sparse_supported()
    if not supported:
        raise Unavailable(str(why))
    tokens, heads, width = work.query.shape
    query = work.query.new_zeros((1, tokens, 64, width))
    query[0, :, :heads] = work.query
    lengths = torch.full((1,), len(work.rows), dtype=torch.int32, device=work.device)
    call = {
        "q": query,
        "k_cache": work.rows.view(-1, BLOCK, 1, ROW_BYTES),
        "block_table": torch.zeros((1, 1), dtype=torch.int32, device=work.device),
        "head_dim_v": LATENT,
        "cache_seqlens": lengths,
        "tile_scheduler_metadata": ops.get_mla_metadata()[0],
        "is_fp8_kvcache": True,
        "indices": work.indices.unsqueeze(0),
        "softmax_scale": SCALE,
    }
    return lambda: ops.flash_mla_with_kvcache(**call)[0][0, :, :heads], work.query, _keys(work)


def trtllm(work: Work) -> tuple[Call, Any, Any]:
    """What serves an FP8 cache: the same latents in 576 bytes a row."""
    if torch.cuda.get_device_capability()[0] != 10:
        raise Unavailable("TRTLLM-gen's sparse MLA needs compute capability 10.x")
    try:
        from flashinfer.decode import trtllm_batch_decode_with_kv_cache_mla as kernel
    except ImportError as error:
        raise Unavailable(f"FlashInfer is not installed: {error}") from error
    query, rows = work.fp8, _keys(work).clamp(-448, 448).to(torch.float8_e4m3fn)
    tokens, topk = work.indices.shape
    call = {
        "query": query.unsqueeze(1),
        "kv_cache": rows.view(-1, 1, BLOCK, LATENT + ROPE),
        "workspace_buffer": torch.zeros(128 << 20, dtype=torch.uint8, device=work.device),
        "qk_nope_head_dim": 192,
        "kv_lora_rank": LATENT,
        "qk_rope_head_dim": ROPE,
        "block_tables": work.indices.unsqueeze(1),
        "seq_lens": torch.full((tokens,), topk, dtype=torch.int32, device=work.device),
        "max_seq_len": topk,
        "sparse_mla_top_k": topk,
        "bmm1_scale": SCALE,
        "bmm2_scale": 1.0,
    }
    return lambda: kernel(**call).view(tokens, -1, LATENT), query, rows.float()


KERNELS = {"triton": triton, "flashinfer": flashinfer, "flashmla": flashmla, "trtllm": trtllm}
ROW_SIZES = {"trtllm": LATENT + ROPE}


def _keys(work: Work) -> Any:
    return torch.cat(decode_rows(work.rows), -1)


class Clock:
    """Times one launch on a cold cache, in microseconds; on a CPU, in this process as it comes."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.flushed = torch.empty(FLUSH_BYTES if device == "cuda" else 0, dtype=torch.uint8, device=device)

    def ready(self, call: Call) -> Call:
        """The launch as a CUDA graph, compiled and warm."""
        if self.device != "cuda":
            return call
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay

    def microseconds(self, call: Call) -> float:
        if self.device != "cuda":
            began = time.perf_counter()
            call()
            return (time.perf_counter() - began) * 1e6
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.flushed.zero_()
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3

    def bytes_per_microsecond(self) -> float:
        """What the device moves when it copies, read and written bytes together."""
        source = torch.zeros(FLUSH_BYTES if self.device == "cuda" else 1 << 20, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        times = [self.microseconds(lambda: target.copy_(source)) for _ in range(5)]
        return 2 * source.numel() / min(times)


def compare(names: list[str], work: Work, clock: Clock, speed: float, repeat: int) -> dict[str, dict[str, Any]]:
    """Median microseconds, floor and error of each kernel, or why it is left out."""
    found: dict[str, dict[str, Any]] = {}
    launches: dict[str, Call] = {}
    distinct = work.indices.unique().numel()
    for name in names:
        try:
            call, query, keys = KERNELS[name](work)
            error = work.error(call(), query, keys)
        except Unavailable as why:
            found[name] = {"skipped": str(why)}
            continue
        launches[name] = clock.ready(call)
        floor = distinct * ROW_SIZES.get(name, ROW_BYTES) / speed
        found[name] = {"floor_us": round(floor, 2), "error_percent": round(error, 3)}
    times: dict[str, list[float]] = {name: [] for name in launches}
    for _ in range(repeat):
        for name, launch in launches.items():
            times[name].append(clock.microseconds(launch))
    for name, values in times.items():
        found[name] = {"us": round(statistics.median(values), 2), **found[name]}
    return found


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def main() -> None:
    """Print one line a kernel and number of tokens."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tokens", type=_positive, nargs="+", default=TOKENS, help="tokens in a launch")
    parser.add_argument("--heads", type=_positive, default=16, help="heads a GPU (default 16)")
    parser.add_argument("--topk", type=_positive, default=2048, help="keys a token, a multiple of 32 (default 2048)")
    parser.add_argument("--slots", type=_positive, default=1 << 18, help="rows in the cache (default 262144)")
    parser.add_argument("--repeat", type=_positive, default=50, help="timed launches (default 50)")
    parser.add_argument("--kernels", nargs="+", choices=list(KERNELS), default=list(KERNELS))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.topk % 32 or arguments.slots % BLOCK or arguments.topk > arguments.slots:
        parser.error(f"--topk must be a multiple of 32 and at most --slots, which must be a multiple of {BLOCK}")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("skipped: torch sees no CUDA device here, and kernel times need one")
        return
    if arguments.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
        sys.path.append(str(Path(sys.prefix) / "triton"))  # where `make test` puts it
    names = arguments.kernels if arguments.device == "cuda" else ["triton"]
    generator = torch.Generator().manual_seed(0)
    pattern = encode_rows(torch.randn(4096, LATENT, generator=generator), torch.randn(4096, ROPE, generator=generator))
    rows = pattern.repeat(-(-arguments.slots // len(pattern)), 1)[: arguments.slots].to(arguments.device)
    clock = Clock(arguments.device)
    speed = clock.bytes_per_microsecond()
    report: dict[str, Any] = {}
    for tokens in arguments.tokens:
        query = torch.randn(tokens, arguments.heads, LATENT + ROPE, generator=generator).bfloat16()
        indices = torch.stack([torch.randperm(len(rows), generator=generator)[: arguments.topk] for _ in range(tokens)])
        work = Work(arguments.device, query.to(arguments.device), indices.int().to(arguments.device), rows)
        report[str(tokens)] = compare(names, work, clock, speed, arguments.repeat)
        if not arguments.json:
            for name, row in report[str(tokens)].items():
                print(f"{tokens:4} {name:11}" + "".join(f"  {key} {value}" for key, value in row.items()), flush=True)
    if arguments.json:
        facts = {key: getattr(arguments, key) for key in ("device", "heads", "topk", "slots", "repeat")}
        print(json.dumps({**facts, "gigabytes_per_second": round(speed / 1e3, 1), "launches": report}))


if __name__ == "__main__":
    main()
