"""The ladder with a compiler that refuses what it is told to, and readers of tool lists; xgrammar's is in _stock."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dynamo_structural_tags.compiler import CompilerMissing, synthetic_vocabulary, vocabulary_of
from dynamo_structural_tags.ladder import Ladder, Level, Tool, read_tools, types_only

PARAMETERS = {"type": "object", "properties": {"q": {"type": "string", "pattern": "^a"}, "n": {}}, "required": ["q"]}


def _refusing(*words: str) -> Any:
    calls: list[dict[str, Any]] = []

    def compile_schema(schema: dict[str, Any]) -> Any:
        calls.append(schema)
        if any(word in str(schema) for word in words):
            raise RuntimeError(f"cannot compile {words}")
        return len(calls)

    compile_schema.calls = calls  # type: ignore[attr-defined]
    return compile_schema


def test_a_tool_that_compiles_stays_at_the_full_level() -> None:
    (made,) = Ladder(_refusing()).compile_tools([Tool("t", PARAMETERS)])

    assert (made.level, made.falls, made.schema) == (Level.FULL, (), made.normalised.schema)


def test_a_tool_falls_alone_with_its_reason_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    ladder = Ladder(_refusing("pattern"))
    with caplog.at_level(logging.WARNING):
        bad, good = ladder.compile_tools(
            [Tool("bad", PARAMETERS), Tool("good", {"type": "object", "additionalProperties": False})]
        )

    assert (bad.level, good.level) == (Level.TYPES, Level.FULL)
    assert bad.falls == ((Level.FULL, "cannot compile ('pattern',)"),)
    assert bad.schema["properties"] == {"q": {"type": "string"}, "n": {}}
    assert dict(ladder.counters.falls) == {Level.FULL: 1}
    assert dict(ladder.counters.levels) == {Level.TYPES: 1, Level.FULL: 1}
    assert "tool='bad'" in caplog.text


def test_names_are_left_when_types_fail_too_and_even_without_any_compiler() -> None:
    (made,) = Ladder(_refusing("properties")).compile_tools([Tool("t", PARAMETERS)])
    assert made.level is Level.NAMES
    assert [level for level, _ in made.falls] == [Level.FULL, Level.TYPES]

    (made,) = Ladder(_refusing("object")).compile_tools([Tool("t", PARAMETERS)])
    assert (made.level, made.grammar) == (Level.NAMES, None)


def test_equal_content_is_compiled_once_and_the_least_recently_used_is_forgotten() -> None:
    compile_schema = _refusing()
    ladder = Ladder(compile_schema, size=2)
    one, two, three = (Tool(f"t{i}", {"type": "object", "required": [f"k{i}"]}) for i in range(3))

    ladder.compile_tools([one, two, one, Tool("another name", one.parameters), three])
    assert (ladder.counters.misses, ladder.counters.hits) == (3, 2)
    assert ladder.compile_tools([one])[0].cached
    assert not ladder.compile_tools([two])[0].cached
    assert not ladder.compile_tools([Tool("t0", one.parameters, strict=True)])[0].cached


def test_tools_after_the_time_is_spent_are_enforced_by_name_and_tried_again() -> None:
    ladder = Ladder(_refusing(), seconds=-1)

    assert ladder.compile_tools([Tool("t", PARAMETERS)])[0].level is Level.NAMES
    ladder.seconds = 10
    assert ladder.compile_tools([Tool("t", PARAMETERS)])[0].level is Level.FULL


@pytest.mark.parametrize("parameters", [None, 3, "x", [], {"properties": 4}, {"properties": {"a": 1}, "required": 2}])
def test_types_of_what_is_no_schema_are_any_object(parameters: Any) -> None:
    assert types_only(parameters)["type"] == "object"
    assert Ladder(_refusing()).compile_tools([Tool("t", parameters)])[0].grammar


@pytest.mark.parametrize(
    "document",
    [
        [{"type": "function", "function": {"name": "t", "parameters": PARAMETERS}}],
        {"tools": [{"type": "function", "name": "t", "parameters": PARAMETERS}]},
        {"jsonrpc": "2.0", "id": 1, "result": {"tools": [{"name": "t", "inputSchema": PARAMETERS}]}},
        {"tools": [{"name": "t", "input_schema": PARAMETERS}]},
        {"type": "function", "function": {"name": "t", "parameters": PARAMETERS}},
    ],
)
def test_tools_are_read_from_every_list_they_come_in(document: Any) -> None:
    assert read_tools(document) == [Tool("t", PARAMETERS)]


def test_a_single_schema_is_a_tool_of_its_own() -> None:
    assert read_tools(PARAMETERS) == [Tool("schema", PARAMETERS)]


@pytest.mark.parametrize("document", [3, None, "x", [1], [{"function": {}}], {"tools": 5}, [], {"tools": []}])
def test_what_is_no_list_of_tools_is_refused_with_what_is_allowed(document: Any) -> None:
    with pytest.raises(ValueError, match=r"tools.*(expected|as in OpenAI's or MCP's)"):
        read_tools(document)


@pytest.mark.parametrize("strict", ["true", "yes", 1, []])
def test_strict_as_anything_but_a_boolean_is_refused(strict: Any) -> None:
    with pytest.raises(ValueError, match=r"tools\[1\]\.strict=.*expected true or false"):
        read_tools([{"name": "t", "strict": None}, {"name": "u", "strict": strict}])


def test_the_made_up_vocabulary_has_its_size_every_byte_and_no_token_twice() -> None:
    tokens = synthetic_vocabulary(5000)

    assert len(tokens) == len(set(tokens)) == 5000
    assert {bytes([i]) for i in range(256)} <= set(tokens)


def test_a_byte_level_tokenizer_gives_its_bytes_and_another_file_is_refused(tmp_path: Any) -> None:
    good = tmp_path / "tokenizer.json"
    good.write_text(
        '{"model": {"vocab": {"Ġa": 1, "Ċ": 0}}, "added_tokens": [{"id": 3, "content": "<think>"}]}', "utf-8"
    )
    assert vocabulary_of(str(good)) == [b"\n", b" a", b"<unused>", b"<think>"]

    good.write_text("{}", "utf-8")
    with pytest.raises(CompilerMissing, match=r"vocabulary=.*model\.vocab"):
        vocabulary_of(str(good))
