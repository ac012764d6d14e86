"""How far the NVFP4 kernels are from exact: bytes against the codec, values and attention against float64.

Usage: ``python benchmarks/nvfp4_kernel_errors.py [--json]``. On a GPU if torch sees one, else in Triton's interpreter
on the CPU, in about a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from flashinfer_nvfp4.codec import POLICIES, decode_rows, encode_rows

SCALE = 256**-0.5
HEADS, TOPK, ROWS = 16, 512, 1024


def _parts(rows: int, size: float = 1.0) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return torch.randn(rows, 512) * size, torch.randn(rows, 64)


def encoding(device: str) -> dict[str, Any]:
    """Bytes that differ from the codec's, by policy, of rows from underflow to saturation."""
    from flashinfer_nvfp4.kernels.encode import encode

    latent, rope = _parts(ROWS)
    latent *= torch.exp2(torch.randint(-14, 12, (ROWS, 1)).float())
    found = {}
    for policy in POLICIES:
        cache = torch.zeros(ROWS // 64, 64, 352, dtype=torch.uint8, device=device)
        encode(latent.to(device), rope.to(device), cache, torch.arange(ROWS, device=device), policy)
        differ = cache.view(-1, 352).cpu() != encode_rows(latent, rope, policy)
        found[f"encode {policy}, wrong bytes of {differ.numel()}"] = int(differ.sum())
    return found


def gathering(device: str) -> dict[str, Any]:
    """Root mean square error of gathered latents in percent of theirs, against the row and against what was stored."""
    from flashinfer_nvfp4.kernels.gather import gather

    latent, rope = _parts(ROWS)
    rows = encode_rows(latent, rope, "search")
    exact = decode_rows(rows)[0].double()
    cache, slots = rows.view(-1, 64, 352).to(device), torch.arange(ROWS, device=device)
    found = {}
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        got = gather(cache, slots, dtype).cpu().double()[:, :512]
        for name, right in (("row", exact), ("latent", latent.double())):
            error = 100 * ((got - right).square().mean() / right.square().mean()).sqrt().item()
            found[f"gather {str(dtype).removeprefix('torch.')}, % of the {name}"] = round(error, 3)
    return found


def decoding(device: str) -> dict[str, Any]:
    """Largest difference in percent of a head's largest element, and of the log-sum-exp."""
    from flashinfer_nvfp4.kernels.decode import decode

    rows = encode_rows(*_parts(ROWS), "search")
    keys = torch.cat(decode_rows(rows), -1).double()
    indices = torch.stack([torch.randperm(ROWS)[:TOPK] for _ in range(2)]).int()
    found = {}
    for name, dtype in (("bf16", torch.bfloat16), ("fp8", torch.float8_e4m3fn)):
        query = torch.randn(2, HEADS, 576).to(dtype)
        scores = torch.einsum("thd,tkd->thk", query.double(), keys[indices.long()]) * SCALE
        right = torch.einsum("thk,tkd->thd", scores.softmax(-1), keys[indices.long()][..., :512])
        for out, splits in ((torch.float32, 1), (torch.float32, 4), (torch.bfloat16, 1)):
            got, lse = decode(
                query.to(device),
                rows.view(-1, 64, 352).to(device),
                indices.to(device),
                SCALE,
                dtype=out,
                splits=splits,
            )
            wrong = (got.cpu().double() - right).abs().amax(-1) / right.abs().amax(-1)
            label = f"decode {name} query, {str(out).removeprefix('torch.')} out, {splits} splits"
            found[f"{label}, %"] = round(100 * wrong.max().item(), 3)
            found[f"{label}, LSE"] = float(f"{(lse.cpu().double() - scores.logsumexp(-1)).abs().max().item():.1e}")
    return found


def main() -> None:
    """Print one line a figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
        sys.path.append(str(Path(sys.prefix) / "triton"))  # where `make test` puts it
    figures = {"device": device, **encoding(device), **gathering(device), **decoding(device)}
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, figure in figures.items():
        print(f"{name:55} {figure}")


if __name__ == "__main__":
    main()
