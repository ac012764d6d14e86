"""Each defect observed where grammar and parser disagree, by its number in the notes, with what is right."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("xgrammar", reason="xgrammar comes with vLLM: make env")

from glm_turns import call_text, tool
from token_matcher import Matcher, single_bytes

from dynamo_structural_tags.grammar import build, build_tag
from dynamo_structural_tags.parser import parse_output
from dynamo_structural_tags.schema import Verdict

RUN = tool("run", {"cmd": {"type": "string"}}, required=["cmd"], additionalProperties=False)
LS = call_text("run", {"cmd": "ls"})


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return Matcher(single_bytes())


def _accepts(matcher: Matcher, tools: list[dict[str, Any]], *texts: str, **wishes: Any) -> list[bool]:
    compiled = matcher.compile(build_tag(tools, **wishes))
    return [matcher.accepts(compiled, text) for text in texts]


def _of(schema: Any) -> list[dict[str, Any]]:
    return [tool("t", {"v": schema}, required=["v"], additionalProperties=False)]


def _with(text: str) -> str:
    return f"<tool_call>t<arg_key>v</arg_key><arg_value>{text}</arg_value></tool_call>"


# Schema, values that must be possible, texts of values that must not.
VALUES: dict[str, tuple[Any, tuple[str, ...], tuple[str, ...]]] = {
    "G1 a bare array": ({"type": "array"}, ("[]", '[1, "a", {}]'), ("", "[1,]", "{}")),
    "G1 a bare array by reference": ({"anyOf": [{"type": "array"}, {"type": "null"}]}, ("[7]", "null"), ("x",)),
    "G2 a pattern is a search": ({"type": "string", "pattern": "^https?://"}, ("https://a/b?c=<d>",), ("ftp://a", "")),
    "G2 a pattern without anchors": ({"type": "string", "pattern": r"\.py$"}, ("a/b.py", ".py"), ("a.pyc", "")),
    "G3 a lookahead": ({"type": "string", "pattern": "^(?=a)[ab]+$"}, ("ab",), ("c", "")),
    "G3 an unknown type": ({"type": "file"}, ("anything", "{}"), ()),
    "G4 blanks around a value": ({"type": "integer"}, ("1", "-12"), (" 1", "1\n", "01", "1.0", "-0")),
    "G7 a string with a length": ({"type": "string", "maxLength": 9}, ("a<b", "\t"), ("a</arg_value>b",)),
    "G7 a nested string with a length": (
        {"type": "array", "items": {"type": "string", "maxLength": 9}},
        ('["a\\t"]',),
        ('["\x0e"]', '["a\tb"]'),
    ),
    "D4 the closing marker in a string": (
        {"type": "string"},
        ("a</arg_val", "</tool_call><think></think>"),
        ("a</arg_value>b", "a<arg_value>b"),
    ),
    "D5 the closing marker in JSON": (
        {"type": "object", "additionalProperties": True},
        ('{"k": "<\\/arg_value>"}', '{"k": "\\u003c/arg_value>"}', '{"k": "</b><arg_"}'),
        ('{"k": "</arg_value>"}', '{"</arg_value>": 1}'),
    ),
    "D8 blanks around listed values": ({"enum": ["red", 1]}, ("red", "1"), (" red", "red\t", "\n1\n", '"red"')),
    "D21 listed values of several types": ({"enum": ["red", "1", 2]}, ("red", "1", "2"), ("3", "RED")),
    "D22 a control character in JSON": (
        {"type": "object", "additionalProperties": True},
        ('{"a": "x\\ny"}',),
        ('{"a": "x\ny"}', '{"a": "\x01"}'),
    ),
    "a string beside an array": (
        {"type": ["string", "array"], "items": {"type": "integer"}},
        ("", "x [1", "<b>", "[1, 2]", "[x](y)", '[x] "y', "[]", "[ <", "{"),
        ('["a"]', '["a', "[1", "[", "[1.5]", '[ "', "[true, 1]"),
    ),
    "a string beside any array": (
        {"type": ["string", "array"]},
        ('["a"]', '["a", {}]', "[1, 2", "[", "[x](y)", '{"', "[]"),
        ('["a', '[1, {"a', '["a"', '["a" b'),
    ),
    "anything": (
        {},
        ('["a"]', '{"a": ["b"]}', "[1", "[-] x", "{x", '"', "1", "x"),
        ('["a', '{"a', '{"a": "b', '{"a" b'),
    ),
    "a pattern beside an object": (
        {"anyOf": [{"type": "string", "pattern": "^.a$"}, {"type": "object"}]},
        ("ba", "[a", '{"a": 1}'),
        ("{a", "a", "bab", '{"a'),
    ),
    "a pattern of brackets beside an array": (
        {"anyOf": [{"type": "string", "pattern": r"^\[?\[.*"}, {"type": "array"}]},
        ("[1]", '["a"]'),
        ("[[", '["a', "[x"),
    ),
    "a length beside an array": (
        {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array"}]},
        ("x", "{", "[]", '["a"]'),
        ("", "[", "[x", '["a'),
    ),
    "a string beside null": ({"type": ["string", "null"]}, ("null", "nul", ""), ("a</arg_value>",)),
    "a fraction between whole bounds": (
        {"type": "number", "minimum": 0, "maximum": 1},
        ("0", "1", "0.25", "1e-07"),
        ("-0.5", "1.5", "2", "1e+22", "-1"),
    ),
    "a fraction above a bound": ({"type": "number", "minimum": 10}, ("10", "10.5", "1e+22"), ("9.9", "1e-07", "-3")),
    "multiples": ({"type": "integer", "multipleOf": 7}, ("0", "7", "-14", "700"), ("8", "07", "-0")),
    "a character of a marker is not allowed": (
        {"type": "string", "pattern": r"^[^/\"]*$"},
        ("a<b", "<arg_valu"),
        ("</", "a</b", "</value>", "a/", "</arg_value"),
    ),
    "no room but for what is required": (
        {
            "type": "object",
            "properties": {"e": {}, "a": {"type": "string"}, "x": {"type": "string"}},
            "required": ["x"],
            "maxProperties": 2,
            "additionalProperties": False,
        },
        ('{"x": ""}', '{"e": 1, "x": ""}', '{"x": "", "a": ""}'),
        ('{"e": 1, "a": ""}', '{"e": 1}', "{}", '{"e": 1, "a": "", "x": ""}'),
    ),
    "at least one character": ({"type": "string", "minLength": 1}, ("<", "</arg_value", "a"), ("", "</arg_value>")),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_what_its_schema_allows_and_the_parser_reads_it_back(matcher: Matcher, name: str) -> None:
    schema, right, wrong = VALUES[name]
    tools = _of(schema)

    assert [text for text in right if _accepts(matcher, tools, _with(text)) == [False]] == []
    assert [text for text in wrong if _accepts(matcher, tools, _with(text)) == [True]] == []
    for text in right:
        (outcome,) = parse_output(_with(text), tools, thinking=False).outcomes
        assert outcome == "valid"


@pytest.mark.parametrize("low", [None, -120, -9, 0, 1, 12, 99])
@pytest.mark.parametrize("high", [None, -7, 0, 8, 100, 123])
def test_bounds_of_integers_hold_exactly(matcher: Matcher, low: int | None, high: int | None) -> None:
    if low is not None and high is not None and low > high:
        return
    schema = {
        "type": "integer",
        **({} if low is None else {"minimum": low}),
        **({} if high is None else {"maximum": high}),
    }
    compiled = matcher.compile(build_tag(_of(schema)))
    for value in (*range(-131, 131, 1), 999, -1000):
        fits = (low is None or value >= low) and (high is None or value <= high)
        assert matcher.accepts(compiled, _with(str(value))) == fits, (low, high, value)


def test_g4_nothing_stands_between_the_parts_of_a_call(matcher: Matcher) -> None:
    """D1, G4, D17, D18: each of these is misread by some parser."""
    wrong = (
        "<tool_call>run<arg_key>cmd</arg_key>\n<arg_value>ls</arg_value></tool_call>",
        "<tool_call>run\n<arg_key>cmd</arg_key><arg_value>ls</arg_value></tool_call>",
        "<tool_call>run<arg_key>cmd</arg_key><arg_value>ls</arg_value>\n</tool_call>",
        "<tool_call>run<arg_key>cmd</arg_key>ls</arg_value></tool_call>",
        "<tool_call>run</arg_value></tool_call>",
        "<tool_call>run</tool_call>",
        "<tool_call>bash</tool_call>",
    )

    assert _accepts(matcher, [RUN], LS, *wrong) == [True] + [False] * len(wrong)


def test_g5_keys_come_in_any_order_each_once_with_all_required_ones(matcher: Matcher) -> None:
    """G5."""
    keys = {key: {"type": "integer"} for key in "abcde"}
    tools = [tool("t", keys, required=["b", "d"], additionalProperties=False)]

    def call(order: str) -> str:
        pairs = (f"<arg_key>{key}</arg_key><arg_value>1</arg_value>" for key in order)
        return f"<tool_call>t{''.join(pairs)}</tool_call>"

    right, wrong = ("bd", "db", "edcba", "acbd"), ("", "b", "bb", "dbd", "ace", "bdf")
    assert _accepts(matcher, tools, *map(call, right)) == [True] * len(right)
    assert _accepts(matcher, tools, *map(call, wrong)) == [False] * len(wrong)


def test_many_keys_come_in_the_order_of_the_schema_required_ones_first(matcher: Matcher) -> None:
    keys = {key: {"type": "boolean"} for key in "abcdefgh"}
    tools = [
        tool("t", {"o": {"type": "object", "properties": keys, "required": ["c", "h"], "additionalProperties": False}})
    ]

    def call(order: str) -> str:
        return call_text("t", {"o": dict.fromkeys(order, True)})

    assert _accepts(matcher, tools, *map(call, ("ch", "chab", "chabdefg"))) == [True] * 3
    assert _accepts(matcher, tools, *map(call, ("", "c", "hc", "ach", "chba"))) == [False] * 5


def test_objects_are_open_unless_they_say_otherwise(matcher: Matcher) -> None:
    """G6: as JSON Schema has it, but no declared key comes twice."""
    open_object = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tools = [tool("t", {"o": open_object}), RUN]
    call = call_text("t", {"o": {"a": 1, "x": [2]}, "y": "z"})

    assert _accepts(matcher, tools, call, call_text("run", {"cmd": "ls", "y": "z"})) == [True, False]
    twice = ('{"a": 1, "a": "x"}', '{"a": 1, "\\u0061": "x"}')
    assert _accepts(matcher, tools, *(call_text("t", {"o": text}) for text in twice)) == [False, False]
    assert _accepts(matcher, [tool("t", {"o": open_object}) | {}], call_text("t", {"o": {}, "x": "1"})) == [True]


#: What a string holds -> the readers that give it back, and so whose grammars allow it.
READ_BACK = {
    "</tool_call>": {"glm"},
    "see </tool_call> end": {"glm"},
    "<tool_call>run</tool_call>": {"glm"},
    "a <think> b </think> c": {"glm", "glm-dynamo-v2"},
    "<think>": {"glm", "glm-dynamo-v2"},
    "<tool_call> <arg_key>": {"glm", "glm-dynamo-v1", "glm-dynamo-v2", "glm-vllm"},
}


@pytest.mark.parametrize("family", ["glm", "glm-dynamo-v1", "glm-dynamo-v2", "glm-vllm"])
def test_g8_a_marker_stands_in_a_plain_string_only_where_the_reader_gives_it_back(
    family: str, matcher: Matcher
) -> None:
    """The grammar's side of D2 and D3; what the other readers do is in test_dynamo_readers_stock."""
    texts = [call_text("run", {"cmd": text}) for text in READ_BACK]

    allowed = _accepts(matcher, [RUN], *texts, family=family)

    assert dict(zip(READ_BACK, allowed, strict=True)) == {text: family in ours for text, ours in READ_BACK.items()}
    if family == "glm":
        for text in READ_BACK:
            found = parse_output(call_text("run", {"cmd": text}), [RUN], thinking=False)
            assert (found.calls, found.outcomes) == ([("run", {"cmd": text})], ["valid"])


