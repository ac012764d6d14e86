"""Times of decode on nvfp4_ds_mla rows, beside the time in which the device could read the selected rows once.

python benchmarks/kernels/benchmark_nvfp4_mla_decode.py --tokens 1 16 64 --heads 16
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from vllm.v1.attention.ops.nvfp4_mla.codec import encode_rows
from vllm.v1.attention.ops.nvfp4_mla.kernels.decode import decode

BLOCK, ROW_BYTES, SCALE = 64, 352, 256**-0.5


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 16, 32, 64, 128], help="query tokens")
    parser.add_argument("--heads", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--topk", type=int, default=2048, help="keys of a token, a multiple of 32")
    parser.add_argument("--rows", type=int, default=1 << 18, help="rows of the cache, a multiple of 64")
    parser.add_argument("--bandwidth", type=float, default=0.0, help="the device's, in TB/s, to print the floor")
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--device", default="cuda", help="cpu only tries it out: under TRITON_INTERPRET=1")
    chosen = parser.parse_args(arguments)
    torch.manual_seed(0)
    rows = encode_rows(torch.randn(1024, 512), torch.randn(1024, 64), "rtn").to(chosen.device)
    cache = rows.repeat(-(-chosen.rows // 1024), 1)[: chosen.rows].view(-1, BLOCK, ROW_BYTES)
    print(f"{'tokens':>7}{'heads':>7}{'us':>10}{'floor us':>10}")
    for heads in chosen.heads:
        for tokens in chosen.tokens:
            query = torch.randn(tokens, heads, 576, device=chosen.device).bfloat16()
            indices = torch.randint(0, chosen.rows, (tokens, chosen.topk), dtype=torch.int32, device=chosen.device)
            out, lse = decode(query, cache, indices, SCALE)
            launch = partial(decode, query, cache, indices, SCALE, out=out, lse=lse)
            found = timed(launch, chosen.repeat, chosen.device)
            floor = tokens * chosen.topk * ROW_BYTES / chosen.bandwidth / 1e6 if chosen.bandwidth else float("nan")
            print(f"{tokens:>7}{heads:>7}{found:>10.1f}{floor:>10.1f}")


def timed(launch: Callable[[], object], repeat: int, device: str) -> float:
    """Median of so many launches in microseconds, as the device's events tell it."""
    found = []
    for _ in range(repeat):
        if device == "cpu":
            began = time.perf_counter()
            launch()
            found.append((time.perf_counter() - began) * 1e6)
            continue
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        launch()
        last.record()
        last.synchronize()
        found.append(first.elapsed_time(last) * 1e3)
    return sorted(found)[len(found) // 2]


if __name__ == "__main__":
    main()
