"""A fake of vLLM for tests of the local stack: Dynamo's mocker, started where a stack starts `dynamo.vllm`.

Used as the stack's Python: ``mocked_engine.py -m MODULE ...`` runs every module but that one as it is. What a real
worker does when it is rolled is in docs/operations.md.
"""

from __future__ import annotations

import os
import sys
from itertools import pairwise

_TAKEN = {"--model": "--model-path", "--served-model-name": "--model-name", "--block-size": "--block-size"}
_PLANES = ("--discovery-backend", "--request-plane")


def main(words: list[str]) -> list[str]:
    """The arguments with which Python really runs."""
    if words[:2] != ["-m", "dynamo.vllm"]:
        return words
    given = dict(pairwise(words))
    argv = ["-m", "dynamo.mocker", "--speedup-ratio", os.environ.get("MOCKED_SPEED", "1")]
    for name, own in {**_TAKEN, **{plane: plane for plane in _PLANES}}.items():
        argv += [own, given[name]]
    return argv


if __name__ == "__main__":
    # A worker is healthy once it serves, as vLLM's says itself.
    os.environ.setdefault("DYN_SYSTEM_USE_ENDPOINT_HEALTH_STATUS", '["generate"]')
    os.execv(sys.executable, [sys.executable, *main(sys.argv[1:])])
