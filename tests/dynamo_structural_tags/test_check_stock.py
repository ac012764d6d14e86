"""`dynamo-structural-tags check` on real xgrammar: exit status, verdicts per tool and parameter, compile times."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xgrammar", reason="xgrammar comes with vLLM: make env")

from dynamo_structural_tags import check, compiler
from dynamo_structural_tags.cli import main
from dynamo_structural_tags.compiler import schema_compiler, schema_converter, synthetic_vocabulary
from dynamo_structural_tags.grammar import build_tag
from dynamo_structural_tags.ladder import Ladder, Level, Tool
from dynamo_structural_tags.tags import relaxed_names

EXACT = {"type": "object", "properties": {"q": {"type": "string", "pattern": "^a"}}, "required": ["q"]}
RELAXED = {"type": "object", "properties": {"q": {"type": "any"}, "n": {"type": "integer"}}}
SERVED: list[dict[str, Any]] = [
    EXACT,
    RELAXED,
    {"type": "object", "properties": {"q": {"type": "array", "items": {"type": "integer"}, "maxItems": 100}}},
    {"type": "object", "properties": {"q": {"type": "string", "maxLength": 5}}},
    {
        "type": "object",
        "properties": {"q": {"type": "object", "properties": {"s": {"type": "string", "maxLength": 5}}}},
    },
    {},
]
IMPOSSIBLE = {"type": "object", "properties": {"q": {"enum": []}}, "required": ["q"]}


def _checked(tmp_path: Path, tools: Any, *options: str) -> int:
    file = tmp_path / "tools.json"
    file.write_text(tools if isinstance(tools, str) else json.dumps(tools), "utf-8")
    return main(["check", str(file), "--vocab-size", "400", *options])


def _tool(parameters: Any, name: str = "t") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.mark.parametrize(
    ("tools", "options", "status"),
    [
        ([_tool(EXACT)], (), 0),
        ([_tool(EXACT)], ("--strict",), 0),
        ([_tool(RELAXED)], (), 0),
        ([_tool(RELAXED)], ("--strict",), 1),
        ([_tool(EXACT), _tool(IMPOSSIBLE)], (), 1),
        ("no JSON", (), 2),
        ("[1]", (), 2),
        ([_tool(EXACT)], ("--vocab", "/missing/tokenizer.json"), 2),
        ([_tool(EXACT)], ("--vocab-size", "0"), 2),
        ([_tool(EXACT)], ("--family", "glm45"), 0),
        ([_tool(EXACT)], ("--family", "nonsense"), 2),
        ([], (), 2),
        ("[" * 100_000, (), 2),
        ("\ufeff" + json.dumps([_tool(EXACT)]), (), 0),
        ([_tool(EXACT, "<tool_call>")], (), 1),
        ([_tool(EXACT, "\ud800")], (), 1),
        ([_tool(EXACT), _tool(EXACT)], ("--strict",), 1),
        ([{"name": "no_parameters"}, _tool(None)], ("--strict",), 0),
        ([_tool({"type": "object", "properties": {"q": {"type": "integer", "minimum": 10**400}}})], (), 0),
        ({"jsonrpc": "2.0", "id": 1, "error": {"code": -32600, "message": "no"}}, (), 2),
        ({"model": "m", "messages": []}, (), 2),
        ({"functions": [{"name": "t"}]}, (), 2),
        ({}, (), 0),
        ({"description": "anything"}, (), 0),
        ([_tool({"type": "object", "properties": {"\ud800": {"enum": ["\udfff"]}}})], (), 0),
    ],
)
def test_the_exit_status_tells_what_was_found(
    tmp_path: Path, tools: Any, options: tuple[str, ...], status: int
) -> None:
    assert _checked(tmp_path, tools, *options) == status


@pytest.mark.parametrize(
    "vocabulary",
    [
        {"model": {"vocab": {"a": 0, "b": -5}}},
        {"model": {"vocab": {"a": 1.5}}},
        {"model": {"vocab": {"a": 3_000_000_000}}},
        {"model": {"vocab": {"a": 0}}, "added_tokens": [{"content": 5, "id": 1}]},
        {"model": {"vocab": {"\ud800": 0}}},
    ],
)
def test_a_vocabulary_with_odd_tokens_is_refused_by_the_file_that_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], vocabulary: Any
) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(vocabulary), "utf-8")

    assert _checked(tmp_path, [_tool(EXACT)], "--vocab", str(file)) == 2
    assert f"vocabulary={file}: " in capsys.readouterr().err


def test_a_name_cannot_command_the_terminal_or_begin_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _checked(tmp_path, [_tool(EXACT, "\x1b[2Jx\nt: exact")]) == 0

    assert capsys.readouterr().out.splitlines()[0].startswith("\\x1b[2Jx\\x0at: exact: ")


def test_json_holds_verdicts_per_tool_and_parameter_and_the_compile_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _checked(tmp_path, {"tools": [_tool(EXACT, "good"), _tool(RELAXED, "loose")]}, "--json") == 0

    report = json.loads(capsys.readouterr().out)
    good, loose = report["tools"]
    assert report["verdict"] == "relaxed"
    assert (good["verdict"], good["level"], good["parameters"]) == ("exact", "full", {"q": "exact"})
    assert loose["parameters"] == {"q": "relaxed", "n": "exact"}
    assert [(m["path"], m["keyword"]) for m in loose["messages"]] == [("#/properties/q", "type")]
    assert report["vocabulary"] == {"tokens": 400, "source": "a made-up vocabulary"}
    assert report["family"] == "glm"


def test_what_is_compiled_is_the_tag_of_a_request_with_the_tool_and_with_all_tools(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[dict[str, Any]] = []

    def tag_compiler(vocabulary: list[bytes]) -> Callable[[dict[str, Any]], Any]:
        real = compiler.tag_compiler(vocabulary)

        def compile_slowly(tag: dict[str, Any]) -> Any:
            compiled.append(tag)
            clock[0] += 0.25
            return real(tag)

        return compile_slowly

    clock = [0.0]
    monkeypatch.setattr(check, "tag_compiler", tag_compiler)
    monkeypatch.setattr(check.time, "perf_counter", lambda: clock[0])
    tools = [_tool(EXACT, "good"), _tool(RELAXED, "loose")]

    assert _checked(tmp_path, tools, "--json") == 0

    report = json.loads(capsys.readouterr().out)
    assert compiled == [build_tag([tools[0]]), build_tag([tools[1]]), build_tag(tools)]
    assert [tool["compile_ms"] for tool in report["tools"]] == [250.0, 250.0]
    assert report["compile_ms"] == 250.0


def test_a_tool_whose_tag_does_not_compile_is_told_at_the_level_that_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    full = build_tag([_tool(EXACT)])

    def refuse_patterns(tag: dict[str, Any]) -> None:
        if tag == full:
            raise RuntimeError("no patterns here")

    monkeypatch.setattr(check, "tag_compiler", lambda vocabulary: refuse_patterns)

    assert _checked(tmp_path, [_tool(EXACT)], "--json", "--strict") == 1

    (tool,) = json.loads(capsys.readouterr().out)["tools"]
    assert (tool["level"], [fall["level"] for fall in tool["falls"]]) == ("types", ["full"])
    assert "no patterns here" in tool["falls"][0]["reason"]


def test_text_names_path_keyword_and_what_happens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _checked(tmp_path, [_tool(RELAXED)]) == 0

    printed = capsys.readouterr().out
    assert "t: relaxed, level full" in printed
    assert "  q: relaxed" in printed
    assert "#/properties/q type: relaxed: 'any' is no JSON type: any value" in printed


def test_what_the_tag_relaxes_beyond_the_schema_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counted = {"type": "object", "properties": {"q": {"type": "string", "minLength": 3}, "n": {"type": "integer"}}}

    assert _checked(tmp_path, [_tool(counted)], "--json") == 0

    (tool,) = json.loads(capsys.readouterr().out)["tools"]
    assert (tool["verdict"], tool["level"], tool["parameters"]) == ("relaxed", "full", {"q": "relaxed", "n": "exact"})
    assert [(m["path"], m["keyword"]) for m in tool["messages"]] == [("#/properties/q", "minLength")]


def test_verdicts_are_those_of_the_servers_counter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tools = [_tool(parameters, f"t{i}") for i, parameters in enumerate(SERVED)]

    _checked(tmp_path, tools, "--json")

    told = {tool["name"] for tool in json.loads(capsys.readouterr().out)["tools"] if tool["verdict"] != "exact"}
    assert told == relaxed_names(tools)


def test_names_that_cannot_be_called_and_names_declared_twice_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _checked(tmp_path, [_tool(EXACT), _tool(RELAXED), _tool(EXACT, " x")]) == 1

    printed = capsys.readouterr().out
    assert "# name: relaxed: declared twice: the first tool of this name counts" in printed
    assert " x: impossible, level names" in printed
    assert "# name: impossible: cannot be written in a call of family glm" in printed


def test_what_cannot_be_read_is_refused_with_what_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _checked(tmp_path, "no JSON") == 2

    assert "needed is a UTF-8 file of JSON with OpenAI's tools" in capsys.readouterr().err


@pytest.mark.parametrize("made", [schema_converter(), schema_compiler(synthetic_vocabulary(400), threads=1)])
def test_real_xgrammar_compiles_hostile_tools_without_a_fall(made: Any) -> None:
    hostile = [
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2000)}},
        {"type": "object", "properties": {"a": {"pattern": "((a{1,100}){1,100}){1,100}"}, "b": {"pattern": "(a+)+$"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"type": "object", "properties": {"\ud800": {"enum": ["\udfff", 10**40, float("nan")]}}},
        {"type": "object", "properties": {"a": {"type": "array", "minItems": 10**9}}, "minProperties": 10**6},
        {"properties": {"a": {"type": "dict", "items": [1]}}, "required": {"a": 1}},
        None,
        7,
    ]
    compiled = Ladder(made).compile_tools(Tool(f"t{i}", parameters) for i, parameters in enumerate(hostile))

    assert [(one.level, one.falls) for one in compiled] == [(Level.FULL, ())] * len(hostile)
