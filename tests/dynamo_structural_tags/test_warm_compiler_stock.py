"""The engine's grammar compiler knows GLM's texts before the first request: real vLLM, without timing anything."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs the pinned stock environment: make test")
pytest.importorskip("safetensors", reason="needs the demo extra: make test")

from vllm.config import DeviceConfig, ModelConfig, StructuredOutputsConfig, VllmConfig
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

import dynamo_structural_tags
from dynamo_structural_tags import vllm_warm
from dynamo_structural_tags.grammar import build_tag
from dynamo_structural_tags.patches import REGISTER


def _tool(name: str, text: str, texts: str, pair: str, key: str) -> dict[str, Any]:
    closed = {"type": "object", "properties": {key: {"type": "string"}}, "additionalProperties": False}
    properties = {text: {"type": "string"}, texts: {"type": "array", "items": {"type": "string"}}, pair: closed}
    return {
        "name": name,
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": [text, texts],
            "additionalProperties": False,
        },
    }


TOOL = _tool("write_file", "path", "lines", "owner", "group")
OTHER = _tool("ask", "question", "answers", "user", "role")


@pytest.fixture
def _engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is named as an engine's, and tags are enforced; vLLM is left as it was."""
    monkeypatch.setattr(multiprocessing.current_process(), "_name", "EngineCore_DP0")
    monkeypatch.setenv("DYNAMO_STRUCTURAL_TAGS", "enforce")
    monkeypatch.setattr(vllm_warm, "_prepared", [])
    yield
    REGISTER.revert()


def _manager(model: Path, backend: str = "auto") -> Any:
    config = VllmConfig(
        model_config=ModelConfig(model=str(model), max_model_len=512),
        device_config=DeviceConfig("cpu"),
        structured_outputs_config=StructuredOutputsConfig(backend=backend),
    )
    return StructuredOutputManager(config)


def _compiler(backend: Any) -> Any:
    """The compiler of structural tags; later releases have another one for JSON."""
    return getattr(backend, "full_vocab_compiler", backend.compiler)


def _added(manager: Any, reader: str = "glm", tool: dict[str, Any] = TOOL) -> int:
    """Bytes that a request's grammar adds to what the compiler keeps."""
    tag = json.dumps(build_tag([tool], family=reader))
    sampling = SamplingParams(structured_outputs=StructuredOutputsParams(structural_tag=tag))
    sampling.structured_outputs._backend = "xgrammar"
    made = [manager.backend] if manager.backend else vllm_warm._prepared
    before = sum(_compiler(one).get_cache_size_bytes() for one in made)
    request = Request.from_engine_core_request(
        EngineCoreRequest(
            request_id="r",
            prompt_token_ids=[1],
            mm_features=None,
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        ),
        None,
    )
    manager.grammar_init(request)
    while not request.structured_output_request.is_grammar_ready:
        pass
    return int(_compiler(manager.backend).get_cache_size_bytes()) - before


@pytest.mark.usefixtures("_engine")
@pytest.mark.parametrize("reader", ["glm", "glm-vllm", "glm-dynamo-v1", "glm-dynamo-v2"])
def test_the_first_request_compiles_with_what_the_engine_compiled_when_it_started(
    reader: str, served_model: Path
) -> None:
    """It adds no more to what the compiler keeps than a later request of an engine without."""
    engine = _manager(served_model)
    first, later = _added(engine, reader, OTHER), _added(engine, reader)
    dynamo_structural_tags.register()
    manager = _manager(served_model)
    assert manager.backend is None  # the first request decides, as in stock
    (prepared,) = vllm_warm._prepared

    added = _added(manager, reader)

    assert isinstance(manager.backend, XgrammarBackend)
    assert _compiler(manager.backend) is _compiler(prepared)
    assert vllm_warm._prepared == []
    assert added <= later < first


@pytest.mark.usefixtures("_engine")
def test_an_engine_that_is_told_to_use_another_backend_prepares_nothing(served_model: Path) -> None:
    dynamo_structural_tags.register()
    _manager(served_model, backend="guidance")
    assert vllm_warm._prepared == []


@pytest.mark.usefixtures("_engine")
def test_a_model_without_the_markers_prepares_nothing(served_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynamo_structural_tags.glm_format.MARKS", frozenset({"<no such marker>"}))
    dynamo_structural_tags.register()
    _manager(served_model)
    assert vllm_warm._prepared == []


@pytest.mark.usefixtures("_engine")
def test_where_preparing_fails_the_first_request_compiles_as_in_stock(
    served_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no memory for masks")

    monkeypatch.setattr(vllm_warm, "_warm", broken)
    dynamo_structural_tags.register()
    manager = _manager(served_model)

    assert "no memory for masks" in caplog.text
    assert _added(manager) > 0


@pytest.mark.usefixtures("_engine")
def test_only_enforced_tags_have_the_compiler_prepared(served_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMO_STRUCTURAL_TAGS", "report")
    dynamo_structural_tags.register()
    _manager(served_model)
    assert vllm_warm._prepared == []
