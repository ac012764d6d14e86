"""A token's values are the same to the last bit whatever shares its batch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="needs the pinned stock environment: make test")

import torch
from dsa_cache import layouts, strided_pages

from vllm_cpu_dsa.attention import attend
from vllm_cpu_dsa.indexer import select
from vllm_cpu_dsa.paged import PagedBatch
from vllm_cpu_dsa.quantize import FP8
from vllm_cpu_dsa.rows import PlainRows

BLOCK = 64


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the workers run: with more, torch splits a single product among them and sums in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


KERNELS = """
import torch
from vllm.platforms.cpu import CpuPlatform
CpuPlatform.import_kernels()
from vllm import _custom_ops as ops
torch.manual_seed(0)
torch.set_num_threads(1)

def check(name, compute, rows):
    whole = compute(*rows)
    for count in (1, 2, 3, 7, 16, 33, 100):
        part = compute(*(each[5 : 5 + count].contiguous() for each in rows))
        assert torch.equal(part, whole[5 : 5 + count]), f"{name}: {count} rows differ from the same rows among 128"

for inner, outer in ((128, 576), (64, 384), (512, 128), (128, 320)):
    handler = ops.create_onednn_mm(torch.randn(outer, inner).t(), 32)
    check(f"linear {inner}x{outer}", lambda x: ops.onednn_mm(handler, x, None), [torch.randn(128, inner)])

gate_up, down = torch.randn(8, 128, 128) / 11, torch.randn(8, 128, 64) / 8

def experts(x, weights, ids):
    out = torch.empty_like(x)
    ops.cpu_fused_moe(out, x, gate_up, down, None, None, weights, ids, "silu", "vec")
    return out

weights, ids = torch.randn(128, 8).softmax(-1).topk(2)
check("experts", experts, [torch.randn(128, 128), weights, ids.int()])
print("ok")
"""

BMM = """
import torch
from vllm_cpu_dsa import invariance
torch.manual_seed(0)
torch.set_num_threads(1)

def differing():
    found = 0
    for inner, outer in ((32, 512), (512, 32), (192, 512)):
        rows, weight = torch.randn(4, 40, inner), torch.randn(4, inner, outer)
        whole = torch.bmm(rows, weight, out=torch.empty(4, 40, outer))
        for count in (1, 2, 3, 17):
            part = torch.bmm(rows[:, 3 : 3 + count], weight, out=torch.empty(4, count, outer))
            assert torch.allclose(part, whole[:, 3 : 3 + count], atol=1e-3)
            found += not torch.equal(part, whole[:, 3 : 3 + count])
    return found

before = differing()
assert invariance.install() is invariance.install()
print(before, differing())
"""


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


def test_vllms_linear_and_expert_kernels_do_not_mix_rows() -> None:
    """What the plugin relies on: if a release's kernels lose this, equal prompts no longer give equal tokens."""
    pytest.importorskip("vllm", reason="needs the pinned stock environment: make test")

    assert _python(KERNELS) == "ok"


def test_torchs_single_row_product_differs_and_the_replacement_does_not() -> None:
    """The day the first number is 0, `vllm_cpu_dsa.invariance` can go."""
    before, after = map(int, _python(BMM).split())

    assert before > 0
    assert after == 0


@pytest.mark.parametrize("topk", [32, 128])
def test_selection_does_not_depend_on_the_batch(topk: int) -> None:
    contexts = [(700, 90), (300, 300), (513, 1)]
    layout = layouts(contexts, BLOCK, seed=3)
    generator = torch.Generator().manual_seed(4)
    cache = strided_pages(layout.pages, (BLOCK, 132), torch.uint8, BLOCK * 132 + 640, 0)
    keys = torch.randn(layout.pages, BLOCK * 128, generator=generator).to(FP8).view(torch.uint8)
    scales = torch.rand(layout.pages, BLOCK, generator=generator).view(torch.uint8).view(layout.pages, -1)
    cache.copy_(torch.cat([keys, scales], 1).view(layout.pages, BLOCK, 132))
    tokens = layout.query_start[-1]
    q = torch.randn(tokens, 32, 128, generator=generator).to(FP8)
    weights = torch.randn(tokens, 32, generator=generator)

    def selected(steps: list[list[tuple[int, int, int]]]) -> torch.Tensor:
        """Run steps of (request, first, last query) and put the selections where they belong."""
        out = torch.full((tokens, topk), -7, dtype=torch.int32)
        for step in steps:
            rows = torch.cat([torch.arange(layout.query_start[r] + a, layout.query_start[r] + b) for r, a, b in step])
            starts = [0]
            for _, a, b in step:
                starts.append(starts[-1] + b - a)
            lens = [contexts[r][0] - contexts[r][1] + b for r, _, b in step]
            batch = PagedBatch.of(starts, lens, layout.blocks[[r for r, _, _ in step]])
            part = torch.empty(len(rows), topk, dtype=torch.int32)
            select(cache, batch, q[rows], weights[rows], topk, part)
            out[rows] = part
        return out

    together = selected([[(0, 0, 90), (1, 0, 300), (2, 0, 1)]])
    apart = selected([[(2, 0, 1)], [(0, 0, 37), (1, 0, 1)], [(1, 1, 130)], [(0, 37, 90), (1, 130, 300)]])

    assert torch.equal(together, apart)
    assert (together >= -1).all()


def test_attention_does_not_depend_on_the_batch() -> None:
    topk, heads = 128, 4
    layout = layouts([(400, 60), (90, 90)], BLOCK, seed=5)
    generator = torch.Generator().manual_seed(6)
    cache = strided_pages(layout.pages, (BLOCK, 576), torch.float32, BLOCK * 576 + 64, 0)
    cache.copy_(torch.randn(layout.pages, BLOCK, 576, generator=generator))
    tokens = layout.query_start[-1]
    q = torch.randn(tokens, heads, 576, generator=generator)
    picked = torch.full((tokens, topk), -1, dtype=torch.int32)
    for row, (context, queries) in enumerate(layout.contexts):
        for index in range(queries):
            seen = context - queries + index + 1
            chosen = torch.randperm(seen, generator=generator)[:topk].sort().values
            picked[layout.query_start[row] + index, : len(chosen)] = chosen.int()
    rows = PlainRows()

    def attended(bounds: list[tuple[int, int, int]]) -> torch.Tensor:
        out = torch.empty(tokens, heads, 512)
        for row, first, last in bounds:
            context, queries = layout.contexts[row]
            start = layout.query_start[row] + first
            batch = PagedBatch.of([0, last - first], [context - queries + last], layout.blocks[row : row + 1])
            part = out[start : start + last - first]
            attend(cache, batch, q[start : start + last - first], picked[start : start + last - first], 0.1, rows, part)
        return out

    whole = attended([(0, 0, 60), (1, 0, 90)])
    pieces = attended([(0, i, i + 1) for i in range(60)] + [(1, 0, 1), (1, 1, 50), (1, 50, 90)])

    assert torch.equal(whole, pieces)
