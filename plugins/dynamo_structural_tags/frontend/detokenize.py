"""Token ids to text as they come: linear in the output, and a character cut by a token border is never torn."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

__all__ = ["Detokenizer", "TokenBytes", "byte_letters"]


def byte_letters() -> dict[str, int]:
    """The letter that byte-level BPE writes for each byte (OpenAI's GPT-2 encoder), reversed."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in printable}
    hidden = (byte for byte in range(256) if byte not in set(printable))
    letters.update({chr(256 + offset): byte for offset, byte in enumerate(hidden)})
    return letters


class TokenBytes:
    """The bytes of every token of a byte-level vocabulary.

    tokenizer: a ``tokenizers.Tokenizer``.
    Raises ValueError for another kind of tokenizer, whose tokens are no bytes.
    """

    def __init__(self, tokenizer: Any) -> None:
        decoder = type(tokenizer.decoder).__name__
        if decoder != "ByteLevel":
            raise ValueError(
                f"tokenizer decoder={decoder}: its tokens are not bytes, so text cannot be put together token by "
                "token here. ByteLevel is what GLM's tokenizers have; serve this model with dynamo.frontend."
            )
        letters = byte_letters()
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self._bytes: list[bytes] = [b""] * (max(vocabulary.values(), default=-1) + 1)
        for token, number in vocabulary.items():
            known = [letters.get(letter) for letter in token]
            self._bytes[number] = bytes(b for b in known if b is not None) if None not in known else token.encode()
        self.special = frozenset(
            number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special
        )

    def __getitem__(self, number: int) -> bytes:
        """The bytes of one token; none for a number that the vocabulary lacks."""
        return self._bytes[number] if 0 <= number < len(self._bytes) else b""

    def join(self, numbers: Sequence[int]) -> bytes:
        """The bytes of several tokens."""
        if len(numbers) == 1:
            return self[numbers[0]]
        return b"".join([self[number] for number in numbers])


class Detokenizer:
    """Text of one output. skip_special: leave special tokens out, as ``skip_special_tokens`` asks for."""

    def __init__(self, table: TokenBytes, *, skip_special: bool = False) -> None:
        self._table = table
        self._hidden = table.special if skip_special else frozenset()
        # Invalid UTF-8 becomes U+FFFD once per maximal invalid part, which is what the tokenizers library does.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, numbers: Sequence[int]) -> str:
        """The text that these tokens complete."""
        if self._hidden:
            numbers = [number for number in numbers if number not in self._hidden]
        return self._decoder.decode(self._table.join(numbers))

    def finish(self) -> str:
        """What is left of a character that the output ended in."""
        return self._decoder.decode(b"", final=True)
