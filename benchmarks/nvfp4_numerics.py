"""Whether the kernels compute what they should on this device, before anything is timed. See nvfp4_gpu.py."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from nvfp4_clock import Budget
from nvfp4_launches import OWN, Unavailable, Work, tried

from flashinfer_nvfp4.codec import POLICIES, Policy, decode_rows, encode_rows
from flashinfer_nvfp4.errors import BuildRefused
from flashinfer_nvfp4.rowformat import LATENT, ROPE, ROW_BYTES

__all__ = ["OWN_PERCENT", "STOCK_PERCENT", "Check", "checked", "checks"]

OWN_PERCENT = 0.5
STOCK_PERCENT = 5.0
"""Stock kernels round more, such as probabilities to e4m3; the bound only tells a wrong call from a right one."""


@dataclass(frozen=True)
class Check:
    """A figure and the most that it may be. None where the kernel cannot run, or is ``broken``, for the reason."""

    name: str
    figure: float | None
    most: float
    why: str = ""
    broken: bool = False

    @property
    def passed(self) -> bool:
        return not self.broken and (self.figure is None or self.figure <= self.most)

    def __str__(self) -> str:
        told = f"not run: {self.why}" if self.figure is None else f"{self.figure:g}, at most {self.most:g}"
        return f"{'ok' if self.passed else 'WRONG'}  {self.name}: {told}"


def checked(name: str, most: float, measure: Callable[[], float]) -> Check:
    """The figure that ``measure`` returns, or why there is none; what is not `Unavailable` is broken."""
    try:
        return Check(name, round(measure(), 3), most)
    except Unavailable as why:
        return Check(name, None, most, str(why))
    except Exception as error:  # the other kernels are still of interest
        return Check(name, None, most, f"{type(error).__name__}: {error}"[:300], broken=True)


def checks(device: str, heads: list[int], topk: int, budget: Budget, names: list[str]) -> list[Check]:
    """Rows byte for byte against the codec, values exactly, attention against float64."""
    found = []
    if budget.allows("numerics of rows"):
        found += _rows(device, names)
    generator = torch.Generator().manual_seed(0)
    slots = max(4 * topk // 64 * 64, 256)
    rows = encode_rows(torch.randn(slots, LATENT, generator=generator), torch.randn(slots, ROPE, generator=generator))
    for count in heads:
        query = torch.randn(3, count, LATENT + ROPE, generator=generator).bfloat16().to(device)
        indices = torch.randint(0, slots, (3, topk), generator=generator).int().to(device)
        work = Work.of(query, indices, rows.to(device))
        for name in names:
            if budget.allows(f"numerics of {name} at {count} heads"):
                most = OWN_PERCENT if name in OWN else STOCK_PERCENT
                title = f"decode {name}, {count} heads, %"
                found.append(checked(title, most, functools.partial(_error, name, work)))
    return found


def _error(name: str, work: Work) -> float:
    return tried(name, work).error(work.indices)


def _rows(device: str, names: list[str]) -> list[Check]:
    generator = torch.Generator().manual_seed(1)
    latent = torch.randn(512, LATENT, generator=generator) * torch.exp2(torch.arange(512) % 26 - 14.0)[:, None]
    rope = torch.randn(512, ROPE, generator=generator)
    found = []
    for name in (each for each in names if each in OWN):
        for policy in POLICIES:
            title = f"encode {name} {policy}, wrong bytes"
            found.append(checked(title, 0, functools.partial(_wrong_bytes, name, policy, latent, rope, device)))
    if "triton" in names:
        found.append(checked("gather triton bfloat16, wrong values", 0, lambda: _wrong_values(latent, rope, device)))
    return found


def _wrong_bytes(name: str, policy: Policy, latent: Any, rope: Any, device: str) -> int:
    module = "flashinfer_nvfp4.cuda_encode" if name == "cuda" else "flashinfer_nvfp4.kernels.encode"
    cache = torch.zeros(8, 64, ROW_BYTES, dtype=torch.uint8, device=device)
    try:
        encode = importlib.import_module(module).encode
        encode(latent.to(device), rope.to(device), cache, torch.arange(512, device=device), policy)
    except (ImportError, BuildRefused) as error:
        raise Unavailable(str(error).splitlines()[0][:300]) from error
    return int((cache.view(-1, ROW_BYTES).cpu() != encode_rows(latent, rope, policy)).sum())


def _wrong_values(latent: Any, rope: Any, device: str) -> int:
    from flashinfer_nvfp4.kernels.gather import gather

    rows = encode_rows(latent, rope, "search")
    got = gather(rows.view(-1, 64, ROW_BYTES).to(device), torch.arange(512, device=device)).cpu()
    return int((got != torch.cat(decode_rows(rows), -1).bfloat16()).sum())
