"""How far two models' next-token distributions are apart, from the log probabilities that vLLM reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Distribution", "Divergence", "compare", "kl"]

Distribution = Mapping[int, float]
"""Log probabilities by token: of the whole vocabulary, or of the most likely tokens."""


@dataclass(frozen=True)
class Divergence:
    """Means over positions. kl: in nats. same_token: fraction with the same most likely token.

    unseen: the reference's probability of tokens that were not reported by both; 0 with whole vocabularies.
    """

    kl: float
    same_token: float
    unseen: float
    positions: int


def kl(reference: Distribution, other: Distribution, whole: bool) -> tuple[float, float]:
    """KL(reference || other) in nats, and the reference's probability of what not both have.

    whole: both are of the whole vocabulary. Otherwise all tokens that not both have count as one; merging tokens can
    only lower a divergence, so the result is a lower bound.
    """
    both = [token for token in reference if token in other and reference[token] > -math.inf]
    value = math.fsum(math.exp(reference[token]) * (reference[token] - other[token]) for token in both)
    if whole:
        return value, 0.0
    mine, theirs = (max(1e-9, 1.0 - math.fsum(math.exp(one[t]) for t in both)) for one in (reference, other))
    return value + mine * math.log(mine / theirs), mine


def compare(reference: Sequence[Distribution], other: Sequence[Distribution], whole: bool) -> Divergence:
    """`kl` and agreement over positions; raises ValueError where the two have other numbers of positions."""
    pairs = list(zip(reference, other, strict=True))
    values = [kl(one, two, whole) for one, two in pairs]
    same = sum(max(one, key=one.__getitem__) == max(two, key=two.__getitem__) for one, two in pairs)
    count = len(pairs)
    return Divergence(
        kl=math.fsum(value for value, _ in values) / count,
        same_token=same / count,
        unseen=math.fsum(rest for _, rest in values) / count,
        positions=count,
    )