def test_d8_and_d22_what_a_parser_would_have_to_repair_cannot_be_written(matcher: Matcher) -> None:
    listed, nested = _of({"enum": ["red", 1]}), _of({"type": "object"})

    assert _accepts(matcher, listed, *map(_with, ("red", " red\t", "\n1\n"))) == [True, False, False]
    assert _accepts(matcher, nested, *map(_with, ('{"a": "x\\ny"}', '{"a": "x\ny"}'))) == [True, False]


def test_a_marker_is_no_word_of_the_text(matcher: Matcher) -> None:
    """D2, D16."""
    texts = ("I will look.\n" + LS + "Done.", "Use the <tool_call> tag", "a </think> b", "x</arg_value>", "a < b")

    assert _accepts(matcher, [RUN], *texts) == [True, False, False, False, True]


NOARGS = tool("noargs", {}, additionalProperties=False)
NO = call_text("noargs", {})
CHOICES: dict[str, tuple[dict[str, Any], list[bool]]] = {
    # what was asked for: no call, one, another tool's, two, text and a call, a call and text
    "auto": ({}, [True, True, True, True, True, True]),
    "auto, one call": ({"parallel": False}, [True, True, True, False, True, False]),
    "required": ({"tool_choice": "required"}, [False, True, True, True, False, True]),
    "required, one call": ({"tool_choice": "required", "parallel": False}, [False, True, True, False, False, False]),
    "named": (
        {"tool_choice": {"type": "function", "function": {"name": "run"}}},
        [False, True, False, False, False, False],
    ),
    "named as Anthropic has it": ({"tool_choice": {"type": "tool", "name": "run"}}, [False, True] + [False] * 4),
    "none": ({"tool_choice": "none"}, [True, False, False, False, False, False]),
    "allowed tools": (
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"name": "run"}]}}},
        [True, True, False, False, True, True],
    ),
    "allowed tools, required": (
        {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"name": "run"}]}},
        [False, True, False, False, False, True],
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_choice_of_tools_decides_which_calls_may_come(matcher: Matcher, name: str) -> None:
    wishes, wanted = CHOICES[name]

    assert _accepts(matcher, [RUN, NOARGS], "Hello", LS, NO, LS + NO, "Look. " + LS, LS + "Done", **wishes) == wanted


