"""The tokenizer: one token a byte, and GLM's control tokens."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm53.model.tokens import CONTROL, EOS_IDS, PAD_ID, SPECIAL, VOCABULARY, tokenizer

tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers: pip install '.[demo]'")

LOADED = tokenizers.Tokenizer.from_str(json.dumps(tokenizer()))

# Ids of GLM-5.3's own tokenizer, from its published configuration and the parsers that name them.
GLM53_IDS = {
    "<|endoftext|>": 154820,
    "[gMASK]": 154822,
    "<sop>": 154824,
    "<|system|>": 154826,
    "<|user|>": 154827,
    "<|assistant|>": 154828,
    "<|observation|>": 154829,
    "<think>": 154841,
    "</think>": 154842,
    "<tool_call>": 154843,
    "</tool_call>": 154844,
    "<arg_key>": 154847,
}


def test_every_byte_is_the_token_of_its_own_number() -> None:
    """The letters are those of byte-level BPE, so each byte sequence that is text survives the round trip."""
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()

    assert set(VOCABULARY[:256]) == set(letters)
    for byte in range(128):
        assert LOADED.encode(chr(byte)).ids == [byte]
    for text in ("é", "ÿ", "中", "🙂"):
        assert LOADED.encode(text).ids == list(text.encode())


def test_every_byte_decodes_as_utf8_would() -> None:
    for byte in range(256):
        assert LOADED.decode([byte]) == bytes([byte]).decode(errors="replace")


@given(st.text())
def test_text_survives_the_round_trip(text: str) -> None:
    ids = LOADED.encode(text).ids

    assert LOADED.decode(ids, skip_special_tokens=False) == text


@given(st.text().filter(lambda text: not any(control in text for control in CONTROL)))
def test_text_without_control_tokens_is_its_utf8_bytes(text: str) -> None:
    assert LOADED.encode(text).ids == list(text.encode())


@pytest.mark.parametrize("text", CONTROL)
def test_every_control_token_is_one_id_inside_text(text: str) -> None:
    assert LOADED.encode(f"a{text}b").ids == [ord("a"), VOCABULARY.index(text), ord("b")]


@pytest.mark.parametrize(("text", "glm53"), GLM53_IDS.items())
def test_control_tokens_keep_the_order_of_glm53(text: str, glm53: int) -> None:
    assert LOADED.token_to_id(text) - 256 == glm53 - 154820


def test_generation_ends_at_the_tokens_that_end_it_in_glm53() -> None:
    assert [256 + glm53 - 154820 for glm53 in (154820, 154827, 154829)] == list(EOS_IDS)
    assert LOADED.id_to_token(PAD_ID) == "<|endoftext|>"


def test_turn_markers_are_hidden_in_decoded_text_and_call_markers_are_not() -> None:
    visible = "</think><tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>"
    ids = LOADED.encode(f"[gMASK]<sop><|user|>{visible}<|observation|><|endoftext|>").ids

    assert LOADED.decode(ids, skip_special_tokens=True) == visible
    assert len(SPECIAL) == 18


def test_the_vocabulary_has_no_gaps() -> None:
    assert LOADED.get_vocab_size() == len(VOCABULARY) == len(set(VOCABULARY)) == 292
