"""The plugin's own settings: the ``blhnc`` entry of ``kv_connector_extra_config``, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["KEY", "Settings"]

KEY = "blhnc"


@dataclass(frozen=True)
class Settings:
    """What a deployment may set under ``kv_connector_extra_config.blhnc``.

    layout: "BLHNC" asks vLLM for block-outermost rows and refuses to serve with anything else. "stock" leaves
        layout and registration as vLLM has them; it exists to measure the difference.
    transfer_log: file that gets one JSON line per finished transfer; None writes none.
    progress_delay_us: microseconds NIXL's progress thread sleeps between polls. None keeps NIXL's own value,
        0, which keeps one CPU core per worker at 100 %.
    row_alignment_tokens: block rows become a multiple of this many rows (tokens) of an MLA cache. It must divide
        the block size. None leaves the alignment to vLLM's attention backend.
    block_allocation: "runs" hands out free blocks with consecutive ids, so that transfers need fewer descriptors;
        "stock" leaves the order to vLLM.
    eviction_window: with "runs", the number of cached blocks, the least recently used ones, among which to choose.
        0 evicts exactly what vLLM would.
    """

    layout: str = "BLHNC"
    transfer_log: str | None = None
    progress_delay_us: int | None = None
    row_alignment_tokens: int | None = None
    block_allocation: str = "stock"
    eviction_window: int = 0

    def __post_init__(self) -> None:
        if self.layout not in ("BLHNC", "stock"):
            raise ValueError(_refusal("layout", self.layout, '"BLHNC" or "stock"'))
        if self.transfer_log is not None and (not isinstance(self.transfer_log, str) or not self.transfer_log):
            raise ValueError(_refusal("transfer_log", self.transfer_log, "a file path"))
        delay = self.progress_delay_us
        if delay is not None and (type(delay) is not int or not 0 <= delay <= 1_000_000):
            raise ValueError(_refusal("progress_delay_us", delay, "a whole number from 0 to 1000000"))
        rows = self.row_alignment_tokens
        if rows is not None and (type(rows) is not int or rows < 1):
            raise ValueError(_refusal("row_alignment_tokens", rows, "a divisor of --block-size, such as 32 or 64"))
        if rows is not None and not self.block_rows:
            raise ValueError(_refusal("row_alignment_tokens", rows, 'left out with layout="stock", which has no rows'))
        if self.block_allocation not in ("stock", "runs"):
            raise ValueError(_refusal("block_allocation", self.block_allocation, '"stock" or "runs"'))
        window = self.eviction_window
        if type(window) is not int or window < 0:
            raise ValueError(_refusal("eviction_window", window, "a whole number of blocks, 0 or more"))
        if window and self.block_allocation != "runs":
            raise ValueError(_refusal("eviction_window", window, 'left out unless block_allocation="runs" is set'))

    @property
    def block_rows(self) -> bool:
        """Whether whole block rows are asked for."""
        return self.layout == "BLHNC"

    @classmethod
    def read(cls, extra_config: Mapping[str, Any]) -> Settings:
        """The settings in a ``kv_connector_extra_config``; raises ValueError for what it does not know."""
        given = extra_config.get(KEY, {})
        if not isinstance(given, Mapping):
            raise ValueError(_refusal("", given, "an object"))
        known = set(cls.__dataclass_fields__)
        misplaced = sorted(key for key in extra_config if key in known or _resembles(key))
        if misplaced:
            raise ValueError(
                f"kv_connector_extra_config has the keys {misplaced}, which would be silently ignored: this plugin's "
                f'settings are under "{KEY}", as in {{"{KEY}": {{"layout": "BLHNC"}}}}. Move or correct them.'
            )
        if unknown := sorted(set(given) - known):
            raise ValueError(
                f"kv_connector_extra_config.{KEY} has unknown keys {unknown}: a misspelt setting would be "
                f"silently ignored. Allowed are {sorted(known)}; correct or remove the others."
            )
        return cls(**given)


def _resembles(key: str) -> bool:
    return key != KEY and sorted(key.lower()) == sorted(KEY)


def _refusal(name: str, seen: object, needed: str) -> str:
    path = f"kv_connector_extra_config.{KEY}" + (f".{name}" if name else "")
    return f"{path}={seen!r} is not usable; it must be {needed}. Correct it in --kv-transfer-config."
