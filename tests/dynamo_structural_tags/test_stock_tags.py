"""What the tags of Dynamo 1.6.1 ask for, and that a tag which is not one of the known ones is left alone.

stock_tags.json holds the tags of real requests, which test_dynamo_readers_stock.py compares with what Dynamo builds;
stock_tags_families.json those of other families than GLM, with test_dynamo_families_stock.py.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamo_structural_tags.grammar import build_tag
from dynamo_structural_tags.settings import Reader
from dynamo_structural_tags.stock_tags import is_own, marked, read_tag
from dynamo_structural_tags.tags import family_for

RECORDED = json.loads((Path(__file__).parent / "stock_tags.json").read_text("utf-8"))
TAGS = {
    f"{side}-{name}": tag for side, tags in RECORDED["tags"].items() for name, tag in tags.items() if tag is not None
}
OTHERS = json.loads((Path(__file__).parent / "stock_tags_families.json").read_text("utf-8"))
OTHER_TAGS = {
    (version, parser, kind): tag
    for version, parsers in OTHERS["tags"].items()
    for parser, tags in parsers.items()
    for kind, tag in tags.items()
}
#: The family of Dynamo's parser, where its name is another.
FAMILY = {"deepseek_v3_2": "deepseek_v32"}


@pytest.mark.parametrize("name", TAGS)
def test_a_tag_of_dynamo_tells_the_requests_tools_and_choice(name: str) -> None:
    side, _, kind = name.partition("-")
    request = RECORDED["requests"][kind]
    wanted = request.get("tool_choice", "auto")
    tools = [tool["function"] for tool in request["tools"]]
    named = wanted["function"]["name"] if isinstance(wanted, dict) else None

    found = read_tag(TAGS[name])

    assert found is not None
    assert found.tool_choice == wanted
    assert [tool["function"]["name"] for tool in found.tools] == [
        t["name"] for t in tools if named in (None, t["name"])
    ]
    for tool in found.tools:
        function = next(t for t in tools if t["name"] == tool["function"]["name"])
        # "strict": false frees the arguments, except where the worker asks for schemas of every tool.
        free = function.get("strict") is False and side != "v2_opted"
        assert tool["function"].get("parameters") == (None if free else function.get("parameters"))
    assert found.parallel == (named is None and request.get("parallel_tool_calls", True))
    thinks = request.get("chat_template_kwargs", {}).get("enable_thinking", True)
    assert found.reasoning == (thinks and side in ("v1", "v2"))
    assert (found.response_format is not None) == ("response_format" in request)


def _nodes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from _nodes(value)
    elif isinstance(node, list):
        for value in node:
            yield from _nodes(value)


@pytest.mark.parametrize("name", ["v1-auto", "v2-required", "v1-named", "v2_opted-format"])
def test_a_field_or_a_kind_that_is_not_known_makes_the_whole_tag_unknown(name: str) -> None:
    formats = sum("type" in node and isinstance(node.get("type"), str) for node in _nodes(TAGS[name]["format"]))
    tried = 0
    for place in range(formats):
        for change in ({"type": "something_new"}, {"a_new_field": 1}):
            tag = copy.deepcopy(TAGS[name])
            node = [n for n in _nodes(tag["format"]) if isinstance(n.get("type"), str)][place]
            if node["type"] in ("object", "string", "integer", "array"):
                continue  # inside a schema, where any key may be
            node.update(change)
            assert read_tag(tag) is None
            tried += 1

    assert tried >= 6


@pytest.mark.parametrize(
    "tag",
    [
        None,
        1,
        "text",
        [],
        {},
        {"type": "structural_tag"},
        {"type": "structural_tag", "format": None},
        {"type": "structural_tag", "format": {"type": "any_text"}},
        {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {}}},
        {"type": "structural_tag", "format": {"type": "sequence", "elements": [{"type": "any_text"}]}},
        {"type": "structural_tag", "format": {"type": "or", "elements": 3}},
        {"type": "structural_tag", "format": {"type": "tag", "begin": "<tool_call>", "content": {}, "end": "x"}},
        {"structures": [], "triggers": []},
        {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<x>"], "tags": []}},
    ],
)
def test_what_is_no_tag_of_calls_is_not_recognised(tag: Any) -> None:
    assert read_tag(tag) is None


def test_a_tag_with_the_arguments_of_another_family_is_not_recognised() -> None:
    tag = copy.deepcopy(TAGS["v1-nothink"])
    tag["format"]["tags"][0]["content"]["style"] = "qwen_xml"

    assert read_tag(tag) is None


@pytest.mark.parametrize(("version", "parser", "kind"), OTHER_TAGS)
def test_a_tag_of_dynamo_for_another_family_tells_family_tools_and_choice(version: str, parser: str, kind: str) -> None:
    request, tag = OTHERS["requests"][kind], OTHER_TAGS[version, parser, kind]
    wanted = request.get("tool_choice", "auto")
    named = wanted["function"]["name"] if isinstance(wanted, dict) else None
    tools = [tool["function"] for tool in request["tools"] if named in (None, tool["function"]["name"])]
    in_reasoning = tag["format"]["type"] == "sequence"  # all sequences begin with the end of the reasoning

    found = read_tag(tag)

    assert found is not None
    assert found.family == FAMILY.get(parser, parser)
    assert [tool["function"]["name"] for tool in found.tools] == [tool["name"] for tool in tools]
    assert [tool["function"].get("parameters") for tool in found.tools] == [tool.get("parameters") for tool in tools]
    # Some of the tags force one tool by asking for a call and offering nothing else.
    assert found.tool_choice == wanted or (named is not None and found.tool_choice == "required")
    assert found.parallel or named is not None or request.get("parallel_tool_calls") is False
    assert found.reasoning is (True if in_reasoning else None)
    for reader in (Reader.DYNAMO_V1, Reader.DYNAMO_V2, Reader.VLLM):
        assert build_tag(found.tools, family=family_for(found.family, reader), tool_choice=found.tool_choice)


@pytest.mark.parametrize(("version", "parser", "kind"), OTHER_TAGS)
def test_any_unknown_part_of_another_familys_tag_makes_it_unknown(version: str, parser: str, kind: str) -> None:
    tag = OTHER_TAGS[version, parser, kind]
    places = [node for node in _nodes(tag["format"]) if isinstance(node.get("type"), str)]
    schemas = {id(node) for place in places if "json_schema" in place for node in _nodes(place["json_schema"])}
    tried = 0
    for place, node in enumerate(places):
        if id(node) in schemas:
            continue  # inside a schema, where any key may be
        for change in ({"type": "something_new"}, {"a_new_field": 1}):
            changed = copy.deepcopy(tag)
            [n for n in _nodes(changed["format"]) if isinstance(n.get("type"), str)][place].update(change)
            assert read_tag(changed) is None
            tried += 1

    assert tried >= 4


@pytest.mark.parametrize("tag", [*OTHER_TAGS.values(), *TAGS.values()][::3])
def test_values_of_other_types_make_a_tag_unknown_and_never_raise(tag: Any) -> None:
    nodes = [node for node in _nodes(tag["format"]) if isinstance(node.get("type"), str)]
    fields = [(place, key) for place, node in enumerate(nodes) for key in ("begin", "end", "tags", "triggers", "value")]
    for place, key in fields:
        if key not in nodes[place]:
            continue
        for value in (7, {"a": 1}, [7], None, "", "x"):
            changed = copy.deepcopy(tag)
            [n for n in _nodes(changed["format"]) if isinstance(n.get("type"), str)][place][key] = value
            assert read_tag(changed) is None or value in (None, "") or key in ("value", "triggers")


def test_a_very_deep_tag_is_not_recognised_and_does_not_raise() -> None:
    node: Any = {"type": "any_text"}
    for _ in range(5000):
        node = {"type": "star", "content": node}
    content = {"type": "tag", "begin": "<tool_call>f", "content": node, "end": "</tool_call>"}

    assert read_tag({"type": "structural_tag", "format": content}) is None


def test_an_own_tag_is_known_by_its_mark() -> None:
    tag = {"type": "structural_tag", "format": {"type": "any_text"}}

    assert is_own(marked(tag))
    assert not is_own(tag)
    assert read_tag(marked(tag)) is None
