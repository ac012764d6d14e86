"""The parser against programs of others: the real chat template writes what it reads, jsonschema judges how it reads.

Jinja and transformers render the template as a server does; jsonschema is the independent word on what a schema allows.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest
from glm_turns import call_text, equal_json
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynamo_structural_tags.allowed import allowed
from dynamo_structural_tags.parser import parse_output
from dynamo_structural_tags.values import read_value

FIX = "needs the pinned stock environment: make test"
rendering = pytest.importorskip("transformers.utils.chat_template_utils", reason=FIX)
jsonschema: Any = pytest.importorskip("jsonschema", reason=FIX)

TEMPLATE = files("glm53.model").joinpath("chat_template.jinja").read_text(encoding="utf-8")
#: Strings without the marker that closes a value; the characters that JSON and markup treat in their own ways.
TEXT = st.lists(
    st.sampled_from(
        [
            "<",
            "</",
            ">",
            "&",
            "'",
            '"',
            "\\",
            "\n",
            "\r\n",
            " ",
            "é",
            "🚀",
            "</tool_call>",
            "<think>",
            "</think>",
            "null",
            "5",
        ]
    )
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    max_size=10,
).map("".join)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
KINDS = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


def _answer(arguments: list[dict[str, Any]], reasoning: str, content: str) -> str:
    """What the template writes for an assistant's turn, behind its ``<think>``."""
    calls = [{"type": "function", "function": {"name": "f", "arguments": entry}} for entry in arguments]
    turn = {"role": "assistant", "reasoning_content": reasoning, "content": content, "tool_calls": calls}
    rendered, _ = rendering.render_jinja_template([[{"role": "user", "content": "x"}, turn]], chat_template=TEMPLATE)
    return rendered[0].partition("<|assistant|><think>")[2]


@given(st.lists(st.dictionaries(st.sampled_from("abcdef"), VALUES, max_size=4), max_size=3))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_the_template_renders_is_read_back(arguments: list[dict[str, Any]]) -> None:
    raw = _answer(arguments, "why", "so")

    assert raw == "why</think>so" + "".join(call_text("f", entry) for entry in arguments)
    for entry in arguments:  # keys that have one type in this call
        properties = {key: {"type": KINDS.get(type(value), "null")} for key, value in entry.items()}
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}]
        output = parse_output(_answer([entry], "why", "so"), tools)
        assert equal_json(output.calls, [("f", entry)])
        assert output.outcomes == ["valid"]
        assert (output.reasoning, output.content) == ("why", "so")


SCHEMAS = st.recursive(
    st.sampled_from(["string", "integer", "number", "boolean", "null", "object", "array"]).map(
        lambda name: {"type": name}
    )
    | st.lists(
        st.sampled_from(["string", "integer", "boolean", "null", "array"]), min_size=1, max_size=3, unique=True
    ).map(lambda names: {"type": names})
    | st.lists(st.sampled_from(["a", "5", 5, 1.5, True, None, "null", [1]]), min_size=1, max_size=4).map(
        lambda values: {"enum": values}
    )
    | st.sampled_from(["a", "5", 5, None]).map(lambda value: {"const": value})
    | st.sampled_from(["Text", "Count"]).map(lambda name: {"$ref": f"#/$defs/{name}"})
    | st.just({}),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts})
        | st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"allOf": parts})
    ),
    max_leaves=5,
)
DEFS = {"Text": {"type": "string"}, "Count": {"type": "integer"}}
TEXTS = st.sampled_from(
    ["a", "5", "5.0", "1.5", "true", "null", "[1]", '{"a": 1}', "", " 5", "007", "True", "x y", "-1", "1e3"]
)


@given(SCHEMAS, TEXTS)
@settings(max_examples=400, deadline=None)
def test_a_reading_that_is_said_to_fit_does_fit(schema: dict[str, Any], text: str) -> None:
    root = {**schema, "$defs": DEFS}
    reading = read_value(text, allowed(root, root))

    assert reading.fits == jsonschema.Draft202012Validator(root).is_valid(json.loads(reading.json))


@given(SCHEMAS, st.sampled_from(["a", "", "x y", "5", 5, -1, 1.5, True, False, None, [], [1], {}, {"a": 1}]))
@settings(max_examples=400, deadline=None)
def test_a_valid_value_is_read_as_a_valid_value_that_is_written_alike(schema: dict[str, Any], value: Any) -> None:
    """Two valid values may be written alike, as 5 and "5"; then either is right."""
    root = {**schema, "$defs": DEFS}
    validator = jsonschema.Draft202012Validator(root)
    text = value if isinstance(value, str) else json.dumps(value)
    if not validator.is_valid(value):
        return

    reading = read_value(text, allowed(root, root))

    assert validator.is_valid(json.loads(reading.json))
    assert reading.fits
    assert not reading.repaired
    read = json.loads(reading.json)
    assert (read if isinstance(read, str) else json.dumps(read)) == text
