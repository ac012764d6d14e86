"""What prefill's two ways take: rows staged, lists made, parts merged, tokens attended to. See nvfp4_gpu.py.

Fits `flashinfer_nvfp4.prefill_plan.Costs` to the device, and runs whole batches direct, staged, and as planned.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import torch
from nvfp4_clock import Budget, Clock, floor_us
from nvfp4_launches import BLOCK, SCALE, TRTLLM_WORKSPACE, Unavailable

from flashinfer_nvfp4.codec import decode_rows
from flashinfer_nvfp4.prefill_plan import Costs, Request, plan_prefill
from flashinfer_nvfp4.rowformat import LATENT, ROPE, ROW_BYTES
from flashinfer_nvfp4.workspace import Layout, StagedRows, plan_layout

__all__ = ["Prefill", "TorchKernel", "measured_costs", "stock_kernel"]

STAGED_BYTES = LATENT + ROPE
ALWAYS, NEVER = Costs(staged=0.0, part=0.0, row=0.0), Costs(direct=0.0)


class TorchKernel:
    """Attention on staged rows in plain torch, to float32: slow and right, where no stock kernel reads them. Never
    timed."""

    dtype, scale = torch.float8_e4m3fn, 1.0
    TOKENS = 32

    def __call__(self, query: Any, rows: Any, indices: Any, counts: Any, lse: bool) -> tuple[Any, Any]:
        parts = [
            self._some(query[first : first + self.TOKENS], rows, indices[first : first + self.TOKENS])
            for first in range(0, len(query), self.TOKENS)
        ]
        out, sums = zip(*parts, strict=True)
        return torch.cat(out), torch.cat(sums) if lse else None

    def _some(self, query: Any, rows: Any, indices: Any) -> tuple[Any, Any]:
        keys = rows[indices.clamp(min=0).long()].float()
        scores = torch.einsum("thd,tkd->thk", query.to(self.dtype).float(), keys) * SCALE
        scores = scores.masked_fill(indices[:, None] < 0, -float("inf"))
        weights = scores.softmax(-1).nan_to_num(0.0)
        out = torch.einsum("thk,tkd->thd", weights, keys[..., :LATENT].nan_to_num(0.0))
        return out, scores.logsumexp(-1)


class Prefill:
    """One request of ``rows`` cached rows; tokens select ``topk`` of them at random."""

    def __init__(self, clock: Clock, rows: Any, heads: int, topk: int, workspace: int, kernel: Any) -> None:
        device = rows.device
        self.clock = clock
        self.cache = rows.view(-1, BLOCK, ROW_BYTES)
        self.rows = len(rows)
        self.heads = heads
        self.topk = topk
        self.kernel = kernel
        self.layout = plan_layout(workspace, topk, heads, staged_rows(kernel))
        self.table = torch.arange(len(self.cache), dtype=torch.int32, device=device)[None]
        self.buffer = torch.zeros(self.layout.buffer_bytes if self.layout else 0, dtype=torch.uint8, device=device)

    def costs(self, tokens: int, direct: Any, speed: float) -> dict[str, float]:
        """Microseconds of each step: a row, and for a token the rest; ``direct`` attends to the rows themselves."""
        from flashinfer_nvfp4.kernels.merge import merge_into
        from flashinfer_nvfp4.kernels.stage import stage, staged_indices

        layout = self._layout()
        rows = min(self.rows, layout.capacity)
        query, positions, owners = self.tokens(tokens)
        out = torch.empty((layout.capacity, STAGED_BYTES), dtype=self.kernel.dtype, device=self.cache.device)
        window = torch.tensor([[0, rows, 0]], dtype=torch.int32, device=self.cache.device)
        lists, counts = torch.empty_like(positions), torch.empty_like(owners)
        one = query.new_zeros((tokens, self.heads, LATENT))
        sums = torch.zeros((tokens, self.heads), device=self.cache.device)
        two, other = one.clone(), sums.clone()
        lower = torch.zeros_like(one, dtype=torch.int16)

        def attend(lse: bool) -> Any:
            return self.kernel(query, out[: -(-rows // BLOCK) * BLOCK], lists, counts, lse)

        found = {"row": self._us(lambda: stage(self.cache, self.table, window, rows, out)) / rows}
        found["row_floor"] = floor_us(1, ROW_BYTES + STAGED_BYTES, speed)
        found["lists"] = self._us(lambda: staged_indices(positions, owners, window, lists, counts)) / tokens
        found["merge"] = self._us(lambda: merge_into(one, lower, sums, two, other)) / tokens
        found["direct"] = self._us(lambda: direct(query, positions, self.cache)) / tokens
        if isinstance(self.kernel, TorchKernel):
            return found
        found["staged"] = self._us(lambda: attend(False)) / tokens
        counts.fill_(min(BLOCK, self.topk))
        found["shortest"] = self._us(lambda: attend(True)) / tokens
        return found

    def batches(self, tokens: list[int], direct: Any, budget: Budget, costs: Costs) -> list[dict[str, Any]]:
        """Whole batches, direct and staged, beside what the plan of ``costs`` would do."""
        from flashinfer_nvfp4.prefill import PrefillTables, attend

        layout, found = self._layout(), []
        for count in tokens:
            if count > self.rows or not budget.allows(f"prefill of {count} tokens in {self.rows} rows"):
                continue
            query, positions, owners = self.tokens(count)
            request = [Request(count, self.rows)]
            outs: dict[str, Any] = {}
            row: dict[str, Any] = {"rows": self.rows, "tokens": count, "parts": 0}
            for way, chosen in (("direct", NEVER), ("staged", ALWAYS)):
                plan = plan_prefill(request, self.heads, layout, chosen)
                tables = PrefillTables.of(plan, 1, self.cache.device)

                def run(
                    tables: Any = tables, query: Any = query, positions: Any = positions, owners: Any = owners
                ) -> Any:
                    return attend(
                        tables,
                        layout,
                        query,
                        self.cache,
                        positions,
                        owners,
                        self.table,
                        self.buffer,
                        direct=lambda here: direct(query[here], positions[here], self.cache),
                        staged=self.kernel,
                    )

                outs[way] = run()
                if way == "direct" or not isinstance(self.kernel, TorchKernel):
                    row[f"{way}_us"] = round(self._us(run), 1)
                if plan.stages:
                    row |= {"parts": max(stage.parts for stage in plan.stages), "stages": len(plan.stages)}
            row["planned"] = "staged" if plan_prefill(request, self.heads, layout, costs).stages else "direct"
            row["error_percent"] = round(self.error(outs["staged"], query, positions), 3)
            row["mib"] = layout.total_bytes >> 20
            found.append(row)
        return found

    def error(self, out: Any, query: Any, positions: Any) -> float:
        """Percent of a head's largest element, against float64 on rows rounded to the staged dtype; first tokens."""
        few = slice(0, 4)
        rows = self.cache.view(-1, ROW_BYTES)[positions[few].long()]
        keys = torch.cat(decode_rows(rows), -1).to(self.kernel.dtype).double()
        query = query.to(self.kernel.dtype) if self.kernel.dtype == torch.float8_e4m3fn else query
        weights = (torch.einsum("thd,tkd->thk", query[few].double(), keys) * SCALE).softmax(-1)
        right = torch.einsum("thk,tkd->thd", weights, keys[..., :LATENT])
        return float(100 * ((out[few].double() - right).abs().amax(-1) / right.abs().amax(-1)).max())

    def tokens(self, count: int) -> tuple[Any, Any, Any]:
        """Queries bfloat16, positions and requests of ``count`` tokens, seeded."""
        device = self.cache.device
        generator = torch.Generator(device).manual_seed(count)
        query = torch.randn(count, self.heads, STAGED_BYTES, generator=generator, device=device).bfloat16()
        positions = torch.randint(0, self.rows, (count, self.topk), generator=generator, device=device).int()
        return query, positions, torch.zeros(count, dtype=torch.int32, device=device)

    def _layout(self) -> Layout:
        if self.layout is None:
            raise Unavailable("the workspace is 0 bytes")
        return self.layout

    def _us(self, call: Any) -> float:
        return self.clock.median(self.clock.ready(call), cold=True)