def test_the_grammar_begins_behind_the_reasoning_or_holds_it(matcher: Matcher) -> None:
    """D7: no call in the reasoning if the tag owns it."""
    texts = ("I think</think>" + LS, "</think>Hi", LS, "plan: " + LS + " maybe</think>Hi", "I think")

    assert _accepts(matcher, [RUN], *texts, reasoning="tag") == [True, True, False, False, False]
    with pytest.raises(ValueError, match=r"reasoning='both'.*engine, tag.*'tag' if"):
        build_tag([RUN], reasoning="both")


def test_an_answer_in_a_format_stands_beside_calls(matcher: Matcher) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    wishes = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}
    texts = ('{"a": 1}', LS, LS + "\n" + LS, "Hello", '{"a": "x"}', LS + '{"a": 1}')

    assert _accepts(matcher, [RUN], *texts, **wishes) == [True, True, True, False, False, False]
    assert _accepts(matcher, [RUN], *texts, tool_choice="none", **wishes) == [True] + [False] * 5
    assert _accepts(matcher, [RUN], *texts, tool_choice="required", **wishes) == [False, True, True] + [False] * 3
    anything = _accepts(matcher, [], '{"x": ["<b>"]}', "[1]", response_format={"type": "json_object"})
    assert anything == [True, False]


