"""A tokenizer that needs nothing; real ones are in the stock tests."""

from __future__ import annotations

__all__ = ["ByteTokenizer"]


class ByteTokenizer:
    """A fake with a token a byte, one of three bytes (300), and a special one (301)."""

    def __init__(self) -> None:
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printable]
        self._vocabulary = {chr(byte): byte for byte in printable}
        self._vocabulary |= {chr(256 + place): byte for place, byte in enumerate(others)}
        self._vocabulary |= {"abc": 300, "<|user|>": 301}

    def get_vocab(self) -> dict[str, int]:
        return self._vocabulary

    def get_added_vocab(self) -> dict[str, int]:
        return {"<|user|>": 301}

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return list(text.encode())
