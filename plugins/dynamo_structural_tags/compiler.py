"""xgrammar's compiler for schemas: the only module here that imports it, and only when asked."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

__all__ = [
    "CompilerMissing",
    "schema_compiler",
    "schema_converter",
    "synthetic_vocabulary",
    "tag_compiler",
    "vocabulary_of",
]


#: No vocabulary has as many tokens; a file that says so would take all memory.
_MOST_TOKENS = 10_000_000


class CompilerMissing(RuntimeError):
    """xgrammar cannot be imported, or a vocabulary cannot be read."""


def tag_compiler(vocabulary: list[bytes], *, threads: int = 8) -> Callable[[dict[str, Any]], Any]:
    """A function that compiles a structural tag for a vocabulary, as vLLM's engine does; xgrammar's own cache is off.

    Raises:
        CompilerMissing: no xgrammar in this environment.
    """
    xgrammar = _xgrammar()
    tokens = xgrammar.TokenizerInfo(
        [*vocabulary, b"</s>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[len(vocabulary)]
    )
    compiler = xgrammar.GrammarCompiler(tokens, max_threads=threads, cache_enabled=False)

    return lambda tag: compiler.compile_structural_tag(json.dumps(tag))


def schema_compiler(vocabulary: list[bytes], *, threads: int = 8) -> Callable[[dict[str, Any]], Any]:
    """The same for a JSON Schema, as structural tags carry it. Raises what `tag_compiler` does."""
    compiled = tag_compiler(vocabulary, threads=threads)
    return lambda schema: compiled(_tag(schema))


def schema_converter() -> Callable[[dict[str, Any]], Any]:
    """A function that turns a JSON Schema into a grammar without a vocabulary.

    Whatever xgrammar refuses, it refuses here, in a fraction of the time: the rest of compiling is masks of tokens.

    Raises:
        CompilerMissing: no xgrammar in this environment.
    """
    xgrammar = _xgrammar()
    return lambda schema: xgrammar.Grammar.from_structural_tag(json.dumps(_tag(schema)))


def _xgrammar() -> Any:
    try:
        import xgrammar
    except ImportError as error:
        raise CompilerMissing(
            f"xgrammar={error}: grammars need the grammar compiler; it comes with vLLM (pip install xgrammar)"
        ) from error
    return xgrammar


def _tag(schema: dict[str, Any]) -> dict[str, Any]:
    content = {"type": "json_schema", "json_schema": schema, "style": "json", "max_whitespace_cnt": 1}
    return {"type": "structural_tag", "format": content}


def synthetic_vocabulary(size: int, seed: int = 0) -> list[bytes]:
    """Distinct byte strings shaped like those of a byte-level tokenizer: all bytes, words, digits, punctuation."""
    rng = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    tokens = dict.fromkeys(bytes([i]) for i in range(256))
    pieces = ['":', '",', '"}', "},", "],", "{\\", '\\"', "\\n", "//", "://", "  ", "\n\n", "==", "();", "->"]
    tokens.update(dict.fromkeys(piece.encode() for piece in pieces))
    while len(tokens) < size:
        kind = rng.random()
        if kind < 0.75:
            word = "".join(letters[min(int(rng.expovariate(0.12)), 25)] for _ in range(rng.randint(2, 9)))
            word = word.capitalize() if rng.random() < 0.2 else word
        elif kind < 0.85:
            word = "".join(chr(rng.randint(0x4E00, 0x9FA5)) for _ in range(rng.randint(1, 3)))
        elif kind < 0.92:
            word = "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 4)))
        else:
            word = "".join(rng.choice(".,:;-_/\\(){}[]<>=+*&|!?#$%@^~'\"` \n\té") for _ in range(rng.randint(2, 5)))
        tokens[(" " * (rng.random() < 0.45) + word).encode()] = None
    return list(tokens)[:size]


def vocabulary_of(tokenizer_json: str) -> list[bytes]:
    """The byte strings of a byte-level `tokenizer.json`, by token id.

    Raises:
        CompilerMissing: the file is unreadable or holds no vocabulary.
    """
    table = _byte_letters()
    try:
        with open(tokenizer_json, encoding="utf-8") as file:
            document = json.load(file)
        vocabulary = document["model"]["vocab"]
        added = {token["content"]: token["id"] for token in document.get("added_tokens", [])}
        places = [*vocabulary.values(), *added.values()]
        if odd := [place for place in places if not isinstance(place, int) or not 0 <= place < _MOST_TOKENS]:
            raise ValueError(f"a token with the id {odd[0]!r:.60}")
        tokens = [b"<unused>"] * (max(places) + 1)
        for text, place in vocabulary.items():
            tokens[place] = bytes(table[c] for c in text) if all(c in table for c in text) else text.encode()
        for text, place in added.items():
            tokens[place] = text.encode()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CompilerMissing(
            f"vocabulary={tokenizer_json}: {error!r}; expected a tokenizer.json with model.vocab, or leave --vocab out"
        ) from error
    return tokens


def _byte_letters() -> dict[str, int]:
    """GPT-2's letters for bytes: printable Latin-1 for itself, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(rest)}
