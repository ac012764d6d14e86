"""The figures as tables of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cache_accuracy.synthetic import KINDS, layer_sizes
from flashinfer_nvfp4.plan import row_bytes

__all__ = ["SHOWN", "mean_errors", "model_lines", "synthetic_lines"]

SHOWN = (0, 19, 38, 58, 77)
"""Layers that have a line of their own; the mean is of all."""
STOCK = "rtn"

_TITLES = {"rows": "rows, % of the latent", "attention": "attention, % of the output"}


def mean_errors(layers: dict[str, dict[str, float]]) -> dict[str, float]:
    """Mean over the layers of the relative squared error, by setting."""
    names = next(iter(layers.values()))
    return {name: sum(errors[name] for errors in layers.values()) / len(layers) for name in names}


def synthetic_lines(found: dict[str, Any]) -> Iterator[str]:
    """Tables of ``{"rows": {kind: {layer: {setting: squared error}}}, "attention": ...}``."""
    sizes = layer_sizes()
    for part, title in _TITLES.items():
        names = list(mean_errors(found[part][KINDS[0]]))
        yield f"{title:28}" + "".join(f"{name:>15}" for name in names)
        for kind in KINDS:
            layers = found[part][kind]
            for layer, errors in layers.items():
                if int(layer) in SHOWN or len(layers) <= len(SHOWN):
                    yield _line(f"{kind} {layer}, max {sizes[int(layer)]:.2g}", errors)
            if len(layers) > 1:
                yield _line(f"{kind}, all {len(layers)}", mean_errors(layers))
        yield ""


def model_lines(found: dict[str, Any]) -> Iterator[str]:
    """Tables of what `cache_accuracy.compare.compared` returns."""
    yield f"{found['model']}, {found['positions']} next tokens; vLLM {found['vllm']} on {found['device']}"
    known = "the whole vocabulary" if found["whole_vocabulary"] else "the likeliest tokens (a lower bound)"
    yield f"{'cache':16}{'bytes a row':>12}{'KL to bf16, nats':>20}{'to rtn':>10}{'same token':>13}   over {known}"
    divergences = found["divergences"]
    stock = divergences.get(STOCK, {}).get("kl")
    for name, one in divergences.items():
        ratio = f"{one['kl'] / stock:.2f}" if stock else ""
        unseen = "" if found["whole_vocabulary"] else f"   {one['unseen']:.2%} unseen"
        size = row_bytes(one["cache_dtype"])
        yield f"{name:16}{size:>12}{one['kl']:>20.5f}{ratio:>10}{one['same_token']:>13.1%}{unseen}"
    for name, why in found["refused"].items():
        yield f"{name:16}refused: {why}"
    if any(found["needles"].values()):
        yield ""
        yield f"{'needle':16}{'depth':>8}{'tokens':>10}{'found':>8}{'recall':>9}   answer"
    for name, needles in found["needles"].items():
        for one in needles:
            recall = "unknown" if one["recall"] is None else f"{one['recall']:.0%}"
            answered = "yes" if one["found"] else "no"
            yield f"{name:16}{one['depth']:>8.2f}{one['tokens']:>10}{answered:>8}{recall:>9}   {one['answer']!r}"


def _line(label: str, errors: dict[str, float]) -> str:
    cells = (f"{100 * error**0.5:.2f} ({error / errors[STOCK]:.3f})" for error in errors.values())
    return f"{label:28}" + "".join(f"{cell:>15}" for cell in cells)
