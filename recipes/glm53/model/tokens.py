"""A tokenizer of one token a byte, with GLM's own control tokens after the 256 bytes.

The control tokens stand in GLM-5.3's order, so token ``256 + n`` here is token ``154820 + n`` there. Which
of them are special (skipped when output is decoded for reading) is also GLM's choice: the turn markers are,
the reasoning and tool-call markers are not, because parsers must see those in the text.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CONTROL", "EOS_IDS", "PAD_ID", "SPECIAL", "VOCABULARY", "tokenizer", "tokenizer_config"]

SPECIAL = (
    "<|endoftext|>",
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|begin_of_image|>",
    "<|end_of_image|>",
    "<|begin_of_video|>",
    "<|end_of_video|>",
    "<|begin_of_audio|>",
    "<|end_of_audio|>",
    "<|begin_of_transcription|>",
    "<|end_of_transcription|>",
)
CONTROL = (
    *SPECIAL,
    "<|code_prefix|>",
    "<|code_middle|>",
    "<|code_suffix|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "/nothink",
    "<|begin_of_box|>",
    "<|end_of_box|>",
    "<|image|>",
    "<|video|>",
)


def _byte_letters() -> tuple[str, ...]:
    """The letter that byte-level BPE writes for each byte: itself if printable, else the next from U+0100."""
    spare = iter(range(0x100, 0x200))
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    return tuple(chr(byte if byte in printable else next(spare)) for byte in range(256))


#: Every token in the order of its id: byte b is token b.
VOCABULARY = (*_byte_letters(), *CONTROL)
PAD_ID = VOCABULARY.index("<|endoftext|>")
EOS_IDS = tuple(VOCABULARY.index(text) for text in ("<|endoftext|>", "<|user|>", "<|observation|>"))


def tokenizer() -> dict[str, Any]:
    """The content of tokenizer.json."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": VOCABULARY.index(text),
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": text in SPECIAL,
            }
            for text in CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {letter: byte for byte, letter in enumerate(_byte_letters())},
            "merges": [],
        },
    }


def tokenizer_config(context: int) -> dict[str, Any]:
    """The content of tokenizer_config.json; ``context`` in tokens. The chat template has its own file."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
        "bos_token": None,
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "additional_special_tokens": list(SPECIAL),
    }