def test_names_that_begin_alike_and_several_calls(matcher: Matcher) -> None:
    tools = [tool(name, {}, additionalProperties=False) for name in ("f", "fo", "foo")]
    text = call_text("foo", {}) + "\n" + call_text("f", {}) + call_text("fo", {})

    assert _accepts(matcher, tools, text, call_text("fooo", {})) == [True, False]
    assert [name for name, _ in parse_output(text, tools, thinking=False).calls] == ["foo", "f", "fo"]


def test_lengths_of_strict_tools_hold(matcher: Matcher) -> None:
    tools = _of({"type": "string", "maxLength": 3})
    tools[0]["function"]["strict"] = True

    assert _accepts(matcher, tools, *map(_with, ("abc", "\u00e9\u00e9\U0001f600", "abcd"))) == [True, True, False]
    (found,) = build(_of({"type": "string", "maxLength": 3})).tools
    assert (found.verdict, [m.keyword for m in found.messages]) == (Verdict.RELAXED, ["maxLength"])


@pytest.mark.parametrize("keyword", ["exclusiveMinimum", "exclusiveMaximum", "minimum", "maximum"])
def test_a_bound_that_is_not_enforced_exactly_is_named_as_the_schema_has_it(keyword: str) -> None:
    (made,) = build(_of({"type": "number", keyword: 0.5})).tools

    assert [message.keyword for message in made.messages] == [keyword]


