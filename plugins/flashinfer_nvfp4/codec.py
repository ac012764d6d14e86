"""Rows from latents and latents from rows, bit for bit, in plain torch on any device.

This is the reference that kernels are compared with, and fast enough to write the rows of a CPU engine.
Every step is one float32 operation with the rounding of IEEE 754 (to nearest, ties to even), so the bytes do not
depend on the device, on the batch or on how the input lies in memory. For one block of 16 latent elements x:

1. ``amax = max |x|``. A candidate for the scale is ``e4m3(max(amax * c, 2**-9))``, rounded to nearest and saturated at
   448, so that no scale is zero; ``c`` is the float32 nearest to 1/6, or 1/4.
2. An element becomes ``e2m1(x * (1 / scale))``, with the float32 reciprocal, rounded to nearest (ties to the even
   code) and saturated at 6. A product of exactly zero is stored as +0, a negative one that rounds to zero as -0.
3. The error of a candidate is the sum of ``(value * scale - |x|)**2``, each square rounded, added pairwise: element i
   and i + 8, then i and i + 4, i + 2, i + 1.

The policies differ in the candidates: ``rtn`` has amax/6, as the stock writer; ``four_over_six`` adds amax/4;
``search`` adds the e4m3 codes from 2 below to 5 above that of amax/6. The least error wins; among equals amax/6, then
the smallest code. RoPE elements are rounded to e4m3 and saturated at 448; their zeros keep the sign.

Finite values of any size are encoded, those beyond the largest row value (2688 latent, 448 RoPE) as that value.
Infinities and NaN are refused: a row cannot hold them, and one would spoil the scale of its 15 neighbours. Kernels,
which cannot raise, agree with this module on finite values.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from flashinfer_nvfp4 import rowformat as row
from flashinfer_nvfp4.errors import RowsRefused
from flashinfer_nvfp4.policy import POLICIES, Policy

__all__ = ["POLICIES", "Policy", "decode_rows", "encode_rows"]

WINDOW = (-2, -1, 1, 2, 3, 4, 5)
"""Codes that ``search`` tries around that of amax/6; wider windows lower the error by less than 0.1 %."""

CHUNK = 256
"""Rows at a time: bounds the temporaries (half a MiB each) and keeps them in cache."""

INPUTS = (torch.bfloat16, torch.float16, torch.float32)


def encode_rows(latent: torch.Tensor, rope: torch.Tensor, policy: Policy = "rtn") -> torch.Tensor:
    """Rows, uint8 [..., 352], of ``latent`` [..., 512] and ``rope`` [..., 64].

    Both are bfloat16, float16 or float32, finite, on one device and with the same leading shape, at any strides.
    Raises `RowsRefused` otherwise.
    """
    if policy not in POLICIES:
        raise RowsRefused(
            f"policy={policy!r}", "no such way to choose scales", ", ".join(POLICIES), "Choose one of these"
        )
    _check_values("latent", latent, row.LATENT)
    _check_values("rope", rope, row.ROPE)
    if latent.shape[:-1] != rope.shape[:-1] or latent.device != rope.device:
        raise RowsRefused(
            f"latent {_text(latent)} and rope {_text(rope)}",
            "they are not the two parts of the same tokens",
            "equal leading shapes on one device",
            "Pass both parts of the same tokens",
        )
    rows = torch.empty((*latent.shape[:-1], row.ROW_BYTES), dtype=torch.uint8, device=latent.device)
    flat_rows = rows.view(-1, row.ROW_BYTES)
    flat_latent = latent.detach().reshape(-1, row.LATENT)
    flat_rope = rope.detach().reshape(-1, row.ROPE)
    for part in _chunks(flat_rows.shape[0]):
        _encode(flat_latent[part], flat_rope[part], policy, flat_rows[part])
    return rows


def decode_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The latent [..., 512] and RoPE [..., 64] parts of ``rows`` [..., 352], both float32, exactly.

    Rows are uint8 at any strides. The e4m3 codes 0x7F and 0xFF, which `encode_rows` never writes, are NaN.
    Raises `RowsRefused` for another dtype or width.
    """
    if rows.dtype != torch.uint8 or rows.ndim < 1 or rows.shape[-1] != row.ROW_BYTES:
        raise RowsRefused(
            f"rows {_text(rows)}",
            "these are no rows of this format",
            f"uint8 [..., {row.ROW_BYTES}]",
            "View the cache as uint8 and cut off what pads a block",
        )
    latent = rows.new_empty((*rows.shape[:-1], row.LATENT), dtype=torch.float32)
    rope = rows.new_empty((*rows.shape[:-1], row.ROPE), dtype=torch.float32)
    flat = rows.reshape(-1, row.ROW_BYTES)
    values = torch.tensor(row.E2M1_VALUES, device=rows.device)
    values = torch.cat((values, -values))
    pairs = torch.stack((values.repeat(16), values.repeat_interleave(16)), -1)  # [256, 2], by code byte
    for part in _chunks(flat.shape[0]):
        codes = flat[part, : row.CODE_BYTES].flatten().int()
        elements = pairs.index_select(0, codes).view(-1, row.BLOCKS, row.BLOCK)
        scales = _e4m3_values(flat[part, row.SCALE_OFFSET :]).unflatten(-1, row.SCALE_TABLE).mT.flatten(-2)
        torch.mul(elements, scales.unsqueeze(-1), out=latent.view(-1, row.BLOCKS, row.BLOCK)[part])
        rope.view(-1, row.ROPE)[part] = _e4m3_values(flat[part, row.ROPE_OFFSET : row.SCALE_OFFSET])
    return latent, rope


