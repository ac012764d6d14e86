"""The forms that compile quickly: the same texts as by the plain definition, and masks that lose no token."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest
import xgrammar
from byte_matcher import STOP
from token_matcher import Matcher, words

from dynamo_structural_tags.ebnf.json_strings import json_string
from dynamo_structural_tags.ebnf.markers import Markers, free_text
from dynamo_structural_tags.ebnf.rules import Rules, quote
from dynamo_structural_tags.ebnf.spelling import JSON_ESCAPE
from dynamo_structural_tags.grammar import build, build_tag
from dynamo_structural_tags.schema.charsets import ALL, charset, minus

MARKERS = {
    "none": (),
    "two that end alike": ("</arg_value>", "<arg_value>"),
    "five": ("</arg_value>", "<arg_value>", "</tool_call>", "<think>", "</think>"),
    "one within another's beginning": ("<ab", "<abc", "<b"),
}
_STRING = {"type": "string"}
#: What strings are made of: parts of markers, quotes, escapes, and characters that JSON must escape.
_PIECES = ["<", "</", "arg_value>", "/arg_value>", "arg_val", "think>", "/tool_call>", "ab", "b", "c", "x", '"', "\\"]
_PIECES += ['\\"', "\\n", "\\u003c", "\\ud83d\\ude00", "\\ud83d", "\n", "\x01", "é", " "]
_ESCAPE = r'\\(["\\/bfnrt]|u([0-9a-cA-Ce-fE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|[dD][89abAB][0-9a-fA-F]{2}'
_ESCAPE += r"\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
_JSON = re.compile(rf'"([^"\\\x00-\x1f]|{_ESCAPE})*"')


def _tool(name: str, properties: dict[str, object], **more: object) -> dict[str, object]:
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": properties, **more}},
    }


def _accepts(grammar: str, texts: list[str]) -> list[bool]:
    compiled = xgrammar.GrammarCompiler(
        xgrammar.TokenizerInfo([bytes([i]) for i in range(256)] + [b"</s>"], stop_token_ids=[STOP]), max_threads=1
    ).compile_grammar(grammar)
    found = []
    for text in texts:
        matcher = xgrammar.GrammarMatcher(compiled)
        found.append(bool(matcher.accept_string(text) and matcher.accept_token(STOP)))
    return found


@pytest.mark.parametrize("name", MARKERS)
def test_a_json_string_holds_any_text_but_a_marker(name: str) -> None:
    """Judged by a regular expression of Python's for strings, and a search for the markers."""
    marks = MARKERS[name]
    rng = random.Random(20)
    texts = [f'"{"".join(rng.choices(_PIECES, k=rng.randrange(7)))}"' for _ in range(1500)]

    found = _accepts(f"root ::= s\ns ::= {json_string(marks)}\n", texts)

    assert found == [_JSON.fullmatch(text) is not None and not any(mark in text for mark in marks) for text in texts]
    assert 200 < sum(found) < 1300


@pytest.mark.parametrize("empty", [False, True])
def test_a_json_string_that_begins_with_few_characters_is_one_of_all_that_do(empty: bool) -> None:
    """As xgrammar's own dispatch and recursion say it, which the compiler is slow with."""
    first, marks = minus(ALL, charset([(ord("a"), ord("b"))])), MARKERS["two that end alike"]
    rules = Rules()
    run, reserved = Markers(marks).run(rules, minus(ALL, charset([(0, 31), (34, 34), (92, 92)]))), rules.reserve()
    rules.define(reserved, f"{run} ({JSON_ESCAPE} {reserved})?")
    plain = rules.text([f'root ::= "\\"" {reserved} "\\""'])
    rng = random.Random(21)
    texts = [f'"{"".join(rng.choices(_PIECES, k=rng.randrange(6)))}"' for _ in range(1500)]
    starts = [text[1:2] not in ("a", "b") and not re.match(r'"\\(/|u(?!00[01]))', text) for text in texts]

    found = _accepts(f"root ::= s\ns ::= {json_string(marks, first, empty=empty)}\n", texts)

    wanted = [
        one and start and (empty or text != '""')
        for one, start, text in zip(_accepts(plain, texts), starts, texts, strict=True)
    ]
    assert found == wanted


