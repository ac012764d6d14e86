"""The hook in a real vLLM: tags are replaced, reported or passed on, and never break a request."""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs the pinned stock environment: make test")
pytest.importorskip("safetensors", reason="needs the demo extra: make test")

from prometheus_client import REGISTRY
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.tool_parsers import ToolParserManager, structural_tag_registry
from vllm.tool_parsers.structural_tag_registry import get_model_structural_tag
from vllm.tool_parsers.tool_strict_level import ToolStrictLevel
from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar
from vllm_turns import Server

import dynamo_structural_tags
from dynamo_structural_tags import stock, vllm_plugin, worker
from dynamo_structural_tags.patches import REGISTER
from dynamo_structural_tags.settings import Mode, Reader, Settings
from dynamo_structural_tags.stock_tags import is_own, read_tag
from glm53.model import make

RECORDED = json.loads((Path(__file__).parent / "stock_tags.json").read_text("utf-8"))
TAGS = {
    f"{side}-{name}": json.dumps(tag) for side, tags in RECORDED["tags"].items() for name, tag in tags.items() if tag
}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test starts without a hook, and leaves vLLM as it was."""
    registry = dict(structural_tag_registry._VLLM_STRUCTURAL_TAG_REGISTRY)
    monkeypatch.setattr(worker, "_hook", None)
    for name in list(os.environ):
        if name.startswith("DYNAMO_STRUCTURAL_TAGS"):
            monkeypatch.delenv(name)
    yield
    REGISTER.revert()
    structural_tag_registry._VLLM_STRUCTURAL_TAG_REGISTRY.clear()
    structural_tag_registry._VLLM_STRUCTURAL_TAG_REGISTRY.update(registry)


def _start(mode: str, monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
    for name, value in {"": mode, **more}.items():
        monkeypatch.setenv(f"DYNAMO_STRUCTURAL_TAGS{name}", value)
    dynamo_structural_tags.register()


def _counted(result: str) -> float:
    return REGISTRY.get_sample_value("dynamo_structural_tags_tags_total", {"result": result}) or 0.0


def _used(tag: str) -> str:
    """The tag that a request with this one ends up with, through the steps that a request takes."""
    parameters = StructuredOutputsParams(structural_tag=tag)
    sampling = copy.deepcopy(SamplingParams(structured_outputs=parameters))
    sampling = pickle.loads(pickle.dumps(sampling)).clone()
    validate_xgrammar_grammar(sampling)  # raises what would be a 400
    return sampling.structured_outputs.structural_tag


@pytest.mark.parametrize("name", TAGS)
def test_a_tag_of_dynamo_is_replaced_by_one_that_vllm_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _start("enforce", monkeypatch)
    before = _counted("rewritten")

    used = _used(TAGS[name])

    assert is_own(json.loads(used))
    assert _counted("rewritten") == before + 1
    assert _used(used) == used  # as the engine's process gets it


def test_by_default_nothing_is_hooked(monkeypatch: pytest.MonkeyPatch) -> None:
    dynamo_structural_tags.register()

    assert _used(TAGS["v1-auto"]) == TAGS["v1-auto"]
    assert worker.current() is None
    assert "glm47_safe" in ToolParserManager.list_registered()


def test_report_leaves_requests_untouched_and_says_what_would_change(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _start("report", monkeypatch)
    before = _counted("would_rewrite")

    with caplog.at_level(logging.INFO, "dynamo_structural_tags"):
        used = _used(TAGS["v2-required"])

    assert used == TAGS["v2-required"]
    assert _counted("would_rewrite") == before + 1
    assert "would be replaced" in caplog.text
    assert "get_weather" in caplog.text


@pytest.mark.parametrize(
    "tag",
    [
        '{"type": "structural_tag", "format": {"type": "any_text"}}',
        '{"structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}], "triggers": ["<f>"]}',
        TAGS["v1-auto"].replace("glm_xml", "qwen_xml"),
    ],
)
def test_an_unknown_tag_passes_as_it_is_and_is_logged_once(
    tag: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _start("enforce", monkeypatch)
    before = _counted("unrecognised")

    assert _used(tag) == tag
    assert _used(f"{tag} ") == f"{tag} "

    assert _counted("unrecognised") == before + 2
    assert caplog.text.count("passed on as it is") == 1


def test_text_that_is_no_json_is_vllms_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    _start("enforce", monkeypatch)

    assert StructuredOutputsParams(structural_tag="{").structural_tag == "{"
    with pytest.raises(Exception, match="Invalid structural tag"):
        validate_xgrammar_grammar(SamplingParams(structured_outputs=StructuredOutputsParams(structural_tag="{")))


def _dynamo_tag(parameters: Any) -> str:
    tag = json.loads(TAGS["v1-one"])
    tag["format"]["elements"][1]["tags"][0]["content"]["json_schema"] = parameters
    return json.dumps(tag)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^(?!x)a"},
        {"type": "any"},
        {"$ref": "#/$defs/none"},
        {"type": "string", "pattern": "(((("},
        {"enum": []},
    ],
)
def test_a_schema_that_stock_refuses_does_not_break_the_request(schema: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tag = _dynamo_tag({"type": "object", "properties": {"q": schema}, "required": ["q"]})
    _start("enforce", monkeypatch)

    assert is_own(json.loads(_used(tag)))


def test_a_tool_that_does_not_compile_falls_and_the_others_stay(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here xgrammar is made to refuse: the schemas that it really refuses are written otherwise before."""
    from dynamo_structural_tags import tags

    real = tags._compile

    def refuse_one(text: str) -> None:
        if "city" in text:
            raise RuntimeError("city does not compile")
        real(text)

    monkeypatch.setattr(tags, "_compile", refuse_one)
    _start("enforce", monkeypatch)

    used = json.loads(_used(TAGS["v2-auto"]))

    assert is_own(used)
    assert '"city"' not in used["format"]["grammar"]
    assert '"cmd"' in used["format"]["grammar"]
    assert "city does not compile" in caplog.text


