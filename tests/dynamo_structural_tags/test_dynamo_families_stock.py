"""Families beside GLM in Dynamo: the tags that it builds for them, and what its own parsers make of texts of ours.

A scripted worker serves one model for each of Dynamo's parsers and writes texts sampled through xgrammar's mask.
stock_tags_families.json holds Dynamo's tags: ``RECORD_STOCK_TAGS=1`` writes it anew. `FAMILY_SAMPLES=500` tries more
tool lists, `FAMILY_SEED` starts elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs the pinned stock environment: make test")
pytest.importorskip("dynamo.frontend", reason="needs Dynamo: make test, line 0.31.0")

from family_texts import MARKS, turn_text
from json_schemas import Judge
from odd_values import ODD_TOOL, ODD_VALUES, PLAIN, call_of, same
from round_trips import speaks_of
from scripted_stack import STOCK, Front, script, started
from token_matcher import Matcher, single_bytes, words
from tool_lists import random_tools

from dynamo_structural_tags.families import FAMILIES
from dynamo_structural_tags.grammar import build
from dynamo_structural_tags.ladder import Level
from dynamo_structural_tags.schema import Verdict
from dynamo_structural_tags.settings import Mode, Reader, Settings
from dynamo_structural_tags.stock_tags import is_own
from dynamo_structural_tags.tags import Maker
from dynamo_structural_tags.worker import TagHook
from glm53.model import make

SAMPLES = int(os.environ.get("FAMILY_SAMPLES", "8"))
SEED = int(os.environ.get("FAMILY_SEED", "0"))
RECORD = Path(__file__).parent / "stock_tags_families.json"
RECORDED = json.loads(RECORD.read_text("utf-8"))

#: Dynamo's name of the parser for each family, by the version of Dynamo's parsers.
READERS = {
    "1": {
        "deepseek_v3-dynamo-v1": "deepseek_v3",
        "deepseek_v31": "deepseek_v3_1",
        "deepseek_v32-dynamo-v1": "deepseek_v3_2",
        "deepseek_v4-dynamo-v1": "deepseek_v4",
        "gemma4-dynamo-v1": "gemma4",
        "glm-dynamo-v1": "glm47",
        "hermes": "hermes",
        "jamba": "jamba",
        "kimi_k2": "kimi_k2",
        "llama3_json": "llama3_json",
        "minimax_m2-dynamo-v1": "minimax_m2",
        "minimax_m3": "minimax_m3",
        "mistral": "mistral",
        "nemotron_deci": "nemotron_deci",
        "phi4": "phi4",
        "qwen3_coder-dynamo-v1": "qwen3_coder",
    },
    "2": {
        "deepseek_v4": "deepseek_v4",
        "glm-dynamo-v2": "glm47",
        "kimi_k2": "kimi_k2",
        "qwen3_coder-dynamo-v2": "qwen3_coder",
    },
}
#: So that v2 does not take the text for a thought.
NO_THOUGHT = {"chat_template_kwargs": {"enable_thinking": False}}
CASES = [(version, family) for version, families in READERS.items() for family in families]


@pytest.fixture(scope="module")
def dynamo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Front]]:
    """Gives a frontend with a model for each parser, by the version of Dynamo's parsers."""
    running: dict[str, Front] = {}
    with contextlib.ExitStack() as stack:

        def front(version: str) -> Front:
            if version not in running:
                folder = tmp_path_factory.mktemp("families")
                make(folder / "tiny", layers=1)
                parsers = sorted(set(READERS[version].values()))
                options = f"--parsers={','.join(parsers)}"
                fronts = started(folder / "run", folder / "tiny", {"stock": STOCK}, options, parser=version)
                found = running[version] = stack.enter_context(fronts)["stock"]
                deadline = time.monotonic() + 60
                while missing := set(parsers) - _served(found):
                    assert time.monotonic() < deadline, missing
                    time.sleep(0.1)
            return running[version]

        yield front


def _served(front: Front) -> set[str]:
    return {model["id"] for model in front.client.get(f"{front.url}/v1/models").json()["data"]}


@pytest.mark.parametrize("version", READERS)
def test_dynamo_builds_the_recorded_tags(dynamo: Callable[[str], Front], version: str) -> None:
    front = dynamo(version)
    found: dict[str, dict[str, Any]] = {}
    for parser in RECORDED["tags"][version]:
        for name, body in RECORDED["requests"].items():
            assert front.post(**body, model=parser).status_code == 200
            guided = front.seen()["sampling_options"]["guided_decoding"]
            found.setdefault(parser, {})[name] = guided["structural_tag"]

    if os.environ.get("RECORD_STOCK_TAGS"):
        RECORDED["tags"][version] = found
        RECORD.write_text(_written(RECORDED) + "\n", "utf-8")
    assert found == RECORDED["tags"][version]


def _written(node: Any, depth: int = 4) -> str:
    """JSON with a line for each tag."""
    if depth == 0 or not isinstance(node, dict):
        return json.dumps(node, ensure_ascii=False)
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {_written(one, depth - 1)}" for key, one in node.items()) + "\n}"


