"""Tools, tool choice and format of a vLLM chat or responses request, as this plugin's functions take them."""

from __future__ import annotations

from typing import Any

__all__ = ["choice_of", "format_of", "tools_of"]


def tools_of(request: Any) -> list[dict[str, Any]]:
    """The request's functions as OpenAI tools, their schemas untouched; other kinds of tools are left out."""
    return [tool for entry in request.tools or () if (tool := _tool(entry)) is not None]


def _tool(entry: Any) -> dict[str, Any] | None:
    function = getattr(entry, "function", entry)  # chat nests what responses has flat
    name = getattr(function, "name", None)
    if not isinstance(name, str) or getattr(entry, "type", "function") != "function":
        return None
    found: dict[str, Any] = {"name": name}
    for key in ("description", "parameters", "strict"):
        if (value := getattr(function, key, None)) is not None:
            found[key] = value
    return {"type": "function", "function": found}


def choice_of(request: Any) -> Any:
    """The tool choice: a word, or an object as OpenAI's API has it."""
    choice = request.tool_choice
    if choice is None:
        return "auto" if request.tools else "none"
    return choice.model_dump(exclude_none=True) if hasattr(choice, "model_dump") else choice


def format_of(request: Any) -> Any:
    """The JSON Schema that the request wants its answer in; None if it wants none, False if it is another format."""
    wanted = request.extract_structured_outputs()
    if wanted is None or wanted.all_constraints_none():
        return None
    if wanted.json_object:
        return {"type": "object"}
    return wanted.json if isinstance(wanted.json, dict | bool) else False
