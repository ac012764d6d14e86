"""Puts this plugin's parts into a vLLM process: tool parser, tags, counters."""

from __future__ import annotations

import logging
import sys

from dynamo_structural_tags import metrics, stock
from dynamo_structural_tags.patches import REGISTER, TAGS, WARM
from dynamo_structural_tags.settings import Mode, Settings
from stockpatch.register import PatchError

__all__ = ["PARSER", "start", "start_engine"]

PARSER = "glm47_safe"

_log = logging.getLogger(__name__)


def start(settings: Settings) -> None:
    """Register the tool parser by name; with a mode other than off, hook the tags. Harmless when repeated."""
    from vllm.tool_parsers import ToolParserManager

    ToolParserManager.register_lazy_module(PARSER, "dynamo_structural_tags.vllm_parser", "GlmToolParser")
    if settings.mode is Mode.OFF:
        return
    from dynamo_structural_tags import worker

    worker.start(settings)
    try:
        REGISTER.apply(TAGS)
    except PatchError as error:
        if not stock.untested():
            raise
        _log.warning("mode off instead of %s: %s", settings.mode, error)
        return
    if settings.mode is Mode.ENFORCE:
        from dynamo_structural_tags import vllm_tags

        vllm_tags.register_builder()
    start_engine(settings)
    _show_counters()


def start_engine(settings: Settings) -> None:
    """Let an engine of this process prepare its grammar compiler, if tags are enforced. Harmless when repeated."""
    if settings.mode is Mode.ENFORCE:
        REGISTER.apply(WARM)


def _show_counters() -> None:
    """Let the counters appear where this process shows its metrics.

    Only if prometheus_client is loaded: who loads it first decides whether it counts in files, and that is for vLLM
    or Dynamo to choose. Dynamo's worker shows one registry of its own, and of the common one only vLLM's metrics.
    """
    if "prometheus_client" not in sys.modules:
        return
    publisher = sys.modules.get("dynamo.vllm.publisher")
    metrics.show(getattr(publisher, "DYNAMO_COMPONENT_REGISTRY", None))
