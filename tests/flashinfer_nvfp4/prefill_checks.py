"""What prefill must do on any device, however it is divided; `test_kernels_stock` and `test_kernels_gpu` run it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from kernel_calls import KernelRefused, cache_of, read, values_of, written

from flashinfer_nvfp4.codec import encode_rows
from flashinfer_nvfp4.errors import LaunchRefused
from flashinfer_nvfp4.prefill_plan import Costs, PrefillPlan, Request, plan_prefill
from flashinfer_nvfp4.workspace import Layout, StagedRows

BF16, FP8, I32 = torch.bfloat16, torch.float8_e4m3fn, torch.int32
SCALE, HEADS, TOPK, BLOCK = 256**-0.5, 8, 64, 64
REQUESTS = [Request(7, 300), Request(0, 50), Request(3, 40), Request(6, 130), Request(4, 4)]
FREE, NEVER = Costs(staged=0.0, part=0.0, row=0.0), Costs(direct=0.0)
MIXED = Costs(direct=0.6, staged=0.0, part=0.0, row=0.02)
"""Direct for 7 tokens in 300 rows, and nothing else."""
MOST_ERROR = 0.5
"""Percent. Rounding a head's largest element to bfloat16 takes up to 0.39 of it."""


class FloatKernel:
    """Fake: attention on staged rows in float64, in place of stock kernels, which need a GPU.

    Leaves NaN where a token has no key; the rows of the last page that were not staged may hold anything. ``result``:
    dtype of outputs, bfloat16 as TRTLLM-gen's.
    """

    def __init__(self, dtype: Any, scale: float, told: bool, result: Any = BF16) -> None:
        self.dtype = dtype
        self.scale = scale
        self.told = told
        self.result = result

    def __call__(self, query: Any, rows: Any, indices: Any, counts: Any, lse: bool) -> tuple[Any, Any]:
        assert rows.shape[0] % 64 == 0
        inside = torch.arange(indices.shape[1], device=indices.device) < counts[:, None]
        assert torch.equal(inside, indices >= 0)
        keys = rows[indices.clamp(min=0).long()].double() * self.scale
        scores = torch.einsum("thd,tkd->thk", query.double(), keys) * SCALE
        scores = scores.masked_fill(~inside[:, None], -math.inf)
        weights, keys = scores.softmax(-1), keys.masked_fill(~inside[..., None], 0.0)
        out = torch.einsum("thk,tkd->thd", weights, keys[..., :512]).to(self.result)
        return out, scores.logsumexp(-1).float() if lse and self.told else None


