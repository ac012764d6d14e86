"""The errors of this plugin, always with the same four parts."""

from __future__ import annotations

__all__ = ["KeyRefused", "NodeFailed", "SettingRefused", "TierRefused", "TierUnavailable"]


class TierRefused(ValueError):
    """Something that cannot be done rightly; raised before a block is stored or read."""

    def __init__(self, seen: str, why: str, allowed: str, next_step: str) -> None:
        super().__init__(f"{seen}: {why}; allowed: {allowed}. {next_step}.")


class KeyRefused(TierRefused):
    """Fields that do not name a block without doubt."""


class SettingRefused(TierRefused):
    """An option with a value that it cannot have."""


class TierUnavailable(RuntimeError):
    """The store cannot be reached or set up; the text says what was tried and what to do."""


class NodeFailed(RuntimeError):
    """A process of this machine's master and pool did not start, or ended."""