@pytest.mark.parametrize("loop", [False, True])
def test_free_text_with_calls_is_what_xgrammars_dispatch_accepts(loop: bool) -> None:
    excluded = ("</call>", "<b>")
    rules = Rules()
    ours = rules.text([f"root ::= {free_text(rules, excluded, [('<call>', rules.add(quote('x</call>')))], loop)}"])
    loops = str(loop).lower()
    listed = ", ".join(map(quote, excluded))
    stock = f'root ::= TagDispatch(("<call>", c), loop_after_dispatch={loops}, excludes=({listed}))\nc ::= "x</call>"\n'
    rng = random.Random(22)
    texts = [
        "".join(rng.choices(["<call>x</call>", "<call>", "<", "<b", ">", "a", "</call>"], k=4)) for _ in range(800)
    ]

    found = _accepts(ours, texts)

    assert found == _accepts(stock, texts)
    assert 50 < sum(found) < 750


def test_a_mask_has_every_token_that_is_accepted_and_no_other() -> None:
    """Also where a listed value, and the beginning of one, is a word of a key."""
    tools = [
        _tool("page", {"page_size": {"enum": ["page"]}, "page": _STRING, "sizePage": {"enum": ["size", "sizes"]}}),
        _tool("size", {f"page_{i}": {"type": "array", "items": _STRING} for i in range(7)}, required=["page_6"]),
        _tool("open", {"size": {"type": "object", "properties": {"page": _STRING}}, "any": {}}),
    ]
    extra = [b"page", b"size", b"_size", b"pages", b"page_", b"page</arg_value>", b"size</arg_key>", b"_6</", b'page":']
    matcher = Matcher(list(dict.fromkeys([*words(), *extra])))
    tokens = xgrammar.TokenizerInfo(
        [*matcher.vocabulary, b"</s>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[matcher.stop]
    )
    compiler = xgrammar.GrammarCompiler(tokens, max_threads=1)  # with its caches, as engines have it
    rng = random.Random(23)
    checked = 0
    for choice in ("auto", "required"):
        compiled = compiler.compile_structural_tag(json.dumps(build_tag(tools, tool_choice=choice)))
        mask = xgrammar.allocate_token_bitmask(1, tokens.vocab_size)
        for text in (matcher.sample(compiled, rng) for _ in range(6)):
            state, rest = xgrammar.GrammarMatcher(compiled), (text or "").encode()
            while rest:
                if rng.random() < 0.25:
                    state.fill_next_token_bitmask(mask)
                    bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")
                    for token, piece in enumerate(matcher.vocabulary):
                        assert state.fork().accept_token(token) == bool(bits[token]), (text, rest, piece)
                        checked += 1
                fitting = [i for i, piece in enumerate(matcher.vocabulary) if rest.startswith(piece)]
                token = rng.choice(fitting)
                assert state.accept_token(token)
                rest = rest[len(matcher.vocabulary[token]) :]
    assert checked > 5000


def test_a_tool_means_the_same_whatever_tools_were_built_before() -> None:
    """Tools are kept with their rules; what is kept must not depend on the list that they were in."""
    recursive = {"$ref": "#/$defs/node"}
    node = {"type": "object", "properties": {"value": {}, "next": recursive}, "additionalProperties": False}
    tools = [
        _tool("list", {"head": recursive, "page_size": {"type": "integer"}}, **{"$defs": {"node": node}}),
        _tool("tree", {"root": recursive, "size": _STRING, "any": {}}, **{"$defs": {"node": node}}),
    ]
    alone = [build([tool]).tag for tool in tools]
    both = build(tools).tag
    reverse = build(tools[::-1]).tag

    assert [build([tool]).tag for tool in tools] == alone
    assert build(tools).tag == both
    matcher = Matcher(words())
    rng = random.Random(24)
    compiled = [matcher.compile(tag) for tag in (both, reverse)]
    texts = [text for one in compiled for text in (matcher.sample(one, rng) for _ in range(15)) if text]
    assert len(texts) > 10
    assert all(matcher.accepts(one, text) for one in compiled for text in texts)
