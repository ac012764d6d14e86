"""Where Dynamo's frontend is told of this plugin's chat engine: one record of the register of patches."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

from dynamo_structural_tags.stock import DYNAMO
from stockpatch.register import Patch

__all__ = ["CHAT_ENGINE"]


def _with_our_engine(original: Any) -> Any:
    @functools.wraps(original, updated=())
    def arguments(engine_type: Any, **given: Any) -> Any:
        from dynamo_structural_tags.frontend.launch import chat_engine

        if other := given.get("chat_engine_factory"):
            raise ValueError(
                f"chat_engine_factory={getattr(other, '__qualname__', other)}: --dyn-chat-processor or "
                "DYN_CHAT_PROCESSOR asks for another chat engine, so that no call would be read or held by this "
                "plugin. Leave both out, or run python -m dynamo.frontend for the other engine."
            )
        return original(engine_type, **given | {"chat_engine_factory": chat_engine})

    return arguments


def _frontend_takes_an_engine() -> bool:
    frontend = importlib.import_module("dynamo.frontend.main")
    return "chat_engine_factory" in inspect.signature(frontend.async_main).parameters


#: Dynamo's Rust side takes any chat engine; its frontend hands over only those of --dyn-chat-processor.
CHAT_ENGINE = Patch(
    id="frontend-chat-engine",
    target="dynamo.frontend.main:EntrypointArgs",
    window=DYNAMO,
    why="EntrypointArgs takes a chat engine written in Python, but the frontend passes it only vLLM's and SGLang's. "
    "The replacement adds this plugin's, and refuses another beside it; everything else of the frontend stays as it "
    "is.",
    upstream="https://github.com/ai-dynamo/dynamo/blob/main/components/src/dynamo/frontend/main.py",
    remove_when="dynamo.frontend takes a chat engine of its users, by an option or an entry point.",
    replace=_with_our_engine,
    expects=None,
    obsolete=_frontend_takes_an_engine,
    optional_outside=True,
)