def test_if_nothing_compiles_the_stock_tag_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    from dynamo_structural_tags import tags

    def refuse(text: str) -> None:
        raise RuntimeError("nothing compiles")

    monkeypatch.setattr(tags, "_compile", refuse)
    _start("enforce", monkeypatch)
    before = _counted("failed")

    assert _used(TAGS["v1-auto"]) == TAGS["v1-auto"]
    assert _counted("failed") == before + 1


@pytest.mark.parametrize("choice", ["auto", "required", "named"])
@pytest.mark.parametrize("reasoning", [False, True])
def test_tags_of_vllms_registry_are_read_back_and_replaced(
    choice: str, reasoning: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock_tags = {level: _registry_tag(choice, reasoning, level) for level in ToolStrictLevel}
    _start("enforce", monkeypatch)

    for level, tag in stock_tags.items():
        if tag is None:
            assert (choice, level) == ("auto", ToolStrictLevel.AUTO)
            continue
        found = read_tag(tag)
        assert found is not None
        assert found.reasoning == reasoning
        assert is_own(json.loads(_used(json.dumps(tag))))
        # The builder of this plugin has the tools themselves.
        own = _registry_tag(choice, reasoning, level)
        assert is_own(own)
        assert '"path"' in own["format"]["grammar"]


def _registry_tag(choice: str, reasoning: bool, level: ToolStrictLevel) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import (
        ChatCompletionNamedToolChoiceParam,
        ChatCompletionToolsParam,
    )

    named = ChatCompletionNamedToolChoiceParam(type="function", function={"name": "write_file"})
    wanted: Any = named if choice == "named" else choice
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    names = ("write_file", "run") if choice != "named" else ("write_file",)
    tools = [
        ChatCompletionToolsParam(type="function", function={"name": name, "parameters": parameters}) for name in names
    ]
    tag = get_model_structural_tag("glm_4_7", tools, wanted, reasoning, strict_level=level)
    return None if tag is None else json.loads(json.dumps(tag.model_dump()))


@pytest.mark.parametrize(
    ("fields", "has", "lacks"),
    [
        ({"tool_choice": "auto"}, "TagDispatch", "never"),
        ({"tool_choice": "required"}, "write_file", "never"),
        ({"tool_choice": {"type": "function", "function": {"name": "run"}}}, '"run"', "write_file"),
        ({"tool_choice": "auto", "response_format": {"type": "json_object"}}, "write_file", "never"),
    ],
)
def test_the_safe_parser_puts_its_own_tag_into_the_request(
    fields: dict[str, Any], has: str, lacks: str, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    _start("enforce", monkeypatch)
    before = _counted("built")

    request = _adjusted(server, monkeypatch, fields)

    tag = request.structured_outputs.structural_tag
    assert is_own(json.loads(tag))
    assert _used(tag) == tag
    assert has in json.loads(tag)["format"]["grammar"].replace('\\"', '"')
    assert lacks not in tag
    assert request.response_format is None
    assert _counted("built") == before + 1


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "none"},
        {"tool_choice": "auto", "structured_outputs": {"regex": "a+"}},
        {"tools": None},
    ],
)
def test_without_a_call_to_make_or_beside_a_regex_the_request_stays(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    _start("enforce", monkeypatch)

    request = _adjusted(server, monkeypatch, fields)

    assert getattr(request.structured_outputs, "structural_tag", None) is None


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize(("reasoning", "shown"), [(True, True), (True, False), (False, True)])
def test_every_request_with_calls_gets_a_tag_whoever_reads_the_reasoning(
    choice: str, reasoning: bool, shown: bool, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    _start("enforce", monkeypatch)

    fields = {"tool_choice": choice, "include_reasoning": shown}
    request = _adjusted(server, monkeypatch, fields, reasoning=reasoning)

    assert is_own(json.loads(request.structured_outputs.structural_tag))


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": None, "tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "walk"}}},
        {"tools": [{"type": "function", "function": {"name": "a<arg_key>"}}], "tool_choice": "required"},
    ],
    ids=["without tools", "undeclared", "unspeakable"],
)
def test_a_forced_call_without_a_tool_is_an_error_that_vllm_answers_with_400(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    """The first two are vLLM's own refusals, of a request that has no chance; the last one is ours."""
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

    _start("enforce", monkeypatch)

    with pytest.raises(Exception, match="tool_choice") as error:
        _adjusted(server, monkeypatch, fields)

    assert create_error_response(error.value).error.code == 400


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    folder = tmp_path_factory.mktemp("hook") / "tiny"
    make(folder, layers=1)
    vllm_plugin.start(Settings())
    return Server(folder)


def _adjusted(
    server: Server, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], *, reasoning: bool = True
) -> Any:
    from glm_turns import common_tools
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.parser_manager import ParserManager

    fields = {"tools": common_tools(), "messages": [{"role": "user", "content": "x"}], "model": "m"} | fields
    request = ChatCompletionRequest(**{key: value for key, value in fields.items() if value is not None})
    parsers = ParserManager.get_parser(
        tool_parser_name="glm47_safe",
        reasoning_parser_name="glm45" if reasoning else None,
        enable_auto_tools=True,
    )
    # A server loads the class behind the settings; here it was loaded before them.
    monkeypatch.setattr(parsers.tool_parser_cls, "structural_tag_model", None)
    return parsers(server.tokenizer, request.tools).adjust_request(request)