def _chunks(rows: int) -> Iterator[slice]:
    return (slice(start, start + CHUNK) for start in range(0, rows, CHUNK))


def _encode(latent: torch.Tensor, rope: torch.Tensor, policy: Policy, rows: torch.Tensor) -> None:
    """Fill ``rows`` [n, 352] from ``latent`` [n, 512] and ``rope`` [n, 64]."""
    # Elements first, so that everything per block is one contiguous vector: [16, n * 32].
    blocks = latent.float().reshape(-1, row.BLOCK).t().contiguous()
    magnitudes = blocks.abs()
    amax = magnitudes.amax(0)
    _check_finite("latent", amax)
    scales = _choose_scales(magnitudes, amax, policy)

    elements = blocks * _e4m3_values(scales).reciprocal()
    signs = (elements < 0).to(torch.uint8) << 3
    codes = _codes_of(_round_to_e2m1(elements.abs_())) | signs
    packed = codes[0::2] | (codes[1::2] << 4)
    rows[:, : row.CODE_BYTES].view(-1, row.BLOCKS, row.BLOCK // 2).copy_(packed.t().unflatten(0, (-1, row.BLOCKS)))

    rope = rope.float()
    _check_finite("rope", rope)
    rope_codes = rope.clamp(-row.E4M3_MAX, row.E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)
    rows[:, row.ROPE_OFFSET : row.SCALE_OFFSET] = rope_codes
    rows[:, row.SCALE_OFFSET :] = scales.view(-1, *reversed(row.SCALE_TABLE)).mT.flatten(-2)


def _choose_scales(magnitudes: torch.Tensor, amax: torch.Tensor, policy: Policy) -> torch.Tensor:
    """The e4m3 codes, uint8 [blocks], of the scales of blocks given as [16, blocks] and their maxima."""
    best = _scale_codes(amax, 1 / 6)
    if policy == "rtn":
        return best
    if policy == "four_over_six":
        candidates = [_scale_codes(amax, 1 / 4)]
    else:
        nearest = best.short()
        candidates = [(nearest + step).clamp_(1, row.E4M3_MAX_CODE).to(torch.uint8) for step in WINDOW]
    least = _squared_error(magnitudes, best)
    for codes in candidates:
        error = _squared_error(magnitudes, codes)
        better = error < least
        best = torch.where(better, codes, best)
        least = torch.where(better, error, least)
    return best


def _scale_codes(amax: torch.Tensor, factor: float) -> torch.Tensor:
    scales = (amax * factor).clamp_(row.E4M3_MIN, row.E4M3_MAX)
    return scales.to(torch.float8_e4m3fn).view(torch.uint8)


def _squared_error(magnitudes: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Error, float32 [blocks], of blocks [16, blocks] with the scale codes [blocks]."""
    scales = _e4m3_values(codes)
    errors = _round_to_e2m1(magnitudes * scales.reciprocal()).mul_(scales).sub_(magnitudes)
    errors.mul_(errors)
    while errors.shape[0] > 1:
        half = errors.shape[0] // 2
        errors = errors[:half] + errors[half:]
    return errors[0]


def _round_to_e2m1(magnitudes: torch.Tensor) -> torch.Tensor:
    """Nearest e2m1 values of float32 ``magnitudes`` >= 0, ties to the even code; overwrites its argument.

    The values below 2**(n+1) and from 2**n on (n = 0, 1, 2; 0 also below 1) are the multiples of 2**(n-1). Adding
    2**(n+22), whose last bit counts 2**(n-1), rounds to them, and an even multiple has an even code.
    """
    magnitudes.clamp_(max=row.E2M1_MAX)
    power = (magnitudes.view(torch.int32) & 0x7F800000).view(torch.float32).clamp_(min=1.0)
    shift = power.mul_(2.0**22)
    return magnitudes.add_(shift).sub_(shift)


def _codes_of(values: torch.Tensor) -> torch.Tensor:
    """Codes, uint8, of e2m1 values >= 0: their number of halves 0, 1, 2, 3, 4, 6, 8, 12 counted without the gaps."""
    halves = values.mul(2).to(torch.uint8)
    return halves.clamp(max=4) + ((halves.clamp(4, 8) - 4) >> 1) + ((halves.clamp(min=8) - 8) >> 2)


def _e4m3_values(codes: torch.Tensor) -> torch.Tensor:
    return codes.contiguous().view(torch.float8_e4m3fn).float()


def _text(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} on {tensor.device}"


def _check_values(name: str, tensor: torch.Tensor, width: int) -> None:
    if tensor.dtype not in INPUTS or tensor.ndim < 1 or tensor.shape[-1] != width:
        raise RowsRefused(
            f"{name} {_text(tensor)}",
            f"a row is made of {width} {name} values a token, each exact in float32",
            f"bfloat16, float16 or float32 [..., {width}]",
            "Convert it; another width is another model geometry, which this format cannot hold",
        )


def _check_finite(name: str, values: torch.Tensor) -> None:
    if not bool(values.isfinite().all()):
        bad = values[~values.isfinite()][0].item()
        raise RowsRefused(
            f"{name} holds {bad}", "a row cannot store it", "finite values", "Find the layer that produced it"
        )