def staged_rows(kernel: Any) -> StagedRows:
    """What the kernel allocates, as `flashinfer_nvfp4.staging` counts it."""
    from flashinfer_nvfp4.staging import ROWS

    return ROWS if kernel.dtype == torch.float8_e4m3fn else replace(ROWS, row_bytes=2 * STAGED_BYTES)


def stock_kernel(device: Any, heads: int, pass_tokens: int) -> Any:
    """TRTLLM-gen, with the workspace that vLLM gives it; raises `Unavailable`."""
    if torch.cuda.get_device_capability()[0] != 10:
        raise Unavailable("TRTLLM-gen's sparse MLA needs compute capability 10.x; prefill is direct here")
    from flashinfer_nvfp4.trtllm import TrtllmRows, missing

    if why := missing():
        raise Unavailable(why)
    slab = 2048 * heads * pass_tokens + (1 << 20)
    return TrtllmRows(SCALE, 192, torch.zeros(TRTLLM_WORKSPACE + slab, dtype=torch.int8, device=device))


def measured_costs(found: dict[str, float], heads: int) -> dict[str, float] | None:
    """`Costs` of this device, None where no stock kernel was timed.

    ``direct`` is told for 16 heads; a part costs its lists, the shortest launch, and a merge.
    """
    if "staged" not in found:
        return None
    costs = Costs(
        direct=found["direct"] / -(-heads // 16),
        staged=found["staged"] + found["lists"],
        part=found["lists"] + found["shortest"] + found["merge"],
        row=found["row"],
    )
    return asdict(costs)