def test_an_untested_release_only_reports_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stock, "untested", lambda: ["vllm==0.99.0 is installed, but nobody tested it"])

    _start("enforce", monkeypatch)

    assert _used(TAGS["v1-auto"]) == TAGS["v1-auto"]
    assert "mode report instead of enforce: vllm==0.99.0" in caplog.text


def test_registering_twice_and_in_an_engine_process_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    _start("enforce", monkeypatch)
    hook = worker.current()
    dynamo_structural_tags.register()
    assert worker.current() is hook

    monkeypatch.setattr(worker, "_hook", None)
    monkeypatch.setattr("multiprocessing.current_process", lambda: type("P", (), {"name": "EngineCore_DP0"}))
    dynamo_structural_tags.register()
    assert worker.current() is None


def test_a_wrong_setting_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMO_STRUCTURAL_TAGS", "always")

    with pytest.raises(ValueError, match="DYNAMO_STRUCTURAL_TAGS='always'"):
        dynamo_structural_tags.register()


@pytest.mark.parametrize(
    ("setting", "modules", "version", "reader"),
    [
        ("auto", (), "", Reader.VLLM),
        ("auto", ("dynamo.vllm.handlers",), "", Reader.DYNAMO_V1),
        ("auto", ("dynamo.vllm.handlers",), "1", Reader.DYNAMO_V1),
        ("auto", ("dynamo.vllm.handlers",), "2", Reader.DYNAMO_V2),
        ("ours", ("dynamo.vllm.handlers",), "2", Reader.OURS),
    ],
)
def test_the_reader_is_the_parser_behind_the_worker(
    setting: str, modules: tuple[str, ...], version: str, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
    monkeypatch.setenv("DYN_PARSER_VERSION", version)

    assert worker.reader_of(Settings(mode=Mode.ENFORCE, reader=Reader(setting))) == reader
