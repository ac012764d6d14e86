"""xgrammar's matcher over a vocabulary of single bytes: what a schema accepts, and random texts it allows."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import xgrammar

STOP = 256
_TOKENIZER = xgrammar.TokenizerInfo(
    [bytes([i]) for i in range(256)] + [b"</s>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[STOP]
)
_COMPILER = xgrammar.GrammarCompiler(_TOKENIZER, max_threads=1, cache_enabled=False)


def compiled(schema: Any) -> xgrammar.CompiledGrammar:
    """A schema compiled as structural tags carry it."""
    content = {"type": "json_schema", "json_schema": schema, "style": "json"}
    return _COMPILER.compile_structural_tag(json.dumps({"type": "structural_tag", "format": content}))


def accepts(grammar: xgrammar.CompiledGrammar, text: str) -> bool:
    """Whether the grammar allows the whole text and may stop after it."""
    matcher = xgrammar.GrammarMatcher(grammar)
    return bool(matcher.accept_string(text) and matcher.accept_token(STOP))


def _decoded(text: bytes | bytearray) -> str | None:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:  # xgrammar's classes hold overlong forms too; a detokenizer replaces them
        return None


def sample(grammar: xgrammar.CompiledGrammar, rng: random.Random, limit: int = 300) -> str | None:
    """A random text, token by token through the matcher's mask; None where it grew over `limit` bytes or is no UTF-8.

    The stop token and closing characters are likelier as the text grows, and so is a byte that ASCII holds.
    """
    matcher = xgrammar.GrammarMatcher(grammar)
    mask = xgrammar.allocate_token_bitmask(1, _TOKENIZER.vocab_size)
    out = bytearray()
    while len(out) <= limit:
        mask.fill_(-1)
        matcher.fill_next_token_bitmask(mask)
        bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")[: STOP + 1]
        allowed = np.flatnonzero(bits).tolist()
        if STOP in allowed and (len(allowed) == 1 or rng.random() < 0.1 + len(out) / limit):
            return _decoded(out)
        choices = [token for token in allowed if token != STOP]
        closing = [token for token in choices if token in b'"]}']
        if closing and rng.random() < 0.15 + 2 * len(out) / limit:
            choices = closing
        elif rng.random() < 0.9:
            choices = [token for token in choices if 0x21 <= token < 0x7F] or choices
        token = rng.choice(choices)
        assert matcher.accept_token(token)
        out.append(token)
    return None
