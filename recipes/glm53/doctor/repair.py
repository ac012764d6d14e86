"""Commands that cure a finding, as argument lists: printed, never run."""

from __future__ import annotations

import sys

__all__ = ["export", "install", "uninstall", "unset"]


def install(*requirements: str) -> tuple[str, ...]:
    """Install exact releases and nothing else, so that no other pin moves."""
    return (sys.executable, "-m", "pip", "install", "--force-reinstall", "--no-deps", *requirements)


def uninstall(*names: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "pip", "uninstall", "--yes", *names)


def export(name: str, value: str) -> tuple[str, ...]:
    """Set a variable for what is started from the same shell."""
    return ("export", f"{name}={value}")


def unset(name: str) -> tuple[str, ...]:
    return ("unset", name)