@pytest.mark.parametrize(
    ("version", "parser", "kind"),
    [
        (version, parser, kind)
        for version, parsers in RECORDED["tags"].items()
        for parser, tags in parsers.items()
        for kind in tags
    ],
)
def test_the_workers_hook_puts_a_tag_of_ours_in_the_place_of_dynamos(version: str, parser: str, kind: str) -> None:
    settings = Settings(mode=Mode.ENFORCE, reader=Reader.DYNAMO_V1 if version == "1" else Reader.DYNAMO_V2)
    stock = RECORDED["tags"][version][parser][kind]
    family = next(name for name, reader in READERS[version].items() if reader == parser).partition("-")[0]
    call = turn_text(family, ("noargs", {}) if kind == "named" else ("get_weather", {"city": "Ulm"}))
    in_reasoning = stock["format"]["type"] == "sequence"

    ours = json.loads(TagHook(settings, Maker(settings)).replace(json.dumps(stock)))

    assert is_own(ours)
    matcher = Matcher(single_bytes())
    compiled = matcher.compile(ours)
    texts = (f"Hm.</think>{FAMILIES[family].lead}{call}", f"\n<think>Hm.</think>{call}", call, "Hm.</think>Hi", "Hi")
    accepted = [matcher.accepts(compiled, text) for text in texts]
    # Where Dynamo's tag does not tell whether the output begins in the reasoning, both may come.
    free = kind in ("auto", "single")
    assert accepted == [True, True, not in_reasoning, free, free and not in_reasoning]


def _tools(rng: random.Random) -> list[dict[str, Any]]:
    """Random tools with names that Dynamo takes."""
    return json.loads(json.dumps(random_tools(rng)).replace('"a.b"', '"a_b"'))


@pytest.mark.parametrize(("version", "family"), CASES)
def test_dynamos_parser_reads_valid_calls_in_every_text_of_the_grammar(
    dynamo: Callable[[str], Front], version: str, family: str
) -> None:
    """A call fits the schema, or breaks a keyword that a message names; all texts that fail are told together."""
    front = dynamo(version)
    marks = MARKS.get(family.partition("-")[0], ())
    matcher = Matcher(list(dict.fromkeys([*words(), *(mark.encode() for mark in marks)])))
    read_calls = 0
    faults: list[str] = []
    for seed in range(SEED, SEED + SAMPLES):
        rng = random.Random(seed)
        tools = _tools(rng)
        built = build(tools, family=family, tool_choice="required" if seed % 4 else "auto", parallel=rng.random() < 0.7)
        judges = {one["function"]["name"]: Judge(one["function"].get("parameters", {})) for one in tools}
        made = {one.name: one for one in built.tools}
        compiled = matcher.compile(built.tag)
        for _ in range(3):
            text = matcher.sample(compiled, rng, ends=(b">", b"}", b"]"))
            if text is None or "@@" in text:
                continue  # too long, or not to be scripted
            message = [{"role": "user", "content": script(text)}]
            response = front.post(model=READERS[version][family], tools=tools, messages=message, **NO_THOUGHT)
            if response.status_code == 400:
                break  # Dynamo does not take one of the schemas
            answer = response.json()["choices"][0]["message"]
            calls = answer.get("tool_calls") or []
            read_calls += len(calls)
            begin = text.find(FAMILIES[family].trigger)
            beside = (text if begin < 0 else text[:begin]).strip()
            behind = family.startswith("glm") and begin >= 0  # where text may stand behind calls, too
            good = bool(calls) == (begin >= 0) and (behind or (answer.get("content") or "").strip() == beside)
            faults += [] if good else [f"seed {seed}: {text!r}: {answer}"]
            for call in calls:
                name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
                errors = judges[name].iter_errors(arguments) if name in judges else ["undeclared"]
                exact = name in made and made[name].verdict is Verdict.EXACT
                if wrong := [
                    error for error in errors if name not in made or exact or not speaks_of(made[name], error)
                ]:
                    faults.append(f"seed {seed}: {text!r}: {name} {arguments}: {wrong}")

    assert not faults, "\n".join(faults)
    assert read_calls >= SAMPLES / 3, read_calls


@pytest.mark.parametrize(("version", "family"), CASES)
def test_dynamos_parser_gives_back_every_odd_value_that_the_grammar_lets_through(
    dynamo: Callable[[str], Front], version: str, family: str
) -> None:
    """Written as the template does it: given back letter for letter, not accepted, or relaxed with a message."""
    front, base = dynamo(version), family.partition("-")[0]
    matcher = Matcher(single_bytes())
    built = build([ODD_TOOL], family=family)
    compiled = matcher.compile(built.tag)
    (made,) = built.tools
    relaxed = {message.path.split("/")[2] for message in made.messages if message.verdict is not Verdict.EXACT}
    assert made.level is Level.FULL
    faults = []
    for key, value in ODD_VALUES:
        text = call_of(base, "odd", {key: value})
        if not matcher.accepts(compiled, text):
            faults += [f"{key}={value!r}: not accepted"] if value in PLAIN.get(key, []) else []
            continue
        message = [{"role": "user", "content": script(text)}]
        response = front.post(model=READERS[version][family], tools=[ODD_TOOL], messages=message, **NO_THOUGHT)
        calls = response.json()["choices"][0]["message"].get("tool_calls") or []
        read = [json.loads(call["function"]["arguments"]) for call in calls]
        if len(read) != 1 or (not same(read[0].get(key), value) and key not in relaxed):
            faults.append(f"{key}={value!r}: read as {read}")

    assert not faults, "\n".join(faults)
