"""One short string that says how rows are to be read: format, codec policy and folds. Standard library only.

Prefill, decode and whatever stores blocks must have the same one: a row folded by another power of two than the
reader's decodes without any error to a wrong latent.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping

from flashinfer_nvfp4.errors import FingerprintMismatch

__all__ = ["FORMAT", "fingerprint", "require_same"]

FORMAT = "nvfp4_ds_mla-352-1"
"""Cache dtype, bytes of a row, and a number that grows when the meaning of the bytes changes."""
UNFOLDED = "unfolded"

_PARTS = ("row format", "codec policy", "latent folds")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|$)")


def fingerprint(policy: str, exponents: Mapping[str, int]) -> str:
    """``FORMAT/policy/folds``, for example ``nvfp4_ds_mla-352-1/search/78-0a1b2c3d4e5f6071``.

    ``exponents``: k by layer name, as `flashinfer_nvfp4.fold` returns it, all layers of the model, its MTP layer
    included. What counts of a name is its layer number, if it has one, so wrappers around a model make no difference;
    nor do layers with k = 0. The last part is the number of folded layers and 64 bits of SHA-256 over them.
    Raises ValueError for an empty policy or one with a slash, and for one layer with two exponents.
    """
    if not policy or "/" in policy:
        raise ValueError(
            f"policy={policy!r} cannot be told from the other parts; allowed: a name without '/'. Rename it."
        )
    folded: dict[str, int] = {}
    for name, exponent in exponents.items():
        match = _LAYER.search(name)
        layer = match[1] if match else name
        if folded.setdefault(layer, exponent) != exponent:
            raise ValueError(
                f"layer {layer} has the exponents {folded[layer]} and {exponent}, so its rows have no one meaning; "
                f"allowed: one exponent a layer. Fold it once; the second name was {name!r}."
            )
    folded = {layer: exponent for layer, exponent in folded.items() if exponent}
    if not folded:
        return f"{FORMAT}/{policy}/{UNFOLDED}"
    digest = hashlib.sha256(json.dumps(sorted(folded.items())).encode()).hexdigest()[:16]
    return f"{FORMAT}/{policy}/{len(folded)}-{digest}"


def require_same(mine: str | None, theirs: str | None, whose: str) -> None:
    """Raise `FingerprintMismatch`, telling the parts that differ, unless both fingerprints are equal.

    None stands for rows without a fingerprint, such as a block that was stored without one: nobody knows what they
    mean, so they are refused, too. ``whose``: what ``theirs`` belongs to, for the message, such as "prefill worker
    10.0.0.7" or "stored block".
    """
    if mine and mine == theirs:
        return
    ours, other = (mine or "").split("/"), (theirs or "").split("/")
    parts = [part for part, a, b in zip(_PARTS, ours, other, strict=False) if a != b]
    what = " and ".join(parts) if len(ours) == len(other) == len(_PARTS) else "the form of the fingerprint"
    raise FingerprintMismatch(
        f"{whose} has rows {theirs!r}, this side {mine!r}",
        f"they differ in {what}, and rows of the one must not be read as rows of the other",
        "equal fingerprints",
        "Give all workers the same checkpoint, plugin release, codec policy and folds; drop blocks stored under others",
    )
