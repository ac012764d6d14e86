"""A grammar compiler that knows GLM's tags before the first request: what takes long is done while the engine starts.

xgrammar looks at each state of a text or a string once for all tokens, about half a second of processor time for GLM's
vocabulary, and keeps what it finds for all later grammars of the same compiler. vLLM makes its compiler at the first
request that needs one. Here an engine of a model with GLM's markers makes it when it starts, compiles a tag of each
of GLM's families, and hands it over when vLLM asks for one.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any

__all__ = ["TOOL", "hand_over", "prepare", "tags"]

_log = logging.getLogger("dynamo_structural_tags")

#: Has all kinds of texts that a tag may hold.
TOOL = {
    "name": "any",
    "parameters": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "texts": {"type": "array", "items": {"type": "string"}},
            "pair": {"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": False},
            "map": {"type": "object"},
            "list": {"type": "array"},
            "number": {"type": "number"},
            "address": {"type": "string", "pattern": "^https?://"},
        },
        "required": ["text"],
        "additionalProperties": False,
    },
}

_prepared: list[Any] = []


def tags() -> list[str]:
    """A tag of each of GLM's families, as JSON text."""
    from dynamo_structural_tags.grammar import build_tag
    from dynamo_structural_tags.settings import Reader
    from dynamo_structural_tags.tags import family_for

    families = dict.fromkeys(family_for("glm", reader) for reader in Reader if reader is not Reader.AUTO)
    return [json.dumps(build_tag([TOOL], family=family)) for family in families]


def prepare(manager: Any) -> None:
    """Make a backend for vLLM's StructuredOutputManager, and compile with it what later grammars share.

    Does nothing for a model without GLM's markers among its tokens, without a tokenizer, and where the engine is told
    to use another backend. Never raises: without this, the first request waits longer.
    """
    config, tokenizer = manager.vllm_config, getattr(manager, "tokenizer", None)
    if tokenizer is None or config.structured_outputs_config.backend not in ("auto", "xgrammar"):
        return
    start = time.monotonic()
    try:
        from dynamo_structural_tags.glm_format import MARKS

        if not tokenizer.get_vocab().keys() >= MARKS:
            return
        _prepared[:] = [_warm(config, tokenizer)]
    except Exception as error:
        _log.warning("the grammar compiler was not prepared, so the first tool call compiles longer: %s", error)
        return
    _log.info("grammar compiler prepared in %.1f s", time.monotonic() - start)


def _warm(config: Any, tokenizer: Any) -> Any:
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

    backend = XgrammarBackend(config, tokenizer=tokenizer, vocab_size=config.model_config.get_vocab_size())
    for tag in tags():
        backend.compile_grammar(StructuredOutputOptions.STRUCTURAL_TAG, tag)
    return backend


def hand_over(backend: Any) -> bool:
    """Make a new XgrammarBackend the prepared one, once; False if none is prepared for its model."""
    for made in _prepared:
        if made.tokenizer is backend.tokenizer and made.vocab_size == backend.vocab_size:
            vars(backend).update(vars(made))
            _prepared.clear()
            return True
    return False
