"""The outcomes of an answer's tool calls, by whatever package can read the model's format.

A reader is an entry point of the group ``rl_capture.outcomes``: a function of the prompt's text, the answer's text and
its finish reason that returns one ``{"name": ..., "outcome": ...}`` a call, or None for a model that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

__all__ = ["GROUP", "Reader", "readers"]

GROUP = "rl_capture.outcomes"

Reader = Callable[[str, str, str], "list[dict[str, Any]] | None"]


def readers() -> list[Reader]:
    """The installed readers, by name. Raises what importing one raises: a broken package is no missing one."""
    return [entry.load() for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)]
