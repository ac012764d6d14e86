"""Whether a fold leaves a layer's FP8 query in range.

Sparse MLA kernels take the absorbed query, ``q_nope @ W_UK`` beside the rotated part, in e4m3 with one scale for all.
A fold by ``2**k`` divides its latent part by ``2**k`` and leaves the other. e4m3 keeps its full precision between
2**-6 and 448 only, so a query that becomes too small or too large loses what the fold has gained.

The size of the query needs no data either: it is a linear map of a normalized vector. With ``n`` of root mean square
one and no preferred direction, a head's latent query is ``W_UK.T @ W_Q @ diag(w) @ n``, and its mean square over the
512 channels is the squared Frobenius norm of that matrix over 512.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from flashinfer_nvfp4.errors import FoldRefused
from flashinfer_nvfp4.exponents import PLAIN
from flashinfer_nvfp4.rowformat import E2M1_VALUES, LATENT

__all__ = ["QUERY_RANGE", "absorbed_query_rms", "check_queries", "check_query_range", "limited_exponents"]

_FORMS = ("weight", "weight_scale_inv", "weight_scale", "weight_scale_2", "weight_packed")

QUERY_RANGE = (2.0**-4, 2.0**5)
"""Root mean squares that e4m3 holds as well as it holds 1: below, too many values are subnormal; above, the tails
of ordinary distributions (14 times the root mean square) reach 448."""


def absorbed_query_rms(
    q_norm_weight: torch.Tensor, q_b: torch.Tensor, kv_b: torch.Tensor, *, heads: int, nope: int, rope: int, value: int
) -> torch.Tensor:
    """Root mean square of each head's latent query, float64 [heads], from the weights alone.

    ``q_norm_weight`` [rank]: ``q_a_layernorm``; ``q_b`` [heads * (nope + rope), rank]: ``q_b_proj``; ``kv_b``
    [heads * (nope + value), 512]: ``kv_b_proj``; all dense. GLM-5.3: nope 192, rope 64, value 256, rank 2048.
    Raises `FoldRefused` for other shapes.
    """
    if q_b.shape != (heads * (nope + rope), len(q_norm_weight)) or kv_b.shape != (heads * (nope + value), LATENT):
        raise FoldRefused(
            f"q_b_proj {list(q_b.shape)} behind a norm of {len(q_norm_weight)}, kv_b_proj {list(kv_b.shape)}",
            f"they are not those of {heads} heads with nope={nope}, rope={rope}, value={value}",
            f"[heads * (nope + rope), rank] and [heads * (nope + value), {LATENT}]",
            "Pass the sizes of this worker's share of the model",
        )
    w_q = (q_b.double() * q_norm_weight.double()).view(heads, nope + rope, -1)[:, :nope]
    w_uk = kv_b.double().view(heads, nope + value, LATENT)[:, :nope]
    # |A.T B|^2 = sum of the elementwise product of A A.T and B B.T: two small Gram matrices instead of the product.
    squared = ((w_uk @ w_uk.mT) * (w_q @ w_q.mT)).sum((-1, -2))
    return (squared / LATENT).clamp(min=0).sqrt()


def check_queries(
    tensors: Mapping[str, torch.Tensor],
    exponents: Mapping[str, int],
    *,
    heads: int,
    nope: int,
    rope: int,
    value: int,
    scale: float = 1.0,
) -> None:
    """`check_query_range` of every layer of ``exponents``, from its unfolded weights alone.

    ``tensors``: by name, as `flashinfer_nvfp4.fold.LatentFolds.apply` takes them, with ``q_a_layernorm`` and
    ``q_b_proj`` beside ``kv_b_proj``; each plain; FP8 with ``weight_scale_inv`` for blocks of 128 x 128 or with
    ``weight_scale`` for the tensor or for each output; MXFP8; or ModelOpt's NVFP4. ``heads``: of these tensors, so a
    worker's share under tensor parallelism. Raises `FoldRefused` for a layer out of range and for weights in another
    form.
    """
    for layer, exponent in exponents.items():
        rms = _query_rms(tensors, layer, heads=heads, nope=nope, rope=rope, value=value)
        check_query_range(layer, rms, exponent, scale)


def limited_exponents(
    tensors: Mapping[str, torch.Tensor],
    exponents: Mapping[str, int],
    *,
    heads: int,
    nope: int,
    rope: int,
    value: int,
    scale: float = 1.0,
) -> dict[str, int]:
    """``exponents``, each moved towards 0 until `check_queries`, whose arguments these are, would pass: often not at
    all. A smaller fold is as exact as a larger one, and only leaves smaller scales in the rows."""
    limited = {}
    for layer, exponent in exponents.items():
        rms = _query_rms(tensors, layer, heads=heads, nope=nope, rope=rope, value=value)
        check_query_range(layer, rms, 0, scale)  # that they are sizes
        sizes = rms.double().flatten() / scale
        limited[layer] = _nearest(sizes[sizes > 0], exponent)
    return limited


def _query_rms(tensors: Mapping[str, torch.Tensor], layer: str, **sizes: int) -> torch.Tensor:
    prefix = f"{layer}." if layer else ""
    norm, q_b, kv_b = (_dense(tensors, prefix + part) for part in ("q_a_layernorm", "q_b_proj", "kv_b_proj"))
    return absorbed_query_rms(norm, q_b, kv_b, **sizes)


def check_query_range(layer: str, rms: torch.Tensor, exponent: int, scale: float = 1.0) -> None:
    """Refuse a fold by ``2**exponent`` that moves a head's latent query out of e4m3's range, or farther out of it.

    ``rms``: of each head before the fold, as `absorbed_query_rms` has it or as measured; heads of zeros do not count.
    ``scale``: what the query is divided by before it becomes e4m3. Raises `FoldRefused`, also for sizes that are none.
    """
    low, high = QUERY_RANGE
    if not (rms.isfinite() & (rms >= 0)).all() or not 0 < scale < math.inf:
        raise FoldRefused(
            f"{layer}: queries of root mean square {rms.flatten().tolist()} over a scale of {scale}",
            "they have no size that a fold could move",
            "finite sizes of 0 or more, a positive finite scale",
            "Look for NaN and infinities in q_a_layernorm, q_b_proj and kv_b_proj of this layer",
        )
    before = rms.double().flatten() / scale
    before = before[before > 0]
    after = before * 2.0**-exponent
    bad = (
        (after < low) if exponent > 0 else (after > high) if exponent < 0 else torch.zeros_like(after, dtype=torch.bool)
    )
    if bad.any():
        worst = after[bad].min() if exponent > 0 else after[bad].max()
        raise FoldRefused(
            f"{layer}: folded by 2**{exponent}, {int(bad.sum())} of {after.numel()} heads have queries of root mean "
            f"square {'down' if exponent > 0 else 'up'} to {worst.item():.3g}",
            "e4m3 with this query scale would lose more there than the fold gains",
            f"{low:g} to {high:g}",
            f"Use exponent {_nearest(before, exponent)} for this layer, or another query scale",
        )


def _nearest(before: torch.Tensor, exponent: int) -> int:
    """The exponent nearest to the wanted one, towards 0, at which no head is out of range on that side; 0 if none."""
    low, high = QUERY_RANGE
    step = 1 if exponent > 0 else -1
    for k in range(exponent, 0, -step):
        after = before * 2.0**-k
        if not ((after < low) if step > 0 else (after > high)).any():
            return k
    return 0


def _dense(tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """The weight of a module in float32, its scales multiplied in."""
    parts = {part: tensors[f"{name}.{part}"] for part in _FORMS if f"{name}.{part}" in tensors}
    weight = parts.pop("weight", None)
    kinds = {part: tensor.dtype for part, tensor in parts.items()}
    if weight is not None:
        rows, columns = weight.shape[0], weight.shape[-1]
        if weight.dtype in PLAIN and not parts:
            return weight.float()
        if weight.dtype == torch.float8_e4m3fn and kinds.get("weight_scale_inv") in PLAIN and len(parts) == 1:
            scales = parts["weight_scale_inv"].float().repeat_interleave(128, 0)[:rows]
            return weight.float() * scales.repeat_interleave(128, 1)[:, :columns]
        if weight.dtype == torch.float8_e4m3fn and set(parts) == {"weight_scale"}:
            scales = parts["weight_scale"]
            if scales.dtype in PLAIN and scales.numel() in (1, rows):
                return weight.float() * scales.float().view(-1, 1)
            if scales.dtype in (torch.uint8, torch.float8_e8m0fnu) and scales.shape == (rows, columns // 32):
                powers = torch.exp2(scales.view(torch.uint8).float() - 127)
                return weight.float() * powers.repeat_interleave(32, 1)
        if weight.dtype == torch.uint8 and set(parts) == {"weight_scale", "weight_scale_2"}:
            scales, outer = parts["weight_scale"], parts["weight_scale_2"]
            if scales.dtype == torch.float8_e4m3fn and scales.shape == (rows, columns // 8) and outer.numel() == 1:
                codes = torch.stack((weight & 15, weight >> 4), -1).flatten(1).long()
                values = weight.new_tensor(E2M1_VALUES, dtype=torch.float32)[codes & 7] * (1 - 2 * (codes >> 3))
                return values * (scales.float() * outer.float().view(1, 1)).repeat_interleave(16, 1)
    raise FoldRefused(
        f"{name} with {', '.join(f'{part} of {kind}' for part, kind in kinds.items()) or 'no scale'}, weight "
        f"{'missing' if weight is None else f'of {weight.dtype}'}",
        "its size is not known, so neither is the query's",
        "plain weights, FP8 with weight_scale_inv or weight_scale, MXFP8, and NVFP4 as ModelOpt has it",
        "Measure the queries and call check_query_range",
    )
