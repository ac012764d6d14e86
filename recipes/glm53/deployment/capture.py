"""The section ``capture``: which requests become training records, and what of them is kept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ByteSize, Field

from glm53.deployment.roles import Strict

__all__ = ["Capture"]


class Capture(Strict):
    """Records of served requests (plugin rl_capture), written by the workers that make a client's tokens.

    sample: share of sessions. redact: "secrets" masks known forms of secrets in ids and text. patterns: file of further
    expressions, an absolute path as workers see it. text: store decoded text beside the ids. prompt_tokens: longest
    prompt whose ids are stored; of longer ones length and hash are.
    file: size at which a file is closed. total: of all records. full: "stop" records no more at that size,
    "drop-oldest" deletes the oldest files.
    volume: on Kubernetes, claim of a volume that all decode pods can write.
    """

    sample: Annotated[float, Field(gt=0, le=1)] = 1.0
    redact: Literal["secrets", "none"] = "secrets"
    patterns: Annotated[str, Field(pattern=r"^/.+")] | None = None
    text: bool = False
    prompt_tokens: Annotated[int, Field(ge=0)] = 262_144
    file: ByteSize = ByteSize(64 << 20)
    total: ByteSize = ByteSize(10 << 30)
    full: Literal["stop", "drop-oldest"] = "stop"
    volume: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=63)] | None = None
