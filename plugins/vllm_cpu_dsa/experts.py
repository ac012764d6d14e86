"""The CPU's expert kernel under expert parallelism, where a rank has only some of the experts."""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["of_this_rank"]


def of_this_rank(original: Any) -> Any:
    """vLLM's ``CPUUnquantizedExperts.apply``, so that it sums over the experts of this rank and leaves out the others.

    The kernel takes every id for the number of one of its experts. It gets a row for each pair of a token and an
    expert that is here, and a token's rows are added up. vLLM's modular kernel passes all arguments by name.
    """

    @functools.wraps(original)
    def apply(self: Any, **call: Any) -> None:
        if call["expert_map"] is None:
            original(self, **call)
            return
        # [experts of the model]: the number of each on this rank, -1 for those of other ranks.
        numbers = call["expert_map"][call["topk_ids"].long()]
        token, choice = (numbers >= 0).nonzero(as_tuple=True)
        output = call["output"]
        parts = output.new_empty((len(token), output.shape[1]))
        if len(token):
            pairs = {
                "output": parts,
                "hidden_states": call["hidden_states"][token],
                "topk_weights": call["topk_weights"][token, choice, None],
                "topk_ids": numbers[token, choice, None].to(call["topk_ids"].dtype),
                "expert_map": None,
            }
            original(self, **(call | pairs))
        output.zero_().index_add_(0, token, parts)

    return apply
