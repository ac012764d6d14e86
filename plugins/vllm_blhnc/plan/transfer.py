"""What moving one prompt's KV costs on each layout: regions, descriptors and bytes, by vLLM release."""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass

from vllm_blhnc.plan.caches import Caches, PlanError
from vllm_blhnc.plan.rows import BlockRow, block_row, descriptor_count

__all__ = ["BACKENDS", "BLOCK_SIZE", "RELEASES", "Layout", "Transfer", "default_backend", "plan_transfer"]

RELEASES = ("0.31", "0.32", "0.33")

#: Releases whose stock pull connector registers whole rows; before, it registers every page of a row by itself.
_ROWS_BY_ITSELF = ("0.33",)

#: Tokens of a block. The indexer's kernels take no other, and blocks that lie between those of other caches
#: cannot be split for them.
BLOCK_SIZE = 64

#: Far above any context.
_MOST_TOKENS = 1_000_000_000


@dataclass(frozen=True)
class _Backend:
    """dtypes: cache dtypes it takes. align_rows: MLA rows to which it aligns block rows, by release; else 1."""

    dtypes: tuple[str, ...]
    align_rows: dict[str, int]


#: vLLM's sparse MLA backends of compute capability 10.x (SM100), and this project's for the CPU.
BACKENDS = {
    "FLASHINFER_MLA_SPARSE": _Backend(("fp8", "bf16"), {"0.32": 32, "0.33": 32}),
    "FLASHMLA_SPARSE": _Backend(("fp8_ds_mla", "nvfp4_ds_mla", "bf16"), {}),
    "CPU_MLA_SPARSE": _Backend(("float32", "bf16", "fp8", "nvfp4_ds_mla"), {}),
}


@dataclass(frozen=True)
class Layout:
    """One layout of the cache and what a transfer costs on it.

    layout: vLLM's name. who: what registers it with NIXL: "stock" or "plugin".
    regions: NIXL regions that every block spans. dense: whether NIXL may merge neighbouring blocks.
    descriptors: for the planned runs; descriptors_raw: with every block a run of its own;
    descriptors_contiguous: with all blocks in one run. nbytes: bytes moved, padding included.
    overhead: padding moved as a fraction of the KV moved.
    """

    layout: str
    who: str
    regions: int
    dense: bool
    descriptors: int
    descriptors_raw: int
    descriptors_contiguous: int
    nbytes: int
    overhead: float


