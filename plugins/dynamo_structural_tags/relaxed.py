"""Which tools have schemas that no grammar enforces in full, by the verdict of `schema.normalise`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from dynamo_structural_tags.offer import Offer
from dynamo_structural_tags.schema import Verdict, normalise

__all__ = ["relaxed_names"]


def relaxed_names(tools: Iterable[Any]) -> frozenset[str]:
    """Names of the tools (OpenAI's or Anthropic's) with a verdict other than exact. Kept by schema; never raises."""
    names = set()
    for tool in tools:
        inner = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(inner, dict) or not Offer([tool]).tools:
            continue
        try:
            text = json.dumps(inner.get("parameters", inner.get("input_schema")))
        except (TypeError, ValueError, RecursionError):
            names.add(inner["name"])
            continue
        if not _exact(text, inner.get("strict") is True):
            names.add(inner["name"])
    return frozenset(names)


@lru_cache(maxsize=1024)
def _exact(parameters: str, strict: bool) -> bool:
    schema = json.loads(parameters)
    return schema is None or normalise(schema, strict=strict, arguments=True).verdict is Verdict.EXACT
