"""Every output of glm_outputs.json through the real HTTP frontend: streamed, in one piece, and parsed are the same.

The worker is scripted (a fake); tests/stack runs the same frontend over vLLM.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

import pytest
from glm_turns import Case, cases, equal_json
from scripted_stack import Front, script

from dynamo_structural_tags.parser import ParsedOutput, parse_output

CASES = [case for case in cases() if not any(0xD800 <= ord(letter) < 0xE000 for letter in case.raw)]
#: Tokens a message. FRONTEND_STEPS=all cuts each output at every place.
STEPS = (1, 4, 0)


@dataclass
class Read:
    """What a client puts together from a response."""

    reasoning: str = ""
    content: str = ""
    calls: dict[int, list[str]] = field(default_factory=dict)
    finish: str | None = None
    notes: list[dict[str, Any]] = field(default_factory=list)

    def complete(self) -> list[tuple[str, dict[str, Any]]]:
        """Calls whose arguments are JSON."""
        found = []
        for name, arguments in self.calls.values():
            try:
                found.append((name, json.loads(arguments)))
            except ValueError:
                continue
        return found


def _streamed(front: Front, **body: Any) -> Read:
    read = Read()
    for event in front.events(**body):
        read.notes += (event.get("nvext") or {}).get("tool_call_notes", [])
        for choice in event["choices"]:
            assert read.finish is None, "a delta behind the finish reason"
            delta = choice["delta"]
            read.reasoning += delta.get("reasoning_content") or ""
            read.content += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                if "name" in call["function"]:
                    assert call["id"]
                    read.calls[call["index"]] = [call["function"]["name"], ""]
                read.calls[call["index"]][1] += call["function"]["arguments"]
            read.finish = choice["finish_reason"]
    return read


def _whole(front: Front, **body: Any) -> Read:
    answer = front.post(**body).json()
    [choice] = answer["choices"]
    message = choice["message"]
    return Read(
        message.get("reasoning_content") or "",
        message["content"] or "",
        {
            place: [call["function"]["name"], call["function"]["arguments"]]
            for place, call in enumerate(message.get("tool_calls") or ())
        },
        choice["finish_reason"],
        (answer.get("nvext") or {}).get("tool_call_notes", []),
    )


def _request(case: Case, step: int) -> dict[str, Any]:
    """The case as a request; the parser is asked with the same tools and choice."""
    message = script(case.raw, step=step, finish=case.finish)
    request: dict[str, Any] = {"messages": [{"role": "user", "content": message}], "max_tokens": 10_000}
    return request | ({"tools": case.tools, "tool_choice": case.tool_choice} if case.tools else {})


def _check(read: Read, parsed: ParsedOutput, where: str) -> None:
    assert (read.reasoning, read.content, read.finish) == (parsed.reasoning, parsed.content, parsed.finish_reason), (
        where
    )
    assert len(read.complete()) == len(parsed.calls), where
    for (name, got), (right_name, right) in zip(read.complete(), parsed.calls, strict=True):
        assert (name, json.dumps(got)) == (right_name, json.dumps(right)), where
        assert equal_json(got, right), where
    assert [(note["code"], note["text"]) for note in read.notes] == [(n.code, n.text) for n in parsed.notes], where


def _servable(case: Case) -> bool:
    """Dynamo refuses some tool choices by itself, such as allowed_tools and a named tool that is not declared."""
    if isinstance(case.tool_choice, dict):
        name = (case.tool_choice.get("function") or {}).get("name")
        return name in [tool["function"]["name"] for tool in case.tools]
    return bool(case.tools) or case.tool_choice in ("auto", "none")


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_streamed_equals_whole_equals_parsed(fronts: dict[str, Front], case: Case) -> None:
    if not _servable(case):
        assert fronts["ours"].post(**_request(case, 0)).status_code == 400
        return
    parsed = parse_output(case.raw, case.tools, finish_reason=case.finish, tool_choice=case.tool_choice)

    _check(_whole(fronts["ours"], **_request(case, 3)), parsed, "in one piece")
    steps = range(len(case.raw)) if os.environ.get("FRONTEND_STEPS") == "all" else STEPS
    for step in steps:
        read = _streamed(fronts["ours"], **_request(case, step))
        _check(read, parsed, f"streamed, {step} tokens a message")
        cut = [call for call in read.calls.values() if tuple(call[:1]) in [(name,) for name, _ in parsed.truncated]]
        assert not parsed.truncated or cut[-1][1] == parsed.truncated[-1][1]


@pytest.mark.parametrize("case", [case for case in CASES if _servable(case)][::4], ids=lambda case: case.id)
def test_streams_are_right_also_where_the_worker_announces_dynamos_parsers(
    fronts: dict[str, Front], case: Case
) -> None:
    parsed = parse_output(case.raw, case.tools, finish_reason=case.finish, tool_choice=case.tool_choice)

    _check(_streamed(fronts["ours_announced"], **_request(case, 2)), parsed, "streamed")


def test_the_frontend_warns_of_a_worker_that_announces_parsers(fronts: dict[str, Front]) -> None:
    assert "announces tool_call_parser=glm47" in fronts["ours_announced"].log.read_text()
    assert "announces tool_call_parser" not in fronts["ours"].log.read_text()
