"""Which weights an answer came from.

- `base`: what the weights at the start are called.
- `begin`, `end`: the version that was declared to the engine (vLLM's ``weight_version``, or Dynamo's) as the request
  began and ended; null before any was. Where they differ, the answer is of both.
- `spans`: from vLLM 0.32 on, ``[version, start, end]`` of the output's tokens.
- `epoch`: at both ends, how often weights were touched through this process, counted at the start and at the end of
  each update. So an answer is of one set of weights if both are equal and even, also where nothing is declared.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["UNDECLARED", "Weights"]

#: vLLM's version before any was declared.
UNDECLARED = "default"

#: Calls to all workers that change weights, by name; those that only prepare or read them do not.
_CHANGES = re.compile(r"(?!init_|get_|destroy_|check_).*weight", re.IGNORECASE)


class Weights:
    """What is known in one process of its engine's weights. base: their name at the start."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.epoch = 0
        self.declared: str | None = None

    def touched(self) -> None:
        """An update begins, or has ended."""
        self.epoch += 1

    def declare(self, version: Any) -> None:
        """The weights that are served from now on have this version. version: whatever a trainer calls it."""
        self.declared = str(version)

    @staticmethod
    def changed_by(method: str) -> bool:
        """Whether a call of this method on all workers changes weights."""
        return _CHANGES.match(method) is not None
