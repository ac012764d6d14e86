"""A request's messages as token ids, equal to those of Dynamo's own preprocessor.

Dynamo renders chat templates with MiniJinja and changes messages before it does; `rendered` makes the same changes for
Jinja2. test_frontend_prompt_stock.py compares the token ids with the stock frontend's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from dynamo_structural_tags.frontend.history import with_parsed_arguments
from dynamo_structural_tags.frontend.refusal import RefusedRequest

__all__ = ["Template", "template_source"]

_PROBE = "template probe"


def template_source(card: Mapping[str, Any], folder: Path) -> tuple[str | list[dict[str, str]], dict[str, Any]]:
    """The chat template that a model card means, and the tokenizer's configuration.

    card: the model deployment card as JSON. folder: where Dynamo put the model's files.
    Raises ValueError if there is none.
    """
    config = _json(folder / "tokenizer_config.json") or {}
    named = card.get("chat_template_file") or {}
    for kind in ("hf_chat_template", "hf_chat_template_jinja"):
        if path := ((named.get(kind) or {}).get("file") or {}).get("path"):
            return Path(path).read_text(encoding="utf-8"), config
    if path := ((named.get("hf_chat_template_json") or {}).get("file") or {}).get("path"):
        return _json(Path(path))["chat_template"], config
    if (folder / "chat_template.jinja").exists():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8"), config
    if not config.get("chat_template"):
        raise ValueError(
            f"model {card.get('display_name')!r} has no chat template: tokenizer_config.json lacks chat_template and "
            "there is no chat_template.jinja. Add one to the model, or give the worker --custom-jinja-template."
        )
    return config["chat_template"], config


class Template:
    """A chat template, compiled once.

    source: Jinja text, or a list of templates by name ("default", "tool_use").
    config: the tokenizer's configuration, for its special tokens.
    hide_tools: leave tools out of the prompt under ``tool_choice: "none"``.
    """

    def __init__(self, source: str | list[dict[str, str]], config: Mapping[str, Any], *, hide_tools: bool) -> None:
        from jinja2 import ext
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols])
        environment.filters.update(tojson=_to_json, fromjson=_from_json)
        environment.globals.update(raise_exception=_raise, strftime_now=_now)
        by_name = _by_name(source)
        self._plain = environment.from_string(by_name["default"])
        self._with_tools = environment.from_string(by_name.get("tool_use", by_name["default"]))
        self._tokens = {key: _token(config.get(key)) for key in ("bos_token", "eos_token", "unk_token")}
        self._hide_tools = hide_tools
        self._reads_reasoning = "reasoning_content" in "".join(by_name.values())
        self._wants_parts = self._shows([{"type": "text", "text": _PROBE}]) and not self._shows(_PROBE)

    def render(self, request: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
        """The prompt. request: a chat completion; arguments: the template's, from ``chat_template_kwargs``.

        Raises `RefusedRequest` for messages with anything but text, and for what the template refuses.
        """
        from jinja2 import TemplateError

        tools = request.get("tools")
        if self._hide_tools and request.get("tool_choice") == "none":
            tools = None
        chosen = self._with_tools if tools else self._plain
        try:
            return chosen.render(
                {
                    "messages": [self._message(message, place) for place, message in enumerate(request["messages"])],
                    "tools": None if tools is None else [_complete(tool) for tool in tools],
                    "add_generation_prompt": request.get("add_generation_prompt", True),
                    **self._tokens,
                    **arguments,
                }
            )
        except (TemplateError, TypeError) as error:
            raise RefusedRequest(
                f"messages: the model's chat template refuses them: {error}. Change the messages or the template."
            ) from error

    def _message(self, message: Mapping[str, Any], place: int) -> dict[str, Any]:
        changed = with_parsed_arguments(message)
        content = message.get("content")
        if isinstance(content, str) and self._wants_parts:
            changed["content"] = [{"type": "text", "text": content}]
        elif isinstance(content, list):
            for number, part in enumerate(content):
                if not isinstance(part, Mapping) or part.get("type") != "text":
                    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
                    raise RefusedRequest(
                        f"messages[{place}].content[{number}].type={kind!r}: this frontend serves text, and the part "
                        "would be lost. Send parts of type 'text', or use dynamo.frontend."
                    )
            if content and not self._wants_parts:
                changed["content"] = "\n".join(part.get("text") or "" for part in content)
        reasoning = message.get("reasoning_content")
        if isinstance(reasoning, list):
            changed["reasoning_content"] = "\n".join(part for part in reasoning if part)
        if changed.get("reasoning_content") and not self._reads_reasoning:
            thought = f"<think>{changed.pop('reasoning_content')}</think>"
            changed["content"] = _prepended(thought, changed.get("content"))
        return changed

    def _shows(self, content: Any) -> bool:
        try:
            text = self._plain.render(messages=[{"role": "user", "content": content}], add_generation_prompt=False)
        except Exception:  # a template may fail in any way on a shape that it does not know
            return False
        return _PROBE in text


def _by_name(source: str | list[dict[str, str]]) -> dict[str, str]:
    if isinstance(source, str):
        found = {"default": source}
    else:
        found = {entry["name"]: entry["template"] for entry in source if "template" in entry}
        for entry in source:
            found.update({} if "template" in entry else entry)
    if "default" not in found:
        raise ValueError(f"chat templates {sorted(found)}: none is called 'default'. Name one so.")
    for tag in ("{% generation %}", "{% endgeneration %}"):  # marks for training; they print nothing
        found = {name: text.replace(tag, "") for name, text in found.items()}
    return found


def _complete(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool with the keys that templates read without asking: Dynamo adds a description, type and properties."""
    function = dict(tool.get("function") or {})
    if not isinstance(function.get("description"), str):
        function["description"] = ""
    if isinstance(function.get("parameters"), Mapping):
        function["parameters"] = {**function["parameters"]}
        function["parameters"].setdefault("type", "object")
        function["parameters"].setdefault("properties", {})
    return {**tool, "function": function} if "function" in tool else dict(tool)


def _prepended(thought: str, content: Any) -> Any:
    if isinstance(content, list):
        return [{"type": "text", "text": thought}, *content]
    return thought + (content or "")


def _token(entry: Any) -> str | None:
    return entry.get("content") if isinstance(entry, Mapping) else entry


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _from_json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _raise(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
