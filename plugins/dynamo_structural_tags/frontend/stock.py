"""Everything of Dynamo 1.6 that this package calls, in one place: errors, template arguments, the chat engine hook."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["engine_error", "incomplete", "refused", "sends_tags", "template_arguments"]

#: How the router's exceptions begin: a request that the worker refuses, and a worker that cannot be reached.
_INVALID = ("InvalidRequest", "InvalidArgument", "BackendInvalidArgument")
_UNAVAILABLE = ("Unavailable", "CannotConnect", "Disconnected", "ConnectionTimeout", "WorkerUnavailable")


def refused(message: str) -> Exception:
    """Dynamo's exception that becomes a 400 with this message; those of its HttpError the client never sees."""
    from dynamo.llm.exceptions import InvalidArgument

    return InvalidArgument(message)


def incomplete(message: str) -> Exception:
    """Dynamo's exception for a stream that broke off: 503, or an error event once chunks were sent."""
    from dynamo.llm.exceptions import StreamIncomplete

    return StreamIncomplete(message)


def engine_error(error: Exception) -> Exception:
    """The exception to raise for one of the router or a worker: `refused` with the worker's reason if it refused the
    request, 503 if it cannot be reached, else 500.

    The router raises ValueError for all of them, which Dynamo would take for the client's fault.
    """
    from dynamo.llm.exceptions import CannotConnect, DynamoException

    if isinstance(error, DynamoException):
        return error
    kind, _, text = str(error).partition(": ")
    if kind in _INVALID:
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = None
        return refused(str(parsed.get("message", text)) if isinstance(parsed, dict) else text)
    return CannotConnect(str(error)) if kind in _UNAVAILABLE else RuntimeError(str(error))


def template_arguments(request: Mapping[str, Any], runtime: Mapping[str, Any]) -> dict[str, Any]:
    """The chat template's arguments: the request's, with the deployment's default for thinking."""
    from dynamo.frontend.thinking import apply_default_thinking_mode_to_template_kwargs, runtime_default_thinking_mode

    return apply_default_thinking_mode_to_template_kwargs(
        dict(request.get("chat_template_args") or request.get("chat_template_kwargs") or {}),
        runtime_default_thinking_mode(dict(runtime)),
        request_has_root_thinking=request.get("thinking") is not None,
    )


def sends_tags(runtime: Mapping[str, Any]) -> bool:
    """Whether the worker asks frontends for structural tags (--dyn-structural-tag)."""
    from dynamo.frontend.structural_tag_policy import runtime_structural_tag_options

    return bool(runtime_structural_tag_options(dict(runtime))[0] == "on")
