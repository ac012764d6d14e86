"""Starts Dynamo's frontend with this plugin's chat engine in the place of its own."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from dynamo_structural_tags.settings import PREFIX, Mode, Settings
from dynamo_structural_tags.stock import DYNAMO
from stockpatch.versions import NotInstalled, UnsupportedVersion

__all__ = ["chat_engine", "main", "settings"]

_log = logging.getLogger("dynamo_structural_tags")

#: Milliseconds that Dynamo waits for a stream's first chunk, so that a refusal is an HTTP status and not an event.
_PEEK = ("DYN_HTTP_PRE_COMMIT_ERROR_PEEK_MS", "1000")
#: Dynamo reads the content of responses in one piece once more; this version leaves more of it alone.
_VERSION = ("DYN_PARSER_VERSION", "1")


def settings() -> Settings:
    """The settings of this process; the mode is `Mode.ENFORCE` if the environment says nothing.

    On a Dynamo that was not tested it is `Mode.REPORT`, with a warning. Raises `NotInstalled` without Dynamo.
    """
    found = Settings.read() if os.environ.get(PREFIX) else Settings.read({**os.environ, PREFIX: Mode.ENFORCE.value})
    try:
        DYNAMO.require()
    except NotInstalled:
        raise
    except UnsupportedVersion as error:
        _log.warning("chat completions are served by Dynamo's own engine: %s", error)
        return found.reporting()
    return found


def main() -> None:
    """Run the frontend until it is told to end. In the modes off and report it is Dynamo's own, chat engine included.

    Raises ModuleNotFoundError in mode enforce without xgrammar, SystemExit for a variable that is not usable.
    """
    try:
        mode = settings().mode
    except ValueError as error:
        sys.exit(str(error))
    if mode is Mode.ENFORCE:
        _put_in_our_engine()
    else:
        _log.warning("%s=%s: chat completions are served by Dynamo's own engine; enforce is for ours", PREFIX, mode)
    from dynamo.frontend.main import main as run

    run()


def _put_in_our_engine() -> None:
    if importlib.util.find_spec("xgrammar") is None:
        raise ModuleNotFoundError(
            "xgrammar is not installed here, so no tag could be tried before it is sent and every output would be "
            f"free. Run pip install xgrammar, the worker's version, or set {PREFIX}=off for Dynamo's own engine."
        )
    os.environ.setdefault(*_PEEK)
    os.environ.update([_VERSION])
    sys.argv += ["--frontend-route-extension", "dynamo_structural_tags.frontend.routes:routes"]
    from dynamo_structural_tags.patches import REGISTER

    REGISTER.apply(["frontend-chat-engine"])


async def chat_engine(instance: Any, card: Any, routed: Any) -> Any:
    """Make the engine of a model; Dynamo calls this for every chat model that appears.

    card: its ``ModelDeploymentCard``. routed: the ``RoutedEngine`` over its workers.
    Raises ValueError for a model whose output this plugin cannot read; Dynamo then logs it and does not serve it.
    """
    from dynamo.llm import PythonAsyncEngine

    from dynamo_structural_tags.frontend.engine import ChatEngine
    from dynamo_structural_tags.frontend.guidance import Guidance
    from dynamo_structural_tags.frontend.model import ServedModel
    from dynamo_structural_tags.frontend.stock import sends_tags

    described = json.loads(card.to_json_str())
    model = await asyncio.to_thread(ServedModel.load, described, Path(card.local_dir()))
    maker = await asyncio.to_thread(_maker) if sends_tags(model.runtime) else None
    _log.info("model %s: chat completions are parsed by dynamo_structural_tags", model.name)
    if parser := model.runtime.get("tool_call_parser"):
        _log.warning(
            "model %s: its worker announces tool_call_parser=%s, with which Dynamo reads the content of responses that "
            "are not streamed once more, and may take text in it for calls. Start workers behind this frontend "
            "without --dyn-tool-call-parser and --dyn-reasoning-parser.",
            model.name,
            parser,
        )
    return PythonAsyncEngine(ChatEngine(model, routed, Guidance(maker)).generate, asyncio.get_running_loop())


def _maker() -> Any:
    import xgrammar  # noqa: F401  # seconds, which the first request should not wait

    from dynamo_structural_tags.tags import Maker

    return Maker(settings())
