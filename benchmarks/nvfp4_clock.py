"""Times of launches on a GPU, what its memory allows, and how much time there is left. See nvfp4_gpu.py."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Budget", "Clock", "floor_us", "ratio", "table"]

Call = Callable[[], Any]

COPIED_BYTES = 256 << 20


class Budget:
    """Seconds that a run may take; what begins after them is skipped by name."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.end = now() + seconds
        self.skipped: list[str] = []

    def allows(self, name: str) -> bool:
        """Whether there is time left; if not, ``name`` is among the skipped."""
        if self.now() < self.end:
            return True
        self.skipped.append(name)
        return False


class Clock:
    """Microseconds of a launch, with the device's L2 cache emptied before it (cold) or as the last launch left it.

    A launch is recorded in a CUDA graph, so that the host's part is not in the time. On a CPU, which is for trying
    this program out, a launch is called as it is.
    """

    def __init__(self, device: str, repeat: int) -> None:
        self.device = device
        self.repeat = repeat
        self.cuda = device == "cuda"
        self.flushed = torch.empty(self._flush_bytes() if self.cuda else 0, dtype=torch.uint8, device=device)

    def _flush_bytes(self) -> int:
        """Four times the L2 cache, and never little: a smaller buffer would stay in it."""
        return max(COPIED_BYTES, 4 * int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0)))

    def ready(self, call: Call) -> Call:
        """The launch as a CUDA graph, compiled and warm."""
        if not self.cuda:
            return call
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay

    def median(self, launch: Call, *, cold: bool) -> float:
        """Median of as many launches as the clock repeats; ``launch`` as `ready` gives it."""
        return statistics.median(self.once(launch, cold=cold) for _ in range(self.repeat))

    def once(self, launch: Call, *, cold: bool = True) -> float:
        if not self.cuda:
            began = time.perf_counter()
            launch()
            return (time.perf_counter() - began) * 1e6
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if cold:
            self.flushed.zero_()
        start.record()
        launch()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3

    def bytes_per_microsecond(self) -> float:
        """What the device moves when it copies, read and written bytes together: the best of five."""
        source = torch.zeros(COPIED_BYTES if self.cuda else 1 << 20, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * source.numel() / min(self.once(lambda: target.copy_(source)) for _ in range(5))


def floor_us(rows: int, row_bytes: int, speed: float) -> float:
    """Microseconds to read ``rows`` distinct rows once, at ``speed`` bytes a microsecond: no cold launch is faster."""
    return rows * row_bytes / speed


def ratio(one: float | None, other: float | None) -> float | None:
    """How many times as long ``one`` takes as ``other``; None where either was not measured."""
    return round(one / other, 2) if one is not None and other else None


def table(rows: list[dict[str, Any]], columns: list[str]) -> str:
    """Rows as aligned text; what a row does not have is empty."""
    texts = [columns, *([_text(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[place]) for line in texts) for place in range(len(columns))]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in texts)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)
