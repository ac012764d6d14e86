"""The one error of this plugin, always with the same four parts."""

from __future__ import annotations

__all__ = ["Unsupported"]


class Unsupported(ValueError):
    """A configuration that this plugin cannot serve rightly; raised before any token is computed."""

    def __init__(self, seen: str, why: str, allowed: str, next_step: str) -> None:
        super().__init__(f"{seen}: {why}; allowed: {allowed}. {next_step}.")
