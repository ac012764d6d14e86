"""What constrains an output: the tag of the request's tools, or the client's own constraint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from dynamo_structural_tags import metrics
from dynamo_structural_tags.frontend.refusal import RefusedRequest
from dynamo_structural_tags.settings import Reader

__all__ = ["Guidance", "client_constraint", "json_schema"]

_CONSTRAINTS = {"guided_json": "json", "guided_regex": "regex", "guided_grammar": "grammar", "guided_choice": "choice"}


class MakesTags(Protocol):
    """What `tags.Maker` does: a tag's JSON text, None if nothing for these tools compiles."""

    def make(
        self,
        tools: list[dict[str, Any]],
        *,
        tool_choice: Any,
        parallel: bool,
        reasoning: bool,
        response_schema: Any,
        reader: Reader,
    ) -> str | None: ...


class Guidance:
    """Chooses the guided decoding options of a request.

    maker: makes the tags; None sends none, as the worker's --dyn-structural-tag false asks for.
    """

    def __init__(self, maker: MakesTags | None) -> None:
        self._maker = maker

    def options(self, request: Mapping[str, Any], *, thinking: bool) -> dict[str, Any] | None:
        """The guided decoding options in Dynamo's form; None leaves the output free.

        thinking: whether the output begins inside the reasoning; a tag holds it then.
        Raises `RefusedRequest` if the client forces a call and constrains the output at once, or no tool can be called.
        """
        choice = request.get("tool_choice") or "auto"
        tools = request.get("tools") if choice != "none" else None
        constraint = client_constraint(request)
        if constraint is not None and tools and choice != "auto":
            raise RefusedRequest(
                f"tool_choice={choice!r} with {_name(request)}: the output cannot be a call and follow the "
                "constraint. Leave one of them out."
            )
        schema = json_schema(request) if choice in ("auto", "none") else None
        if constraint is not None:
            return constraint
        needed = tools or choice not in ("auto", "none") or (schema is not None and thinking)
        if needed and (tag := self._tag(request, tools or [], choice, thinking, schema)) is not None:
            return {"structural_tag": tag}
        # A schema alone, with no reasoning in front, needs no tag: it is sent as Dynamo sends it.
        return None if schema is None else {"json": schema}

    def _tag(
        self, request: Mapping[str, Any], tools: list[dict[str, Any]], choice: Any, reasoning: bool, schema: Any
    ) -> dict[str, Any] | None:
        if self._maker is None:
            return None
        try:
            tag = self._maker.make(
                tools,
                tool_choice=choice,
                parallel=request.get("parallel_tool_calls") is not False,
                reasoning=reasoning,
                response_schema=schema,
                reader=Reader.OURS,
            )
        except ValueError as error:
            raise RefusedRequest(str(error)) from error
        metrics.tag("failed" if tag is None else "built")
        return None if tag is None else json.loads(tag)


def client_constraint(request: Mapping[str, Any]) -> dict[str, Any] | None:
    """The constraint of ``guided_json`` and its siblings."""
    for field, name in _CONSTRAINTS.items():
        if request.get(field):
            found = {name: request[field]}
            if request.get("guided_whitespace_pattern") is not None:
                found["whitespace_pattern"] = request["guided_whitespace_pattern"]
            return found
    return None


def json_schema(request: Mapping[str, Any]) -> Any:
    """The schema that ``response_format`` asks the content to follow; None for free text."""
    given = request.get("response_format") or {}
    match given.get("type"):
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            return (given.get("json_schema") or {}).get("schema")
    return None


def _name(request: Mapping[str, Any]) -> str:
    return next(field for field in _CONSTRAINTS if request.get(field))
