"""The end of both commands that compile kernels ahead of time: what they print and their exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["finish"]


def finish(kernels: Sequence[Any], problems: Sequence[str], as_json: bool) -> int:
    """Print kernels and problems as one line of JSON if wanted, each problem as a sentence to stderr; 1 if any."""
    if as_json:
        print(json.dumps({"kernels": kernels, "problems": problems}))
    for sentence in problems:
        print(sentence, file=sys.stderr)
    return 1 if problems else 0
