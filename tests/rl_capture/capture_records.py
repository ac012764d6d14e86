"""Records as the tests of files and of the command line need them."""

from __future__ import annotations

from typing import Any

from rl_capture.record import digest

__all__ = ["record"]


def record(number: int = 0, **overrides: Any) -> dict[str, Any]:
    """A record that is well; number: makes its request, and its two output ids."""
    prompt = [1, 2, 3]
    made: dict[str, Any] = {
        "v": 1,
        "request": f"cmpl-{number}",
        "choice": 0,
        "session": None,
        "model": "tiny",
        "adapter": None,
        "started": 1.5,
        "ended": 2.5,
        "prompt": {"tokens": 3, "sha256": digest(prompt), "ids": prompt},
        "output": {"ids": [number, 7], "logprobs": [-0.5, -1.25], "logprobs_mode": "raw_logprobs"},
        "masked": {"prompt": 0, "output": 0},
        "finish": "stop",
        "stop": 7,
        "weights": {"base": "tiny", "begin": None, "end": None, "epoch": [0, 0], "spans": None},
        "sampling": {"temperature": 1.0, "constrained": False},
        "calls": [{"outcome": "valid"}],
    }
    return made | overrides