def test_a_tool_that_does_not_compile_falls_alone() -> None:
    """G3: never an error for the request; `check` stands for xgrammar's compiler."""

    def check(tag: dict[str, Any]) -> None:
        if "https" in tag["format"]["grammar"]:
            raise RuntimeError("cannot compile https")

    tools = [*_of({"type": "string", "pattern": "^https"}), RUN]
    built = build(tools, check=check)
    assert [(made.name, made.level.value, made.verdict.value) for made in built.tools] == [
        ("t", "types", "relaxed"),
        ("run", "full", "exact"),
    ]
    assert built.tools[0].falls[0][1] == "cannot compile https"
    assert build(_of({"type": "string"}), check=check).tools[0].falls == ()


def test_what_one_check_refused_says_nothing_about_the_next() -> None:
    """A check lives as long as its request, and the next one may have its place in memory."""

    class Check:
        def __init__(self, accepts: bool) -> None:
            self.accepts = accepts

        def __call__(self, tag: dict[str, Any]) -> None:
            if not self.accepts and "https" in tag["format"]["grammar"]:
                raise RuntimeError("no time left")

    tools = _of({"type": "string", "pattern": "^https"})
    levels = [build(tools, check=Check(accepts)).tools[0].level.value for accepts in (False, True) * 4]
    assert levels == ["types", "full"] * 4


def test_a_schema_that_nothing_satisfies_leaves_the_name() -> None:
    (made,) = build([tool("t", {"a": False}, required=["a"])]).tools

    assert (made.level.value, made.verdict.value) == ("types", "relaxed")


def test_an_unknown_family_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"family='gpt'.*known are .*glm"):
        build_tag([RUN], family="gpt")


def test_grammar_and_parser_mean_the_same_by_types_that_json_does_not_have(matcher: Matcher) -> None:
    for name, right, wrong in (("uuid", "7", None), ("Int", "7", "x"), ("dict", "{}", "x"), ("float", "7.5", "x")):
        tools = _of({"type": name})
        assert _accepts(matcher, tools, _with(right)) == [True]
        assert wrong is None or _accepts(matcher, tools, _with(wrong)) == [False]
        assert parse_output(_with(right), tools, thinking=False).outcomes == ["valid"]
    assert parse_output(_with("7"), _of({"type": "uuid"}), thinking=False).calls == [("t", {"v": "7"})]


def test_glm_4_5_has_line_ends_between_the_parts(matcher: Matcher) -> None:
    text = "<tool_call>run\n<arg_key>cmd</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>"

    assert _accepts(matcher, [RUN], text, LS, family="glm45") == [True, False]
    assert parse_output(text, [RUN], thinking=False).calls == [("run", {"cmd": "ls"})]
