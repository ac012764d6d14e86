"""The errors of this plugin, always with the same four parts."""

from __future__ import annotations

__all__ = [
    "BuildRefused",
    "FingerprintMismatch",
    "FoldRefused",
    "LaunchRefused",
    "Refused",
    "RowsRefused",
    "SettingRefused",
]


class Refused(ValueError):
    """Something that cannot be done rightly; raised before anything is changed."""

    def __init__(self, seen: str, why: str, allowed: str, next_step: str) -> None:
        super().__init__(f"{seen}: {why}; allowed: {allowed}. {next_step}.")


class RowsRefused(Refused):
    """Values that cannot be encoded, or bytes that are no rows."""


class SettingRefused(Refused):
    """An environment variable with a value that it cannot have."""


class LaunchRefused(Refused):
    """Arguments that a kernel cannot take; nothing was launched."""


class BuildRefused(Refused):
    """CUDA kernels that cannot be built here."""


class FoldRefused(Refused):
    """A fold that would not be exact, or that would push a layer's FP8 query out of range."""


class FingerprintMismatch(Refused):
    """Rows that were written under another format, policy or fold than the reader's."""
