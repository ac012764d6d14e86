"""How the writer of rows chooses their scales, and the one setting for it. Standard library only."""

from __future__ import annotations

import os
from typing import Literal, get_args

from flashinfer_nvfp4.errors import RowsRefused

__all__ = ["DEFAULT", "POLICIES", "SETTING", "Policy", "chosen_policy"]

Policy = Literal["rtn", "four_over_six", "search"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

SETTING = "FLASHINFER_NVFP4_POLICY"
"""Environment variable; prefill and decode must have the same value."""
DEFAULT: Policy = "search"


def chosen_policy() -> Policy:
    """The policy that the environment asks for, `DEFAULT` where it says nothing; raises `RowsRefused` for another."""
    value = os.environ.get(SETTING) or DEFAULT
    if value not in POLICIES:
        raise RowsRefused(
            f"{SETTING}={value!r}",
            "there is no such way to choose the scales of a row",
            f"{', '.join(POLICIES)}, and unset for {DEFAULT}",
            "Correct it in the environment of every worker",
        )
    return value
