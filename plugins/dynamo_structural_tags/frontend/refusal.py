"""The error for a request that this engine cannot serve as it stands."""

from __future__ import annotations

__all__ = ["RefusedRequest"]


class RefusedRequest(ValueError):
    """A 400 for the client: names the field, why it cannot be served, and what to do instead."""
