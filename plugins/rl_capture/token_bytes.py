"""What each token is in bytes, so that ids become text, and places in the text become tokens again, exactly."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

__all__ = ["TokenBytes"]

#: Bytes that byte-level tokenizers write as themselves; the others are the characters from U+0100 on, in order.
_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_SAMPLE = "def f(x):\n\treturn {'ключ': \"値 🙂\"}  # naïve\r\n"


class TokenBytes:
    """The bytes of every id of a byte-level tokenizer, as GLM's is.

    tokenizer: of `transformers`, a fast one. Raises ValueError for one whose tokens are not bytes.
    """

    def __init__(self, tokenizer: Any) -> None:
        added = dict(tokenizer.get_added_vocab())
        byte_of = _bytes_of_characters()
        table: dict[int, bytes] = {}
        for token, number in tokenizer.get_vocab().items():
            if token in added:
                table[number] = token.encode("utf-8", "surrogatepass")
            elif all(character in byte_of for character in token):
                table[number] = bytes(byte_of[character] for character in token)
        self._table = table
        ids = tokenizer.encode(_SAMPLE, add_special_tokens=False)
        if self.join(ids) != _SAMPLE.encode():
            raise ValueError(
                f"the tokenizer {type(tokenizer).__name__} does not write bytes: a sample of {len(ids)} tokens does "
                "not come back as it was. Redaction, text and outcomes need a byte-level tokenizer; without one set "
                "RL_CAPTURE_REDACT=none, RL_CAPTURE_TEXT=off and RL_CAPTURE_OUTCOMES=off."
            )

    def join(self, ids: Iterable[int]) -> bytes:
        """The text of these ids, UTF-8 where the model wrote it; an unknown id is nothing."""
        table = self._table
        return b"".join([table.get(one, b"") for one in ids])

    def ends(self, ids: Iterable[int]) -> list[int]:
        """Where each token ends in `join`."""
        table = self._table
        return list(accumulate(len(table.get(one, b"")) for one in ids))

    @staticmethod
    def touched(ends: Sequence[int], start: int, stop: int) -> range:
        """Numbers of the tokens that have a byte of ``[start, stop)``."""
        return range(bisect_right(ends, start), bisect_left(ends, stop) + 1)


def _bytes_of_characters() -> dict[str, int]:
    """Character of a byte-level vocabulary -> byte, as GPT-2's published encoder has it."""
    table = {chr(byte): byte for byte in _PRINTABLE}
    others = [byte for byte in range(256) if byte not in _PRINTABLE]
    return table | {chr(256 + place): byte for place, byte in enumerate(others)}
