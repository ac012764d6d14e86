"""Row formats: how one token's latent and RoPE parts are stored in the MLA cache.

Formats plug in through the entry point group ``vllm_cpu_dsa.row_formats``; each entry names a class that
satisfies `RowFormat` and is built without arguments. ``--kv-cache-dtype`` chooses among them.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from vllm_cpu_dsa.errors import Unsupported

if TYPE_CHECKING:
    import torch

__all__ = ["GROUP", "LATENT", "ROPE", "Fp8Rows", "PlainRows", "RowFormat", "row_format", "row_formats"]

GROUP = "vllm_cpu_dsa.row_formats"
LATENT = 512
ROPE = 64


@runtime_checkable
class RowFormat(Protocol):
    """One way of storing a row. Plain class attributes serve for the three properties."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def cache_dtypes(self) -> tuple[str, ...]:
        """The ``--kv-cache-dtype`` values that it serves."""
        ...

    @property
    def row_bytes(self) -> int | None:
        """Size of a row, or None if a row is 576 elements of the cache's dtype."""
        ...

    def encode(self, latent: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        """Rows [n, width] of ``latent`` [n, 512] and ``rope`` [n, 64], given in the model's dtype.

        With row_bytes, uint8 [n, row_bytes]; without, [n, 576] in the given dtype.
        """
        ...

    def decode(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The latent [n, 512] and RoPE [n, 64] parts of rows as `encode` made them, in any float dtype."""
        ...


class PlainRows:
    """Rows as they are: 512 latent and 64 RoPE elements in the dtype of the model."""

    name = "plain"
    cache_dtypes: ClassVar[tuple[str, ...]] = ("auto", "bfloat16", "float16")
    row_bytes = None

    def encode(self, latent: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        """[n, 576], the parts side by side."""
        import torch

        return torch.cat((latent, rope), dim=-1)

    def decode(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the two parts of [n, 576]."""
        return rows[:, :LATENT], rows[:, LATENT:]


class Fp8Rows:
    """Rows of 576 FP8 e4m3 values with the scale 1, which is what vLLM writes for a checkpoint without KV scales.

    Rounded to nearest even and saturated at 448; NaN stays NaN.
    """

    name = "fp8"
    cache_dtypes: ClassVar[tuple[str, ...]] = ("fp8", "fp8_e4m3")
    row_bytes = LATENT + ROPE

    def encode(self, latent: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        """uint8 [n, 576], the parts side by side."""
        import torch

        largest = torch.finfo(torch.float8_e4m3fn).max
        row = torch.cat((latent, rope), dim=-1).float().clamp(-largest, largest)
        return row.to(torch.float8_e4m3fn).view(torch.uint8)

    def decode(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The two parts of uint8 [n, 576] in float32, exactly."""
        import torch

        values = rows.view(torch.float8_e4m3fn).float()
        return values[:, :LATENT], values[:, LATENT:]


@cache
def row_formats() -> dict[str, RowFormat]:
    """Every installed format by the ``--kv-cache-dtype`` values that it serves."""
    serving: dict[str, RowFormat] = {}
    for entry in entry_points(group=GROUP):
        rows = entry.load()()
        if not isinstance(rows, RowFormat):
            raise Unsupported(
                f"row format {entry.name!r} = {entry.value!r}",
                "it lacks parts of vllm_cpu_dsa.rows.RowFormat",
                "name, cache_dtypes, row_bytes, encode, decode",
                "Complete the class or uninstall the package that declares it",
            )
        for cache_dtype in rows.cache_dtypes:
            if (other := serving.setdefault(cache_dtype, rows)) is not rows:
                raise Unsupported(
                    f"row formats {other.name!r} and {rows.name!r}",
                    f"both serve --kv-cache-dtype {cache_dtype}, so what a row means would depend on chance",
                    "one format for each dtype",
                    "Uninstall one of them",
                )
    return serving


def row_format(cache_dtype: str) -> RowFormat:
    """The format that serves ``--kv-cache-dtype cache_dtype``; raises `Unsupported` if none does."""
    serving = row_formats()
    if cache_dtype in serving:
        return serving[cache_dtype]
    installed = ", ".join(f"{dtype} ({rows.name})" for dtype, rows in sorted(serving.items()))
    raise Unsupported(
        f"--kv-cache-dtype {cache_dtype}",
        "no installed row format writes and reads such rows on the CPU",
        installed or f"none, because no package declares an entry point in {GROUP}",
        "Choose one of these, or install the plugin that brings the format",
    )
