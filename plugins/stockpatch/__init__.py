"""Version windows read from installed metadata, and registers of patches to stock packages.

Nothing here imports a stock package or a plugin: a register names its targets as text and imports them
only when it is applied.
"""

from stockpatch.register import Patch, PatchError, Register, Report, Row, reports
from stockpatch.versions import NotInstalled, UnsupportedVersion, Window, installed

__all__ = [
    "NotInstalled",
    "Patch",
    "PatchError",
    "Register",
    "Report",
    "Row",
    "UnsupportedVersion",
    "Window",
    "installed",
    "reports",
]
