"""Tags for requests: built, tried with the installed xgrammar, kept, and counted. Nothing here raises for a schema."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from dynamo_structural_tags import metrics
from dynamo_structural_tags.families import FAMILIES
from dynamo_structural_tags.grammar import Built, build
from dynamo_structural_tags.schema import Verdict
from dynamo_structural_tags.settings import Reader, Settings
from dynamo_structural_tags.stock_tags import marked

__all__ = ["Maker", "family_for", "relaxed_names"]

_log = logging.getLogger("dynamo_structural_tags")


def family_for(family: str, reader: Reader) -> str:
    """The family of tags whose texts a reader gives back: that of its name, if there is one. family: a model's."""
    for_reader = f"{family}-{reader}"
    return for_reader if for_reader in FAMILIES else family


class Maker:
    """Makes the tags of one process, and keeps as many of them as `settings.cache`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kept: OrderedDict[str, str | None] = OrderedDict()
        self._texts: set[str] = set()
        self._lock = threading.Lock()

    def made(self, text: str) -> bool:
        """Whether this process made the tag, and has not forgotten it."""
        with self._lock:
            return text in self._texts

    def make(
        self,
        tools: list[dict[str, Any]],
        *,
        tool_choice: Any = "auto",
        parallel: bool = True,
        reasoning: bool | None = False,
        response_schema: Any = None,
        reader: Reader = Reader.OURS,
        family: str = "glm",
    ) -> str | None:
        """The tag as JSON text, marked as this plugin's; None if not even the tools' names compile.

        tools: OpenAI's. reasoning: whether the output begins inside the reasoning, None if nobody knows.
        response_schema: a JSON Schema that the answer may follow instead of calling a tool. reader: who reads the
        output. family: whose tool format it is.

        Raises ValueError for a forced call that no tool can be called with.
        """
        wish = {"tools": tools, "tool_choice": tool_choice, "parallel": parallel, "family": family_for(family, reader)}
        wish["reasoning"] = "open" if reasoning is None else "tag" if reasoning else "engine"
        if response_schema is not None:
            wish["response_format"] = {"type": "json_schema", "json_schema": {"schema": response_schema}}
        try:
            key = hashlib.sha256(json.dumps(wish).encode()).hexdigest()
        except (TypeError, ValueError, RecursionError):
            return None  # no JSON, or nested deeper than JSON can be written: no request can have this
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        text = self._made(wish)
        with self._lock:
            self._kept[key] = text
            while len(self._kept) > self._settings.cache:
                self._kept.popitem(last=False)
            self._texts = {kept for kept in self._kept.values() if kept is not None}
        return text

    def _made(self, wish: dict[str, Any]) -> str | None:
        start = time.monotonic()
        end = start + self._settings.compile_seconds
        built = build(**wish, check=_Check(end), until=end)
        try:
            text = json.dumps(marked(built.tag))
            _compile(text)
        except Exception as error:  # xgrammar raises RuntimeError, ValueError and its own
            _log.warning("tools=%s: no tag compiles, not even with names alone: %s", _names(built), error)
            return None
        metrics.compiled(time.monotonic() - start)
        for tool in built.tools:
            metrics.level(tool.level.value)
            for level, reason in tool.falls:
                _log.warning("tool=%r: level %s instead of %s: %s", tool.name, tool.level.value, level.value, reason)
        return text


class _Check:
    """Tries tags until the time is up; what comes later is refused, so that its tools fall to their names."""

    def __init__(self, end: float) -> None:
        self._end = end

    def __call__(self, tag: dict[str, Any]) -> None:
        if time.monotonic() > self._end:
            raise TimeoutError("the time for this request's tools is spent")
        _compile(json.dumps(tag))


def _compile(text: str) -> None:
    """What vLLM does with a tag before it lets a request in."""
    from xgrammar import Grammar

    Grammar.from_structural_tag(text)


def _names(built: Built) -> str:
    return ", ".join(tool.name for tool in built.tools)[:200]


def relaxed_names(tools: Iterable[Any]) -> frozenset[str]:
    """Names of the OpenAI tools of whose schema the tags do not enforce all. Kept by content; never raises."""
    names: set[str] = set()
    for tool in tools:
        try:
            names |= _relaxed(json.dumps(tool))
        except (TypeError, ValueError, RecursionError):
            continue  # no JSON: no request can have this
    return frozenset(names)


@lru_cache(maxsize=1024)
def _relaxed(tool: str) -> frozenset[str]:
    return frozenset(made.name for made in build([json.loads(tool)]).tools if made.verdict is not Verdict.EXACT)
