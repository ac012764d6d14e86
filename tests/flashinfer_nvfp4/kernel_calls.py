"""Calling the kernels from tests: in a child process that interprets Triton, or on a GPU in this one.

Triton decides when it is imported whether it interprets, so the tests' own process cannot do it: vLLM may have
imported Triton there, and what tests start would inherit the setting.
"""

from __future__ import annotations

import importlib.util
import io
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from flashinfer_nvfp4.errors import LaunchRefused

__all__ = [
    "TRITON",
    "KernelRefused",
    "Kernels",
    "cache_of",
    "cached",
    "interpreter",
    "missing",
    "read",
    "values_of",
    "written",
]


TRITON = Path(sys.prefix) / "triton"
"""Where ``make test`` puts Triton, out of vLLM's sight."""


def missing() -> str | None:
    """Why Triton cannot be had here."""
    if importlib.util.find_spec("triton") is None and not (TRITON / "triton").is_dir():
        return f"needs Triton in {TRITON}, which line 0.31.0 has: make test"
    return None


class KernelRefused(Exception):
    """A launch was refused; `LaunchRefused` where it was raised."""


class Kernels:
    """The kernels' functions on CPU tensors, which lie on ``device`` as they lie here; tensors written to come back."""

    def __init__(self, device: str, run: Callable[..., Any] | None = None) -> None:
        self.device = device
        self.run = run or (lambda function, *args: function(*args))

    def encode(self, latent: Any, rope: Any, cache: Any, slots: Any, policy: str = "rtn") -> Any:
        """The cache after `flashinfer_nvfp4.kernels.encode.encode`."""
        return self._call("kernels.encode", "encode", (latent, rope, cache, slots), {"policy": policy})[1][2]

    def gather(self, cache: Any, slots: Any, *args: Any, **kwargs: Any) -> Any:
        """The result of `flashinfer_nvfp4.kernels.gather.gather`."""
        return self._call("kernels.gather", "gather", (cache, slots, *args), kwargs)[0]

    def context_slots(self, *args: Any) -> Any:
        """The result of `flashinfer_nvfp4.context_gather.context_slots`."""
        return self._call("context_gather", "context_slots", args, {})[0]

    def decode(self, query: Any, cache: Any, indices: Any, scale: float, **kwargs: Any) -> tuple[Any, Any]:
        """The results of `flashinfer_nvfp4.kernels.decode.decode`."""
        return self._call("kernels.decode", "decode", (query, cache, indices, scale), kwargs)[0]

    def stage(self, cache: Any, block_table: Any, windows: Any, longest: int, out: Any, **kwargs: Any) -> Any:
        """The buffer after `flashinfer_nvfp4.kernels.stage.stage`."""
        return self._call("kernels.stage", "stage", (cache, block_table, windows, longest, out), kwargs)[1][4]

    def staged_indices(self, *args: Any) -> tuple[Any, Any]:
        """The lists and counts after `flashinfer_nvfp4.kernels.stage.staged_indices`."""
        after = self._call("kernels.stage", "staged_indices", args, {})[1]
        return after[3], after[4]

    def merge_into(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        """Both halves of the result and its log-sum-exp after `flashinfer_nvfp4.kernels.merge.merge_into`."""
        after = self._call("kernels.merge", "merge_into", args, kwargs)[1]
        return after[0], after[1], after[2]

    def _call(self, module: str, name: str, args: Any, kwargs: Any) -> Any:
        # As bytes: multiprocessing would move tensors to memory that both processes share.
        answer = read(self.run(_call, written((module, name, args, kwargs, self.device))))
        if isinstance(answer, str):
            raise KernelRefused(answer)
        return answer


def _call(request: bytes) -> bytes:
    """Call a function; what it returns and its arguments afterwards, or why it refused."""
    module, name, args, kwargs, device = read(request)
    function = getattr(importlib.import_module(f"flashinfer_nvfp4.{module}"), name)
    there = [_moved(arg, device) for arg in args]
    try:
        result = function(*there, **{key: _moved(value, device) for key, value in kwargs.items()})
    except LaunchRefused as refusal:
        return written(str(refusal))
    if isinstance(result, tuple):
        result = tuple(_moved(each, "cpu") for each in result)
    return written((_moved(result, "cpu"), [_moved(arg, "cpu") for arg in there]))


def written(value: Any) -> bytes:
    """Tensors with their storage and strides, and whatever pickle takes."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def read(data: bytes) -> Any:
    """What `written` was given."""
    return torch.load(io.BytesIO(data), weights_only=False)


def _moved(value: Any, device: str) -> Any:
    """A tensor on the device with its storage, offset and strides; tensors on "meta" and other values as they are."""
    if not isinstance(value, torch.Tensor) or value.device.type in (device, "meta"):
        return value
    storage = value.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage, 0, (storage.nbytes(),))
    moved = torch.empty(0, dtype=value.dtype, device=device)
    return moved.set_(whole.to(device).untyped_storage(), value.storage_offset(), value.shape, value.stride())


@contextmanager
def interpreter() -> Iterator[Callable[..., Any]]:
    """``run(function, *args)`` calls a module-level function where Triton interprets."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_interpret) as pool:
        yield lambda function, *args: pool.submit(function, *args).result(timeout=540)


def _interpret() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    sys.path.append(str(TRITON))
    torch.set_num_threads(1)


def cache_of(rows: Any, size: int = 64, apart: int = 0, filler: int = 0xFF) -> Any:
    """A cache with ``rows`` [n, 352] in its first slots, blocks of ``size`` rows ``apart`` bytes or back to back.

    Everything else, also what lies between the blocks, is ``filler``: as 0xFF, rows of NaN.
    """
    blocks = -(-len(rows) // size)
    apart = apart or size * 352
    memory = torch.full((blocks * apart,), filler, dtype=torch.uint8)
    cache = memory.as_strided((blocks, size, 352), (apart, 352, 1))
    slots = torch.arange(len(rows))
    cache[slots // size, slots % size] = rows
    return cache


def cached(cache: Any, slots: Any) -> Any:
    """The rows [n, 352] in these slots."""
    size = cache.shape[1]
    return cache[slots // size, slots % size]


def values_of(rows: Any) -> Any:
    """Float32 [n, 576] by the codec."""
    from flashinfer_nvfp4.codec import decode_rows

    return torch.cat(decode_rows(rows), -1)
