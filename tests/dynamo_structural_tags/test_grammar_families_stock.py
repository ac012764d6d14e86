"""Families beside GLM: what their grammars allow, vLLM's own parser of the family reads as valid calls; none is lost.

vLLM's parsers see texts, not tokens, with a fake tokenizer that knows the markers (`family_texts.MarkersTokenizer`).
`FAMILY_SAMPLES=5000` tries more tool lists, `FAMILY_SEED` starts elsewhere.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs the pinned stock environment: make test")

from family_texts import FRAMES, MARKS, read, turn_text
from glm_turns import equal_json, tool
from json_schemas import WORDS, random_schema, random_value, valid
from token_matcher import Matcher, single_bytes, words
from tool_lists import random_tools
from vllm.tool_parsers.utils import coerce_to_schema_type, extract_types_from_schema

from dynamo_structural_tags.ebnf.rules import Rules
from dynamo_structural_tags.families import FAMILIES as KNOWN
from dynamo_structural_tags.families.vllm_types import read_as, types_read
from dynamo_structural_tags.grammar import build, build_tag
from dynamo_structural_tags.schema import Verdict

SAMPLES = int(os.environ.get("FAMILY_SAMPLES", "12"))
SEED = int(os.environ.get("FAMILY_SEED", "0"))
FAMILIES = list(FRAMES)
MARKUP = ("minimax_m2", "qwen3_coder")
#: No text beside a call.
ALONE = ("llama3_json", "pythonic")

RUN = tool("run", {"cmd": {"type": "string"}}, required=["cmd"], additionalProperties=False)
NOARGS = tool("noargs", {}, additionalProperties=False)
TYPED = tool(
    "typed",
    {
        "text": {"type": "string"},
        "count": {"type": "integer", "minimum": 0},
        "mode": {"type": "string", "enum": ["fast", "slow", "1"]},
        "items": {"type": "array", "items": {"type": "string"}},
        "where": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "on": {"type": "boolean"}},
            "required": ["x"],
            "additionalProperties": False,
        },
    },
    required=["text", "count"],
    additionalProperties=False,
)


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return Matcher(single_bytes())


def _accepts(matcher: Matcher, family: str, tools: list[Any], *texts: str, **wishes: Any) -> list[bool]:
    compiled = matcher.compile(build_tag(tools, family=family, **wishes))
    return [matcher.accepts(compiled, text) for text in texts]


@pytest.mark.parametrize("family", FAMILIES)
def test_vllms_parser_reads_valid_calls_in_every_text_of_the_grammar(family: str) -> None:
    vocabulary = list(dict.fromkeys([*words(), *(mark.encode() for mark in MARKS[family])]))
    matcher = Matcher(vocabulary)
    at_start = KNOWN[family].answer(Rules()) is not None  # calls begin an answer, or there are none
    read_calls = exact = 0
    for seed in range(SEED, SEED + SAMPLES):
        rng = random.Random(seed)
        tools = random_tools(rng)
        if family == "pythonic":  # which has no calls of tools with a dot in their names
            tools = json.loads(json.dumps(tools).replace('"a.b"', '"a_b"').replace("search-web", "search_web"))
        built = build(
            tools, family=family, tool_choice=rng.choice(["auto", "required", "required"]), parallel=rng.random() < 0.7
        )
        schemas = {one["function"]["name"]: one["function"].get("parameters", {}) for one in tools}
        verdicts = {made.name: made.verdict for made in built.tools}
        compiled = matcher.compile(built.tag)
        for _ in range(4):
            text = matcher.sample(compiled, rng, ends=(b">", b"}", b"]"))
            if text is None:
                continue
            content, calls = read(family, text, tools)
            begin = text.find(KNOWN[family].trigger)
            if at_start and begin > 0:
                begin = -1
            assert content.strip() == (text if begin < 0 else text[:begin]).strip(), (seed, text)
            assert bool(calls) == (begin >= 0), (seed, text)
            for name, arguments in calls:
                read_calls += 1
                why = (seed, name, schemas.get(name), arguments, text, built.tools)
                assert name in schemas, why
                if verdicts[name] is Verdict.EXACT:
                    exact += 1
                    assert valid(schemas[name], arguments), why

    assert read_calls > SAMPLES, (read_calls, exact)
    assert exact > SAMPLES // 4, (read_calls, exact)


@pytest.mark.parametrize("family", FAMILIES)
def test_valid_arguments_as_the_template_writes_them_are_accepted(matcher: Matcher, family: str) -> None:
    compiled = matcher.compile(build_tag([TYPED], family=family))
    schema = TYPED["function"]["parameters"]
    accepted = 0
    for seed in range(SEED, SEED + 10 * SAMPLES):
        arguments = random_value(random.Random(seed), schema, schema)
        if not isinstance(arguments, dict) or not valid(schema, arguments):
            continue
        text = turn_text(family, ("typed", arguments))
        if not equal_json(read(family, text, [TYPED])[1], [["typed", arguments]]):
            continue  # a marker in a string
        accepted += 1
        assert matcher.accepts(compiled, text), (seed, arguments, text)

    assert accepted > SAMPLES // 2, accepted


@pytest.mark.parametrize("family", FAMILIES)
def test_text_that_looks_like_markup_is_a_string_like_any_other(matcher: Matcher, family: str) -> None:
    texts = ("a < b > c", "<b>&amp;</b>", "é\U0001f600 <", "</param", "x\n\n", "\n", " 1 ", "null", "<parameters>", "")
    compiled = matcher.compile(build_tag([RUN], family=family))

    for text in texts:
        turn = turn_text(family, ("run", {"cmd": text}))
        assert matcher.accepts(compiled, turn), text
        assert read(family, turn, [RUN]) == ("", [("run", {"cmd": text})])


WRONG: dict[str, tuple[tuple[str, str], ...]] = {
    # what stands in a right call, and what must not stand in its place
    "deepseek_v3": (("\n```json\n", "```json"), ("{", "{\n"), ("\n```<", "<"), ('"ls"', '"l<｜tool▁sep｜>s"')),
    "deepseek_v31": (
        ("{", "{\n"), ("<｜tool▁sep｜>", ""), ("<｜tool▁calls▁end｜>", ""), ('"ls"', '"<｜tool▁call▁end｜>"'),
    ),
    "deepseek_v32": (
        ('"cmd"', "cmd"), ('"true"', '"false"'), (' string="true"', ""), (">ls", "></｜DSML｜parameter>ls"),
        (">ls", "></｜DSML｜invoke>"), (">ls", "></｜DSML｜function_calls>"), (">ls", '><｜DSML｜parameter name="x">'),
    ),
    "deepseek_v4": (
        ("tool_calls>", "function_calls>"), ('"true"', '"false"'), (">ls", "></｜DSML｜parameter>ls"),
        (">ls", "></｜DSML｜tool_calls>"),
    ),
    "deepseek_v41": (("｜ calls>", "｜calls>"), ('"true"', '"false"'), (">ls", "></｜DSML｜ parameter>ls")),
    "gemma4": (
        ('<|"|>ls<|"|>', "ls"), ('<|"|>ls<|"|>', '"ls"'), ("ls", 'l<|"|>s'), ("ls", "l<tool_call|>s"), ("call:", ""),
        ("}<tool", "<tool"), ("cmd", '"cmd"'),
    ),
    "hermes": (('"name"', '"function"'), ('"ls"', '"</tool_call>"'), ('"ls"', '"\\ud800"'), ('"arguments": ', "")),
    "jamba": (('"name"', '"function"'), ('"ls"', '"</tool_calls>"'), ("\n]<", "<"), ("[", "")),
    "llama3_json": (
        ('"parameters"', '"arguments"'), ('"ls"', '"<|python_tag|>"'), ('{"name', '\n{"name'), ('{"name', 'x{"name'),
        ('"}}', '"}} x'),
    ),
    "kimi_k2": ((":0", ""), ("functions.run", "run"), ('"ls"', '"<|tool_call_end|>"'), ("_end|>", "_end|>\n")),
    "minimax_m2": (
        ('"cmd"', '"cmd'), ('="run"', "=run"), (">ls", "></parameter>ls"), (">ls", "></ parameter >ls"),
        (">ls", '><parameter name="x">ls'), (">ls", "></invoke>ls"),
    ),
    "mistral": (('"ls"', '"[TOOL_CALLS]"'), ("[{", "{"), ("}]", "}"), ('"arguments"', '"parameters"')),
    "mistral_v11": (('"ls"', '"[TOOL_CALLS]"'), ("[ARGS]", ""), ("[ARGS]", "[ARGS][ARGS]"), ('"}', '"} x')),
    "pythonic": (('"ls"', "ls"), ('"ls"', '"l\\/s"'), ('"ls"', '"\\ud83d\\ude00"'), ("run", "\nrun"), (")]", ")] x")),
    "qwen3_coder": (
        ("=cmd>", "=cmd "), ("\nls", "ls"), ("ls\n", "ls"), ("ls", "</parameter>"), ("ls", "< parameter = x>"),
        ("ls", "</function>"), ("ls", "<function=run>"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_parser_would_misread_is_no_text_of_the_grammar(matcher: Matcher, family: str) -> None:
    right = turn_text(family, ("run", {"cmd": "ls"}))
    wrong = [right.replace(old, new, 1) for old, new in WRONG[family]]
    undeclared = turn_text(family, ("bash", {"cmd": "ls"}))
    invalid = [turn_text(family, ("run", arguments)) for arguments in ({}, {"cmd": "ls", "x": "y"}, {"x": "y"})]

    assert right not in wrong
    accepted = _accepts(matcher, family, [RUN], right, undeclared, *invalid, *wrong)
    assert accepted == [True] + [False] * (len(accepted) - 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_choice_of_tools_decides_which_calls_may_come(matcher: Matcher, family: str) -> None:
    ls: tuple[str, dict[str, Any]] = ("run", {"cmd": "ls"})
    no: tuple[str, dict[str, Any]] = ("noargs", {})
    one, other, both = turn_text(family, ls), turn_text(family, no), turn_text(family, ls, no)
    texts = ("Hello", one, other, both, "Look.\n" + one, one + "Done", one + one[:12])
    named = {"type": "function", "function": {"name": "run"}}
    # One call a turn, which no text holds; what looks like a call behind other text is text in "pythonic".
    several = beside = family != "llama3_json"
    wanted: list[tuple[dict[str, Any], list[bool]]] = [
        ({}, [True, True, True, several, beside, False, False]),
        ({"parallel": False}, [True, True, True, False, beside, False, False]),
        ({"tool_choice": "required"}, [False, True, True, several, False, False, False]),
        ({"tool_choice": named}, [False, True, False, False, False, False, False]),
        ({"tool_choice": "none"}, [True, False, False, False, family == "pythonic", False, False]),
    ]

    for wishes, accepted in wanted:
        assert _accepts(matcher, family, [RUN, NOARGS], *texts, **wishes) == accepted, wishes
    if family in ALONE:
        return
    content, calls = read(family, "Look.\n" + both, [RUN, NOARGS])
    assert (content.rstrip(), calls) == ("Look.", [ls, no])


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_may_follow_a_schema_where_no_tool_is_called(matcher: Matcher, family: str) -> None:
    texts = (turn_text(family, ("run", {"cmd": "ls"})), '{"x": ["a"]}', "Hello")

    assert _accepts(matcher, family, [RUN], *texts, response_format={"type": "json_object"}) == [True, True, False]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_grammar_begins_behind_the_reasoning_or_holds_it(matcher: Matcher, family: str) -> None:
    call, end = turn_text(family, ("run", {"cmd": "ls"})), KNOWN[family].think_end
    texts = (f"I think{end}{call}", f"{end}Hi", call, f"plan: {call} maybe{end}Hi")

    # Where calls come at the beginning or not at all, no reader looks for them in the reasoning.
    assert _accepts(matcher, family, [RUN], *texts, reasoning="tag") == [True, True, False, family in ALONE]


@pytest.mark.parametrize(
    ("family", "name"),
    [("hermes", 'a"b'), ("kimi_k2", "a:1"), ("qwen3_coder", "a>b"), ("minimax_m2", "a'b"), ("deepseek_v31", "a\nb")],
)
def test_a_tool_whose_name_the_parser_would_misread_is_left_out(family: str, name: str) -> None:
    assert [made.name for made in build([tool(name, {}), RUN], family=family).tools] == ["run"]


@pytest.mark.parametrize("family", MARKUP)
def test_an_argument_that_vllm_reads_as_a_string_is_relaxed_and_an_undeclared_one_left_out(
    matcher: Matcher, family: str
) -> None:
    tools = [tool("t", {"n": {"$ref": "#/$defs/n"}}, additionalProperties={"type": "integer"})]
    tools[0]["function"]["parameters"]["$defs"] = {"n": {"type": "integer"}}
    text = turn_text(family, ("t", {"n": 1}))

    (made,) = build(tools, family=family).tools
    assert (made.verdict, [m.keyword for m in made.messages]) == (Verdict.RELAXED, ["type"])
    assert read(family, text, tools)[1] == [("t", {"n": "1"})]  # vLLM does not follow the reference
    assert _accepts(matcher, family, tools, text, turn_text(family, ("t", {"n": 1, "x": 2}))) == [True, False]


def test_a_value_that_kimis_parser_changes_is_relaxed() -> None:
    tools = [tool("t", {"o": {"type": "array", "items": {"const": 5}}})]
    text = turn_text("kimi_k2", ("t", {"o": [5]}))

    (made,) = build(tools, family="kimi_k2").tools
    assert (made.verdict, [m.keyword for m in made.messages]) == (Verdict.RELAXED, ["type"])
    assert read("kimi_k2", text, tools)[1] == [("t", {"o": ["5"]})]


def test_the_types_of_vllm_are_those_that_its_parser_considers() -> None:
    texts = [*WORDS, "null", "NULL", "1", "-7", "1.0", "1.5", " 2", "1e3", "1e999", "true", "False ", "[1]", '{"a": 1}']
    for seed in range(SEED, SEED + 50 * SAMPLES):
        schema = random_schema(random.Random(seed))
        theirs = extract_types_from_schema(schema)
        ours = types_read(schema)
        assert ours == set(theirs), schema
        for text in texts:
            assert equal_json(read_as(text, ours), coerce_to_schema_type(text, theirs)), (schema, text)


def test_the_page_lists_each_family() -> None:
    page = (Path(__file__).parents[2] / "docs" / "structural_tags.md").read_text("utf-8")
    table = page.partition("### Families\n")[2].partition("\n\nIn all families")[0]

    assert [name for name in KNOWN if f"`{name}`" not in table] == []
