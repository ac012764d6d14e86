"""Makes a token's values independent of what else is in its batch, so that equal prompts give equal tokens.

The CPU kernels for linear layers and experts already are: a row's result does not depend on how many rows there
are. torch's batched matrix product is not: for a single row it takes another kernel with another order of
summation, and MLA uses it between heads and latent, with one row per token. Prefill and decode workers, chunks and
prefix hits all batch differently, and where a last bit decides which keys the indexer selects, the answer changes.

Holds with one thread a worker (OMP_NUM_THREADS=1), as the local stack runs them: with more, torch splits single
products among its threads, and their number decides the order.
"""

from __future__ import annotations

import warnings
from functools import cache

import torch

__all__ = ["install"]


def _bmm_out(batch: torch.Tensor, other: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """``torch.bmm(..., out=...)`` of [b, n, k] and [b, k, m]; one row is computed as the first of two equal ones."""
    rows = batch.shape[1]
    product = torch.bmm(batch.expand(-1, 2, -1) if rows == 1 else batch, other)
    return out.copy_(product[:, :rows])


@cache
def install() -> torch.library.Library:
    """Replace the CPU kernel of ``aten::bmm.out``, the form MLA uses, in this process."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        library.impl("bmm.out", _bmm_out, "CPU")
    return library  # kept by the cache: the kernel goes with the library
