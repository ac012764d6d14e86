"""The worker's hook: structural tags on their way into vLLM, replaced by tags whose texts the parser reads back.

It works in the process that makes requests: the API server of ``vllm serve``, or a ``dynamo.vllm`` worker. A tag that
it does not know, and one for which nothing compiles, passes as it is, is counted, and logged the first time.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from dynamo_structural_tags import metrics
from dynamo_structural_tags.settings import Mode, Reader, Settings
from dynamo_structural_tags.stock import in_engine_process
from dynamo_structural_tags.stock_tags import StockTag, is_own, read_tag

if TYPE_CHECKING:
    from dynamo_structural_tags.tags import Maker

__all__ = ["TagHook", "current", "reader_of", "replaced", "start"]

_log = logging.getLogger("dynamo_structural_tags")

#: Texts remembered as objects: more than there are requests between parsing and the engine at a time.
_RECENT = 256


def reader_of(settings: Settings) -> Reader:
    """Whose parser reads the output of this process.

    In a ``dynamo.vllm`` worker it is the frontend's: the v2 parser if ``DYN_PARSER_VERSION`` says so, which Dynamo
    wants set on both sides, else v1, whose tags are right for v2 as well. Elsewhere it is vLLM's.
    """
    if settings.reader is not Reader.AUTO:
        return settings.reader
    # Not the package itself: a plugin of Dynamo's for vLLM loads that into every vLLM beside it.
    if "dynamo.vllm.handlers" not in sys.modules:
        return Reader.VLLM
    return Reader.DYNAMO_V2 if os.environ.get("DYN_PARSER_VERSION") == "2" else Reader.DYNAMO_V1


class TagHook:
    """Replaces tags, or says what it would replace.

    maker: makes the tags.
    settings: mode, and entries kept: a tag comes again with each turn of a conversation.
    """

    def __init__(self, settings: Settings, maker: Maker) -> None:
        self.settings, self.maker = settings, maker
        self._kept: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._seen: OrderedDict[int, str] = OrderedDict()
        self._lock = threading.Lock()
        self._told = False

    def replace(self, text: str) -> str:
        """The tag to use instead of this one; never raises."""
        with self._lock:
            found = self._kept.get(text)
            if found is not None:
                self._kept.move_to_end(text)
        if found is None:
            found = self._decided(text)
            with self._lock:
                self._kept[text] = found
                while len(self._kept) > self.settings.cache:
                    self._kept.popitem(last=False)
        result, made = found
        if self._first_time(text, result):
            metrics.tag(result)
        return made

    def _first_time(self, text: str, result: str) -> bool:
        """Whether this is a request's first look at its tag: vLLM copies a request's parameters several times."""
        if result == "own" and self.maker.made(text):
            return False  # counted when it was made
        with self._lock:
            before = self._seen.get(id(text)) is text
            self._seen[id(text)] = text
            while len(self._seen) > _RECENT:
                self._seen.popitem(last=False)
        return not before

    def _decided(self, text: str) -> tuple[str, str]:
        """What becomes of a tag, a key of `metrics.TAG_RESULTS`, and the tag to use."""
        try:
            tag = json.loads(text)
        except (ValueError, RecursionError):
            tag = None
        if is_own(tag):
            return "own", text
        stock = read_tag(tag)
        if stock is None:
            self._tell(text)
            return "unrecognised", text
        made = self._made(stock)
        if made is None:
            return "failed", text
        names = ", ".join(tool["function"]["name"] for tool in stock.tools)[:200]
        if self.settings.mode is Mode.ENFORCE:
            _log.debug("tag for %s: replaced, %d characters by %d", names, len(text), len(made))
            return "rewritten", made
        _log.info("tag for %s: would be replaced, %d characters by %d", names, len(text), len(made))
        return "would_rewrite", text

    def _made(self, stock: StockTag) -> str | None:
        try:
            return self.maker.make(
                stock.tools,
                tool_choice=stock.tool_choice,
                parallel=stock.parallel,
                reasoning=stock.reasoning,
                response_schema=stock.response_format,
                reader=reader_of(self.settings),
                family=stock.family,
            )
        except ValueError as error:
            _log.warning("a tag is passed on as it is: %s", error)
            return None

    def _tell(self, text: str) -> None:
        if not self._told:
            self._told = True
            _log.warning(
                "structural_tag=%s...: no tag of tool calls that is known of Dynamo %s or vLLM %s, so it is passed on "
                "as it is, like all further ones; only the first is logged.",
                text[:200],
                "1.6.1",
                "0.31 to 0.33",
            )


_hook: TagHook | None = None


def start(settings: Settings) -> TagHook:
    """Make the hook of this process; the same again if there is one."""
    global _hook
    if _hook is None:
        from dynamo_structural_tags.tags import Maker  # grammars: only where tags are made

        _hook = TagHook(settings, Maker(settings))
    return _hook


def current() -> TagHook | None:
    """The hook of this process, None if none was started."""
    return _hook


def replaced(text: Any) -> Any:
    """The tag for vLLM to use; what comes in if no hook was started, and in engine processes, which may be forked."""
    return text if _hook is None or in_engine_process() else _hook.replace(text)
