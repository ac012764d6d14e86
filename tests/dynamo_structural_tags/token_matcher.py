"""xgrammar's matcher over a made-up vocabulary: whether a tag allows a text, and random texts that it allows."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import xgrammar

MARKERS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
)


def single_bytes() -> list[bytes]:
    return [bytes([i]) for i in range(256)]


def words() -> list[bytes]:
    """Single bytes, the markers, pieces of them, and words of several characters that cross the borders of values."""
    pieces = [mark[i:j] for mark in MARKERS for i in (0, 2, 5) for j in (len(mark) - 1, len(mark)) if j > i]
    joined = [
        "</arg_key><arg_value>", "</arg_value><arg_key>", "</arg_value></tool_call>", "</tool_call>\n", "1</arg_value>",
        '"}</arg_value></tool_call>', "a<", "></", '": "', '", "', '"}', "[]", "[1", "]</", "},", "true", "null</arg_",
        "12", "-0", ".5", "e1", "https://", "\\n", '\\"', "\n\n", "é", "\U0001f600", "\u4e2d\u6587", " x", "foo",
    ]  # fmt: skip
    return list(dict.fromkeys([*single_bytes(), *(p.encode() for p in [*MARKERS, *pieces, *joined])]))


class Matcher:
    """Compiles tags for one vocabulary; the last token stops."""

    def __init__(self, vocabulary: list[bytes]) -> None:
        self.vocabulary, self.stop = vocabulary, len(vocabulary)
        self._tokens = xgrammar.TokenizerInfo(
            [*vocabulary, b"</s>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[self.stop]
        )
        self._compiler = xgrammar.GrammarCompiler(self._tokens, max_threads=1, cache_enabled=False)
        self._mask = xgrammar.allocate_token_bitmask(1, self._tokens.vocab_size)
        self._closing = [i for i, token in enumerate(vocabulary) if token[:1] in b'"]}<' or b">" in token]
        self._ascii = {i for i, token in enumerate(vocabulary) if all(0x20 <= byte < 0x7F for byte in token)}

    def compile(self, tag: dict[str, Any]) -> xgrammar.CompiledGrammar:
        return self._compiler.compile_structural_tag(json.dumps(tag))

    def accepts(self, compiled: xgrammar.CompiledGrammar, text: str) -> bool:
        """Whether the text is a whole output."""
        matcher = xgrammar.GrammarMatcher(compiled)
        return bool(matcher.accept_string(text) and matcher.accept_token(self.stop))

    def sample(
        self,
        compiled: xgrammar.CompiledGrammar,
        rng: random.Random,
        limit: int = 1000,
        ends: tuple[bytes, ...] = (b"</tool_call>",),
    ) -> str | None:
        """A random text, token by token through the mask; None where it grew over `limit` bytes or is no UTF-8.

        "<" and closing characters are likelier as the text grows, for text that ends and calls that begin.
        ends: behind which a text is likely to end.
        """
        matcher = xgrammar.GrammarMatcher(compiled)
        out = bytearray()
        while len(out) <= limit:
            self._mask.fill_(-1)
            matcher.fill_next_token_bitmask(self._mask)
            bits = np.unpackbits(self._mask.numpy().view(np.uint8), bitorder="little")[: self.stop + 1]
            allowed = set(np.flatnonzero(bits).tolist())
            assert allowed, ("the grammar leads nowhere", bytes(out))
            called = out.rstrip().endswith(ends)
            if self.stop in allowed and (len(allowed) == 1 or (called and rng.random() < 0.7) or rng.random() < 0.02):
                return _decoded(out)
            allowed.discard(self.stop)
            closing = [token for token in self._closing if token in allowed]
            if closing and rng.random() < 0.35 + len(out) / limit:
                token = rng.choice(closing)
            else:
                token = rng.choice(sorted(allowed & self._ascii if rng.random() < 0.9 else allowed) or sorted(allowed))
            assert matcher.accept_token(token)
            out += self.vocabulary[token]
        return None


def _decoded(text: bytearray) -> str | None:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:  # a detokenizer replaces such bytes
        return None