def attend_batch(request: bytes) -> bytes:
    """Output of `flashinfer_nvfp4.prefill.attend` on the device that the request names, or why it refused."""
    from flashinfer_nvfp4.kernels.decode import decode
    from flashinfer_nvfp4.prefill import PrefillTables, attend

    given = read(request)
    device, plan, layout = given["device"], given["plan"], given["layout"]
    query, memory, positions, owners, table = (
        given[name].to(device) for name in ("query", "memory", "positions", "owners", "table")
    )
    cache = memory[:, : BLOCK * 352].unflatten(1, (BLOCK, 352))

    def direct(tokens: slice) -> Any:
        where = positions[tokens].long()
        blocks = table[owners[tokens].long()[:, None], where.clamp(min=0) // BLOCK]
        return decode(query[tokens], cache, torch.where(where < 0, -1, blocks * BLOCK + where % BLOCK).int(), SCALE)[0]

    fake = FloatKernel(given["dtype"], given["scale"], given["told"], given["result"])
    kernel = fake if given["staged"] else None
    buffer = torch.full((given["bytes"],), 0xFF, dtype=torch.uint8, device=device)
    try:
        tables = PrefillTables.of(plan, len(table), device)
        out = attend(tables, layout, query, cache, positions, owners, table, buffer, direct=direct, staged=kernel)
    except LaunchRefused as refusal:
        return written(str(refusal))
    return written(out.cpu())


class Batch:
    """Rows of every request, in blocks dealt out at random that lie apart in NaN; tokens with keys in any order."""

    def __init__(self, dtype: Any = BF16, requests: list[Request] = REQUESTS, topk: int = TOPK) -> None:
        torch.manual_seed(0)
        counts = [-(-each.rows // BLOCK) for each in requests]
        self.rows = [encode_rows(torch.randn(each.rows, 512), torch.randn(each.rows, 64)) for each in requests]
        self.memory = torch.full((sum(counts) + 2, BLOCK * 352 + 352), 0xFF, dtype=torch.uint8)
        self.table = torch.full((len(requests), max(counts)), -1, dtype=I32)
        order = torch.randperm(len(self.memory))
        for request, count in enumerate(counts):
            blocks, order = order[:count], order[count:]
            self.table[request, :count] = blocks.int()
            self.memory[blocks, : BLOCK * 352] = cache_of(self.rows[request]).view(count, -1)
        self.owners = torch.repeat_interleave(torch.tensor([each.tokens for each in requests])).int()
        self.query = torch.randn(len(self.owners), HEADS, 576).to(dtype)
        self.positions = torch.full((len(self.owners), topk), -1, dtype=I32)
        for token, request in enumerate(self.owners.tolist()):
            keys = torch.randperm(requests[request].rows)[: topk - 7]
            self.positions[token, torch.randperm(topk)[: len(keys)]] = keys.int()
        self.positions[1] = -1  # a token without keys
        self.positions[2, :2] = 5  # a key that is named twice

    def reference(self, stored: Any = BF16) -> Any:
        """Float64 attention over what the rows decode to, rounded to the dtype in which they are staged."""
        out = torch.zeros(len(self.owners), HEADS, 512, dtype=torch.float64)
        for token, request in enumerate(self.owners.tolist()):
            keys = self.positions[token][self.positions[token] >= 0].long()
            values = values_of(self.rows[request])[keys].to(stored).double()
            weights = (self.query[token].double() @ values.T * SCALE).softmax(-1)
            out[token] = weights @ values[:, :512]
        return out


def _layout(capacity: int, pass_tokens: int, row_bytes: int = 1152, lse: bool = True) -> Layout:
    return Layout(TOPK, HEADS, StagedRows(row_bytes, lse), capacity, pass_tokens)


def _attend(kernels: Any, batch: Batch, plan: PrefillPlan, layout: Layout | None, **changes: Any) -> Any:
    given = {
        **vars(batch),
        "device": kernels.device,
        "plan": plan,
        "layout": layout,
        "dtype": BF16,
        "scale": 1.0,
        "told": True,
        "result": BF16,
        "staged": True,
        "bytes": layout.buffer_bytes if layout else 0,
        **changes,
    }
    answer = read(kernels.run(attend_batch, written(given)))
    if isinstance(answer, str):
        raise KernelRefused(answer)
    return answer


def head_errors(out: Any, right: Any) -> float:
    """Percent of a head's largest element; a token without keys must be exactly zero."""
    empty = right.abs().amax(-1) == 0
    assert (out[empty] == 0).all()
    return float(100 * ((out.double() - right).abs().amax(-1) / right.abs().amax(-1))[~empty].max())


def norm_errors(out: Any, right: Any) -> float:
    """Percent of the norm of a head's output that the norm of its error is; the largest, and zeros as above."""
    head_errors(out, right)
    norms = right.norm(dim=-1)
    return float(100 * ((out.double() - right).norm(dim=-1) / norms)[norms > 0].max())


class PrefillChecks:
    @pytest.mark.parametrize(
        ("capacity", "pass_tokens", "costs", "stages"),
        [
            (512, 64, FREE, 1),
            (384, 5, FREE, 2),
            (192, 4, FREE, 4),
            (128, 3, FREE, 10),
            (384, 64, MIXED, 1),
            (512, 64, NEVER, 0),
        ],
    )
    def test_every_division_agrees_with_float64(
        self, kernels: Any, capacity: int, pass_tokens: int, costs: Costs, stages: int
    ) -> None:
        """All in one stage; several requests to a stage; requests in three and in five parts; some direct; all."""
        batch, layout = Batch(), _layout(capacity, pass_tokens)
        plan = plan_prefill(REQUESTS, HEADS, layout, costs)
        out = _attend(kernels, batch, plan, layout)

        assert len(plan.stages) == stages
        assert out.dtype == BF16
        assert norm_errors(out, batch.reference()) < MOST_ERROR
        if all(stage.parts == 1 for stage in plan.stages):
            assert head_errors(out, batch.reference()) < MOST_ERROR

    @pytest.mark.parametrize(("capacity", "parts"), [(192, 3), (128, 5)])
    def test_parts_add_no_rounding_to_the_outputs_own(self, kernels: Any, capacity: int, parts: int) -> None:
        """With a kernel that does not round its parts, no element is off by more than without parts."""
        batch, layout = Batch(), _layout(capacity, 3)
        plan = plan_prefill(REQUESTS, HEADS, layout, FREE)
        out = _attend(kernels, batch, plan, layout, result=torch.float32)

        assert max(stage.parts for stage in plan.stages) == parts
        assert head_errors(out, batch.reference()) < 0.4  # 0.39 by rounding, and a little of float32

    def test_fp8_rows_are_staged_under_their_scale(self, kernels: Any) -> None:
        """Two requests in five and three parts, for which the workspace holds what three tokens carry."""
        batch, layout = Batch(FP8), _layout(128, 3, 576)
        plan = plan_prefill(REQUESTS, HEADS, layout, FREE)
        out = _attend(kernels, batch, plan, layout, dtype=FP8, scale=0.5)

        assert [(stage.parts, stage.span) for stage in plan.stages if not stage.part] == [
            *((5, (0, 3)), (5, (3, 6)), (5, (6, 7)), (1, (7, 10)), (3, (10, 13)), (3, (13, 16)), (1, (16, 20))),
        ]
        assert norm_errors(out, batch.reference(FP8)) < MOST_ERROR

    def test_no_tokens_have_no_output(self, kernels: Any) -> None:
        batch = Batch()
        batch.query, batch.positions, batch.owners = batch.query[:0], batch.positions[:0], batch.owners[:0]
        plan = plan_prefill([Request(0, each.rows) for each in REQUESTS], HEADS, _layout(512, 64), FREE)

        assert _attend(kernels, batch, plan, _layout(512, 64)).shape == (0, HEADS, 512)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"staged": False}, r"a plan with stages, layout=Layout.*, staged=None.*Plan without a layout"),
            ({"bytes": 100_000}, r"a buffer of 100000 bytes for rows of 1152.*bytes and rows of 1152"),
            ({"dtype": FP8}, r"for rows of 576.*rows of 1152.*that was planned with"),
            ({"told": False}, r"returned no log-sum-exp.*StagedRows\(lse=True\).*Plan with lse=False"),
        ],
    )
    def test_what_was_not_planned_is_refused(self, kernels: Any, changes: Any, message: str) -> None:
        layout = _layout(128, 64)
        with pytest.raises(KernelRefused, match=message):
            _attend(kernels, Batch(), plan_prefill(REQUESTS, HEADS, layout, FREE), layout, **changes)
