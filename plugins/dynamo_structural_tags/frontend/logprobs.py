"""Log probabilities as OpenAI has them, from what Dynamo's workers send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynamo_structural_tags.frontend.detokenize import TokenBytes

__all__ = ["entries"]


def entries(
    numbers: Sequence[int],
    chosen: Sequence[float | None] | None,
    alternatives: Sequence[Sequence[dict[str, Any]] | None] | None,
    width: int,
    table: TokenBytes,
    *,
    as_ids: bool = False,
) -> list[dict[str, Any]]:
    """One entry for each token.

    numbers: token ids. chosen: their log probabilities. alternatives: for each position, candidates with ``token_id``,
    ``logprob`` and ``rank``, the chosen one among them. width: how many of them the client wants, best first.
    as_ids: write tokens as ``token_id:N``.
    """
    if not chosen:
        return []
    found = []
    for place, (number, logprob) in enumerate(zip(numbers, chosen, strict=False)):
        if logprob is None:
            continue
        entry = _entry(number, float(logprob), table, as_ids)
        candidates = (alternatives[place] if alternatives and place < len(alternatives) else None) or ()
        ranked = sorted(candidates, key=lambda one: one.get("rank") or len(candidates) + 1)[:width]
        entry["top_logprobs"] = [
            _entry(one["token_id"], float(one["logprob"]), table, as_ids) for one in ranked if "token_id" in one
        ]
        found.append(entry)
    return found


def _entry(number: int, logprob: float, table: TokenBytes, as_ids: bool) -> dict[str, Any]:
    data = f"token_id:{number}".encode() if as_ids else table[number]
    return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}
