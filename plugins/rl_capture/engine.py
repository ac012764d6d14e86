"""Puts a capture together for an engine that has just been made."""

from __future__ import annotations

import logging
from typing import Any

from rl_capture import metrics, stock
from rl_capture.files import Writer
from rl_capture.generation import Capture
from rl_capture.making import Maker
from rl_capture.outcomes import readers
from rl_capture.recorder import Recorder
from rl_capture.redaction import expressions
from rl_capture.settings import Settings
from rl_capture.token_bytes import TokenBytes
from rl_capture.weights import Weights

__all__ = ["capture_for"]

_log = logging.getLogger(__name__)


def capture_for(engine: Any, settings: Settings) -> Capture:
    """The capture of this `AsyncLLM`.

    Raises ValueError where the settings need text and there is no byte-level tokenizer, and OSError for a folder that
    cannot be written: before a client is served.
    """
    config = engine.model_config
    found = expressions(settings.redact)
    told = readers() if settings.outcomes else []
    known = _known(engine.tokenizer, settings) if found or settings.text or told else None
    weights = Weights(settings.weights or "@".join(filter(None, (config.model, config.revision))))
    served = config.served_model_name
    maker = Maker(
        served[0] if isinstance(served, list) else served or config.model,
        config.logprobs_mode,
        weights,
        known,
        found,
        text=settings.text,
        prompt_tokens=settings.prompt_tokens,
        readers=told,
    )
    writer = Writer(settings.folder, settings.file_bytes, settings.total_bytes, drop_oldest=settings.drop_oldest)
    metrics.show()
    recorder = Recorder(writer, maker.lines, settings.queue_tokens)
    ask = None if stock.outputs_have_versions() else engine.get_weight_version
    _log.warning(
        "requests are recorded in %s: ids%s, %s masked, %s of the sessions",
        *(settings.folder, " and text" if settings.text else "", settings.redact, f"{settings.sample:.0%}"),
    )
    return Capture(recorder, weights, ask, settings.sample)


def _known(tokenizer: Any, settings: Settings) -> TokenBytes:
    if tokenizer is None:
        raise ValueError(
            f"RL_CAPTURE_REDACT={settings.redact} needs the tokenizer, and this engine has none "
            "(--skip-tokenizer-init). Serve with the tokenizer, or set RL_CAPTURE_REDACT=none, RL_CAPTURE_TEXT=off and "
            "RL_CAPTURE_OUTCOMES=off."
        )
    return TokenBytes(tokenizer)
