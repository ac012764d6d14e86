"""Tags that the worker's hook puts in place of Dynamo's, read by Dynamo's own parsers, v1 and v2.

Random texts are sampled through xgrammar's mask, under our tag and under the one that Dynamo built; a scripted worker
writes them, and Dynamo's frontend reads them. `READER_CALLS=2000` tries more.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xgrammar", reason="xgrammar comes with vLLM: make env")
pytest.importorskip("dynamo.frontend", reason="needs Dynamo: make test, line 0.31.0")

from json_schemas import valid
from scripted_stack import STOCK, Front, script, started
from token_matcher import Matcher, single_bytes, words

from dynamo_structural_tags.settings import Mode, Reader, Settings
from dynamo_structural_tags.tags import Maker
from dynamo_structural_tags.worker import TagHook
from glm53.model import make

#: Calls to read, from at most ten times as many texts: many grow too long before they end.
CALLS = int(os.environ.get("READER_CALLS", "20"))
RECORDED = json.loads((Path(__file__).parent / "stock_tags.json").read_text("utf-8"))
READERS = {"1": Reader.DYNAMO_V1, "2": Reader.DYNAMO_V2}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", **parameters}}}
    for name, parameters in {
        "write": {
            "properties": {"path": {"type": "string", "pattern": "^/"}, "text": {"type": "string"}},
            "required": ["path", "text"],
            "additionalProperties": False,
        },
        "run": {
            "properties": {"mode": {"enum": ["fast", "slow"]}, "args": {"type": "array", "items": {"type": "string"}}},
            "required": ["mode"],
            "additionalProperties": False,
        },
        "edit": {
            "properties": {
                "at": {"type": "integer", "minimum": 0},
                "what": {"type": "object", "properties": {"old": {"type": "string"}}, "required": ["old"]},
            },
            "required": ["at", "what"],
            "additionalProperties": False,
        },
    }.items()
]
#: Without a thought before them, the texts are calls for the most part.
REQUEST: dict[str, Any] = {
    "tools": TOOLS,
    "tool_choice": "required",
    "chat_template_kwargs": {"enable_thinking": False},
}
_CALL = re.compile("<tool_call>.*?</arg_value></tool_call>", re.DOTALL)
_SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


@pytest.fixture(scope="module", params=["1", "2"])
def dynamo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Front]]:
    """The version of Dynamo's parser, and a frontend with it."""
    folder = tmp_path_factory.mktemp("readers")
    make(folder / "tiny", layers=1)
    with started(folder / "run", folder / "tiny", {"stock": STOCK}, "--parsers", parser=request.param) as fronts:
        yield request.param, fronts["stock"]


def _tag(front: Front, **body: Any) -> dict[str, Any]:
    """The tag that Dynamo builds for a request."""
    assert front.post(**body, max_tokens=5).status_code == 200
    return front.seen()["sampling_options"]["guided_decoding"]["structural_tag"]


def test_dynamo_builds_the_recorded_tags(dynamo: tuple[str, Front]) -> None:
    version, front = dynamo

    for name, tag in RECORDED["tags"][f"v{version}"].items():
        if tag is not None:
            assert _tag(front, **RECORDED["requests"][name]) == tag, name


def _wrong(front: Front, tag: dict[str, Any], seed: int, vocabulary: list[bytes]) -> tuple[int, list[str]]:
    """How many calls Dynamo read from random texts under a tag, and which of the texts did not come out right."""
    matcher, rng = Matcher(vocabulary), random.Random(seed)
    compiled = matcher.compile(tag)
    read, wrong = 0, []
    for _ in range(10 * CALLS):
        if read >= CALLS:
            break
        text = matcher.sample(compiled, rng, limit=600)
        if text is None or "@@" in text or any(quote in content for content in _CALL.split(text) for quote in "\"'`"):
            continue  # too long; not to be scripted; or the limit of the last test
        answer = front.post(**REQUEST, messages=[{"role": "user", "content": script(text)}]).json()
        choice = answer["choices"][0]
        calls = choice["message"].get("tool_calls") or []
        read += len(calls)
        good = len(calls) == text.count("</arg_value></tool_call>") and choice["finish_reason"] == "tool_calls"
        for call in calls:
            arguments = json.loads(call["function"]["arguments"])
            good = good and valid(_SCHEMAS[call["function"]["name"]], arguments)
        if not good:
            wrong.append(f"{text!r}: {calls} {choice['finish_reason']}")
    return read, wrong


@pytest.mark.parametrize("vocabulary", [single_bytes, words])
def test_every_text_of_our_tag_comes_out_right_in_dynamos_parser(dynamo: tuple[str, Front], vocabulary: Any) -> None:
    version, front = dynamo
    settings = Settings(mode=Mode.ENFORCE, reader=READERS[version])
    tag = json.dumps(_tag(front, **REQUEST))

    ours = json.loads(TagHook(settings, Maker(settings)).replace(tag))
    read, wrong = _wrong(front, ours, 1, vocabulary())

    assert wrong == []
    assert read >= CALLS / 2


def test_some_texts_of_dynamos_own_tag_do_not(dynamo: tuple[str, Front]) -> None:
    """The control: what is tested above can go wrong."""
    _, front = dynamo

    _, wrong = _wrong(front, _tag(front, **REQUEST), 1, words())

    assert len(wrong) > CALLS / 4


@pytest.mark.parametrize(("content", "calls"), [("I'll run it: ", 1), ('the "x" y ', 1), ('say "x ', 0), ("`x ", 0)])
def test_behind_an_open_quote_dynamos_v2_parser_sees_no_call(
    dynamo: tuple[str, Front], content: str, calls: int
) -> None:
    """A limit of tags: they cannot tell an open quote in the content. This plugin's frontend reads the call."""
    version, front = dynamo
    text = f"{content}<tool_call>run<arg_key>mode</arg_key><arg_value>fast</arg_value></tool_call>"

    answer = front.post(**REQUEST, messages=[{"role": "user", "content": script(text)}]).json()

    found = answer["choices"][0]["message"].get("tool_calls") or []
    assert len(found) == (calls if version == "2" else 1)