@dataclass(frozen=True)
class Transfer:
    """The plan of one prompt's transfer on one vLLM release.

    tokens, blocks, runs: of the prompt; run_length: blocks of a run, None for all of them.
    row: one block of all caches as the connector registers it. stock_row: the same without `row_alignment`.
    align_rows: MLA rows of which the block stride is a multiple. row_alignment: the asked number of them.
    lbnhc: vLLM's default. blhnc: rows as one region, with the plugin (from 0.33 on also without).
    blhnc_stock: the stock pull connector with VLLM_KV_CACHE_LAYOUT=BLHNC.
    """

    release: str
    backend: str
    dtype: str
    tokens: int
    blocks: int
    run_length: int | None
    runs: int
    caches: Caches
    mla_row_bytes: int
    row: BlockRow
    stock_row: BlockRow
    align_rows: int
    row_alignment: int | None
    lbnhc: Layout
    blhnc: Layout
    blhnc_stock: Layout

    @property
    def kernel_page_rows(self) -> int | None:
        """Rows of the pages in which TRTLLM-gen reads a BLHNC cache; None where no backend pages its rows anew.

        vLLM 0.32 and 0.33 take the largest page, up to a block, that divides the block stride
        (backends/mla/flashinfer_mla_sparse.py).
        """
        if self.backend != "FLASHINFER_MLA_SPARSE" or self.release == "0.31":
            return None
        return math.gcd(self.row.nbytes // self.mla_row_bytes, BLOCK_SIZE)


def default_backend(dtype: str) -> str:
    """The backend planned for this cache dtype: vLLM's choice on SM100, the CPU's for float32.

    For bf16 vLLM takes FLASHINFER_MLA_SPARSE up to 16 attention heads a rank and FLASHMLA_SPARSE above.
    """
    found = [name for name, backend in BACKENDS.items() if dtype in backend.dtypes]
    if not found:
        known = sorted({dtype for backend in BACKENDS.values() for dtype in backend.dtypes})
        raise PlanError(f"dtype={dtype!r} is not known; allowed are {', '.join(known)}. Choose one of them.")
    return found[0]


def plan_transfer(
    caches: Caches,
    *,
    tokens: int,
    run_length: int | None,
    release: str = RELEASES[-1],
    dtype: str = "fp8",
    backend: str | None = None,
    block_size: int = BLOCK_SIZE,
    row_alignment: int | None = None,
) -> Transfer:
    """Plan the transfer of one prompt of `tokens` tokens.

    run_length: blocks in a run, that is with ids that count up by one on both sides; None puts all in one run.
    backend: None takes `default_backend`. row_alignment: the setting ``row_alignment_tokens``.
    Raises `PlanError` for what cannot be, and names it.
    """
    _check("tokens", tokens, 1 <= tokens <= _MOST_TOKENS, f"from 1 to {_MOST_TOKENS:,}")
    _check("run_length", run_length, run_length is None or run_length >= 1, "at least 1 block, or all blocks")
    _check("release", release, release in RELEASES, "one of " + ", ".join(RELEASES))
    if block_size != BLOCK_SIZE:
        raise PlanError(
            f"block_size={block_size}: the sparse indexer's kernels take blocks of {BLOCK_SIZE} tokens, and blocks "
            f"between which other caches lie cannot be split for them. Allowed is {BLOCK_SIZE}: serve and plan with "
            f"--block-size {BLOCK_SIZE}."
        )
    if row_alignment is not None and (row_alignment < 1 or block_size % row_alignment):
        raise PlanError(
            f"row_alignment={row_alignment}: kernels page a block into equal parts. Allowed is a number of tokens "
            f"that divides the block size, such as 32 or {block_size}."
        )
    backend = default_backend(dtype) if backend is None else backend
    _check("backend", backend, backend in BACKENDS, "one of " + ", ".join(BACKENDS))
    if dtype not in BACKENDS[backend].dtypes:
        raise PlanError(
            f"dtype={dtype!r} is not what {backend} caches; it takes {', '.join(BACKENDS[backend].dtypes)}. Choose "
            "one of these or another backend."
        )
    mla_row = caches.row_bytes(dtype)
    pages = caches.pages(dtype, block_size)
    stock_rows = BACKENDS[backend].align_rows.get(release, 1)
    align_rows = math.lcm(stock_rows, row_alignment or 1)
    row, stock_row = (block_row(pages, [rows * mla_row]) for rows in (align_rows, stock_rows))
    blocks = -(-tokens // block_size)
    runs = 1 if run_length is None else -(-blocks // run_length)

    def cost(layout: str, who: str, regions: int, nbytes: int, *, dense: bool) -> Layout:
        planned, raw, contiguous = (descriptor_count(blocks, n, regions, dense=dense) for n in (runs, blocks, 1))
        overhead = nbytes / row.payload - 1
        return Layout(layout, who, regions, dense, planned, raw, contiguous, blocks * nbytes, overhead)

    return Transfer(
        release=release,
        backend=backend,
        dtype=dtype,
        tokens=tokens,
        blocks=blocks,
        run_length=run_length,
        runs=runs,
        caches=caches,
        mla_row_bytes=mla_row,
        row=row,
        stock_row=stock_row,
        align_rows=align_rows,
        row_alignment=row_alignment,
        lbnhc=cost("LBNHC", "stock", caches.count, row.payload, dense=True),
        blhnc=cost("BLHNC", "plugin", 1, row.nbytes, dense=True),
        blhnc_stock=(
            cost("BLHNC", "stock", 1, stock_row.nbytes, dense=True)
            if release in _ROWS_BY_ITSELF
            else cost("BLHNC", "stock", caches.count, row.payload, dense=False)
        ),
    )


def _check(name: str, value: object, right: bool, allowed: str) -> None:
    if not right:
        raise PlanError(f"{name}={reprlib.repr(value)} cannot be planned; it must be {allowed}. Give another.")
