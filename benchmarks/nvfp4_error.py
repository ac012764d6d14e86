"""Error of a latent in the MLA cache: stock FP8, stock NVFP4 rows, this plugin's policies, with and without a fold.

First table: latents of root mean square 1 from three distributions. Second: latents as an RMS norm makes them from
Gaussian tokens, with a norm weight of the root mean square given, whose largest channel is three times the smallest;
GLM's first layers are the smallest. Printed is the root mean square error in percent of the latent's root mean square
and, in brackets, the squared error as a multiple of the stock NVFP4 row's (`rtn` without a fold).

Usage: ``python benchmarks/nvfp4_error.py [--rows N] [--json]``. Runs on the CPU in some seconds.
"""

from __future__ import annotations

import argparse
import json

import torch

from flashinfer_nvfp4.codec import POLICIES, Policy, decode_rows, encode_rows
from flashinfer_nvfp4.fold import fold_exponent

SIZES = (0.1, 0.03, 0.01, 0.005, 0.002)
STOCK = "rtn"

Errors = dict[str, float]
"""Relative squared error by the way of storing."""


def _relative(stored: torch.Tensor, latent: torch.Tensor) -> float:
    difference = stored.double() - latent.double()
    return (difference.square().mean() / latent.double().square().mean()).item()


def _fp8(latent: torch.Tensor) -> torch.Tensor:
    """The stock per-tensor FP8 cache with its default scale of 1."""
    return latent.float().clamp(-448, 448).to(torch.float8_e4m3fn).float()


def _rows(latent: torch.Tensor, policy: Policy) -> torch.Tensor:
    return decode_rows(encode_rows(latent, latent.new_zeros(len(latent), 64), policy))[0]


def _distributions(rows: int) -> dict[str, Errors]:
    drawn = {
        "Gaussian": torch.randn(rows, 512),
        "Laplace": torch.distributions.Laplace(0.0, 1.0).sample((rows, 512)),
        "Student-t, 4 degrees": torch.distributions.StudentT(4.0).sample((rows, 512)),
    }
    errors: dict[str, Errors] = {}
    for name, values in drawn.items():
        latent = (values / values.square().mean().sqrt()).bfloat16()
        stored = {"fp8": _fp8(latent)}
        stored |= {str(policy): _rows(latent, policy) for policy in POLICIES}
        errors[name] = {how: _relative(values, latent) for how, values in stored.items()}
    return errors


def _sizes(rows: int) -> dict[str, Errors]:
    tokens = torch.randn(rows, 512)
    tokens *= torch.rsqrt(tokens.square().mean(-1, keepdim=True))
    channels = torch.rand(512) + 0.5
    channels /= channels.square().mean().sqrt()
    errors: dict[str, Errors] = {}
    for size in SIZES:
        weight = (channels * size).bfloat16()
        latent = (tokens * weight.float()).bfloat16()
        factor = 2.0 ** fold_exponent(weight)
        folded = latent * factor
        stored = {"fp8": _fp8(latent), STOCK: _rows(latent, "rtn"), "search": _rows(latent, "search")}
        stored |= {"fold + rtn": _rows(folded, "rtn") / factor, "fold + search": _rows(folded, "search") / factor}
        errors[f"{size:g}"] = {how: _relative(values, latent) for how, values in stored.items()}
    return errors


def _print(title: str, errors: dict[str, Errors]) -> None:
    ways = list(next(iter(errors.values())))
    print(f"{title:21}" + "".join(f"{way:>18}" for way in ways))
    for name, row in errors.items():
        cells = (f"{100 * row[way] ** 0.5:.2f} ({row[way] / row[STOCK]:.3f})" for way in ways)
        print(f"{name:21}" + "".join(f"{cell:>18}" for cell in cells))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=4096, help="tokens drawn for each figure")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    tables = {"distributions": _distributions(options.rows), "sizes": _sizes(options.rows)}
    if options.json:
        print(json.dumps({"rows": options.rows, "relative_squared_error": tables}))
        return
    _print("distribution", tables["distributions"])
    print()
    _print("size of the latent", tables["sizes"])


if __name__ == "__main__":
    main()
