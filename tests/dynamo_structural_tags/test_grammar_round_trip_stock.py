"""Random tools: what the grammar of `build_tag` allows, the parser reads back as valid calls; nothing valid is lost.

Texts are sampled through xgrammar's own mask, over single bytes and over tokens that span markers.
`GRAMMAR_SAMPLES=100000` tries more tool lists, `GRAMMAR_SEED` starts elsewhere.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest

pytest.importorskip("xgrammar", reason="xgrammar comes with vLLM: make env")

from glm_turns import call_text
from json_schemas import random_value, valid
from token_matcher import Matcher, single_bytes, words
from tool_lists import random_tools

from dynamo_structural_tags.ebnf.keys import MOST_ANY_ORDER
from dynamo_structural_tags.grammar import Built, build
from dynamo_structural_tags.ladder import Level
from dynamo_structural_tags.parser import parse_output
from dynamo_structural_tags.schema import Verdict

SAMPLES = int(os.environ.get("GRAMMAR_SAMPLES", "60"))
SEED = int(os.environ.get("GRAMMAR_SEED", "0"))
CLOSERS = ("</arg_value>", "<arg_value>")


@pytest.fixture(scope="module", params=["single bytes", "tokens that span markers"])
def matcher(request: pytest.FixtureRequest) -> Matcher:
    return Matcher(single_bytes() if request.param == "single bytes" else words())


def _verdicts(built: Built) -> dict[str, Verdict]:
    return {tool.name: tool.verdict for tool in built.tools}


def test_texts_of_the_grammar_come_back_as_valid_calls(matcher: Matcher) -> None:
    read = exact = 0
    for seed in range(SEED, SEED + SAMPLES):
        rng = random.Random(seed)
        tools = random_tools(rng)
        built = build(tools, tool_choice=rng.choice(["auto", "required", "required"]), parallel=rng.random() < 0.7)
        schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}
        compiled = matcher.compile(built.tag)
        verdicts = _verdicts(built)
        for _ in range(3):
            text = matcher.sample(compiled, rng)
            if text is None:
                continue
            output = parse_output(text, tools, thinking=False)
            for (name, arguments), outcome in zip(output.calls, output.outcomes, strict=True):
                read += 1
                why = (seed, name, schemas[name], arguments, text, output.notes, built.tools)
                if verdicts[name] is Verdict.EXACT:
                    exact += 1
                    codes = {note.code for note in output.notes}
                    twice = codes <= {"duplicate_argument", "marker_in_value"}  # an undeclared one came again
                    assert outcome == "valid" or (twice and outcome == "recovered"), why
                    assert valid(schemas[name], arguments), why
                else:
                    assert outcome != "undeclared", why
            assert not output.truncated, (seed, text)
            assert text.count("<tool_call>") >= len(output.calls)

    assert read > SAMPLES // 4, (read, exact)
    assert exact > SAMPLES // 8, (read, exact)


def test_valid_arguments_as_the_template_writes_them_are_accepted() -> None:
    matcher = Matcher(single_bytes())
    accepted = 0
    for seed in range(SEED, SEED + SAMPLES):
        rng = random.Random(seed)
        tools = random_tools(rng, strict=False)
        built = build(tools)
        compiled = matcher.compile(built.tag)
        for tool in tools:
            name, schema = tool["function"]["name"], tool["function"].get("parameters", {})
            for _ in range(4):
                arguments = _whole(random_value(rng, schema, schema))
                if not isinstance(arguments, dict) or not _written_as_is(schema, arguments, tools, name):
                    continue
                if _undeclared_like_declared(schema, arguments):
                    continue
                accepted += 1
                text = call_text(name, _ordered(schema, arguments))
                assert matcher.accepts(compiled, text), (seed, schema, arguments, text, built.tools)

    assert accepted > SAMPLES // 2, accepted


def _whole(value: Any) -> Any:
    """Fractions that are whole numbers as such, which they equal: that is how the grammar writes them."""
    if isinstance(value, dict):
        return {key: _whole(one) for key, one in value.items()}
    if isinstance(value, list):
        return list(map(_whole, value))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _written_as_is(schema: Any, arguments: dict[str, Any], tools: list[dict[str, Any]], name: str) -> bool:
    """Whether the arguments are valid, and their text says so: no marker in it, and it reads back as it was."""
    if not valid(schema, arguments):
        return False
    text = call_text(name, arguments)
    if any(text.count(closer) != len(arguments) for closer in CLOSERS):
        return False
    return parse_output(text, tools, thinking=False).calls == [(name, arguments)]


def _ordered(schema: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Many keys come in the schema's order, required ones first, undeclared ones last; up to a limit any order will."""
    if len({*schema["properties"], *schema["required"]}) <= MOST_ANY_ORDER:
        return arguments
    ranks = {key: place for place, key in enumerate([*schema["properties"], *schema["required"]])}
    return dict(
        sorted(arguments.items(), key=lambda one: (one[0] not in schema["required"], ranks.get(one[0], len(ranks))))
    )


def _declared(schema: Any) -> set[str]:
    """The names that any object of the schema declares or requires."""
    if isinstance(schema, list):
        return set().union(*map(_declared, schema)) if schema else set()
    if not isinstance(schema, dict):
        return set()
    own = schema.get("properties")
    required = schema.get("required")
    names = {*(own if isinstance(own, dict) else ()), *(required if isinstance(required, list) else ())}
    return names.union(*map(_declared, schema.values()))


def _keys(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_keys, value)) if value else set()
    return {*value, *set().union(*map(_keys, value.values()))} if isinstance(value, dict) else set()


def _undeclared_like_declared(schema: Any, arguments: dict[str, Any]) -> bool:
    """Whether a key that may be undeclared begins like a declared one, or with a blank: grammars leave those out."""
    top = {*schema["properties"], *schema["required"]}
    first = {name[:1] for name in top} | {" ", "\n"}
    if any(key and key[0] in first for key in arguments.keys() - top):
        return True
    below = set().union(*map(_keys, arguments.values()))
    return any(name != key and name[:1] == key[:1] for key in below for name in _declared(schema))


def test_a_tool_at_the_full_level_is_what_random_schemas_give() -> None:
    levels = [tool.level for seed in range(20) for tool in build(random_tools(random.Random(seed))).tools]

    assert set(levels) == {Level.FULL}
    assert json.dumps(build(random_tools(random.Random(0))).tag)
