"""Where a grammar begins in a real vLLM: at the first token, and the tag holds the reasoning where there is one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs the pinned stock environment: make test")
pytest.importorskip("safetensors", reason="needs the demo extra: make test")

from byte_matcher import _COMPILER, accepts
from glm_turns import call_text
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
from vllm.tokenizers import get_tokenizer
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.output_processor import OutputProcessor

from dynamo_structural_tags.ebnf.turn import Begin
from dynamo_structural_tags.grammar import build_tag
from dynamo_structural_tags.patches import REGISTER, TAGS
from dynamo_structural_tags.vllm_begin import begin_of
from glm53.model import make

TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]
CALL = call_text("run", {})
OPEN = "[gMASK]<sop><|system|>\nTools: <tool_call></tool_call><|user|>hi<|assistant|><think>"
CLOSED = "<|user|>what is <think>?<|assistant|></think>"
#: GLM-4.5 opens the reasoning by itself.
BARE = "<|user|>hi<|assistant|><think>a</think>b<|user|>hi<|assistant|>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("begin") / "tiny"
    make(folder, layers=1)
    return get_tokenizer(str(folder))


@pytest.fixture
def processor(tokenizer: Any) -> Iterator[OutputProcessor]:
    REGISTER.apply(TAGS)
    yield OutputProcessor(tokenizer, log_stats=False)
    REGISTER.revert()


def _request(processor: OutputProcessor, prompt: str, constraint: dict[str, Any], **told: Any) -> EngineCoreRequest:
    """A request as the engine gets it, behind vLLM's own code of the API server."""
    sampling = SamplingParams(
        structured_outputs=StructuredOutputsParams(**constraint), output_kind=RequestOutputKind.DELTA
    )
    tokens = processor.tokenizer.encode(prompt, add_special_tokens=False)
    request = EngineCoreRequest(
        request_id="r",
        prompt_token_ids=tokens,
        mm_features=None,
        sampling_params=sampling,
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
        **told,
    )
    request.external_req_id = "r"
    processor.add_request(request, prompt)
    return request


@pytest.mark.parametrize(
    ("prompt", "begin"),
    [
        (OPEN, Begin.THOUGHT),
        (OPEN + "\nSo far", Begin.THOUGHT),  # continue_final_message
        (CLOSED, Begin.ANSWER),
        ("<|assistant|><think></think>", Begin.ANSWER),
        ("<|assistant|><think>a</think>\nHalf an answer", Begin.ANSWER),
        (BARE, Begin.TURN),
        ("<|user|>what is <think>?<|assistant|>", Begin.TURN),
        ("no chat at all", Begin.ANSWER),
        ("<|user|>what is <think>?<|observation|>a word", Begin.ANSWER),  # any other special token ends a turn
    ],
)
def test_a_prompt_tells_what_its_output_begins_with(prompt: str, begin: Begin, tokenizer: Any) -> None:
    assert begin_of(tokenizer.encode(prompt, add_special_tokens=False), tokenizer) is begin
    assert begin_of(None, tokenizer) is begin_of([1], None) is Begin.ANSWER


@pytest.mark.parametrize(
    ("prompt", "told", "waits", "allowed", "forbidden"),
    [
        (
            OPEN,
            False,
            True,
            ["Hm. Should I <arg_key> or `<arg_value>`? <think>No.</think>" + CALL],
            [CALL, "Hm. " + CALL, "Hm. <tool_call> is a marker.</think>" + CALL],
        ),
        (CLOSED, None, None, [CALL], ["Hm.</think>" + CALL]),
        (BARE, False, True, [CALL, "<think>Hm.</think>" + CALL, "\n<think>Hm.</think>" + CALL], ["Hm.</think>" + CALL]),
    ],
    ids=["open", "closed", "bare"],
)
def test_no_call_can_begin_inside_the_reasoning_and_all_other_thoughts_are_free(
    prompt: str,
    told: bool | None,
    waits: bool | None,
    allowed: list[str],
    forbidden: list[str],
    processor: OutputProcessor,
) -> None:
    tag = json.dumps(build_tag(TOOLS, tool_choice="required"))

    request = _request(processor, prompt, {"structural_tag": tag}, reasoning_ended=told)

    assert request.reasoning_ended is waits
    grammar = _COMPILER.compile_structural_tag(request.sampling_params.structured_outputs.structural_tag)
    assert {text: accepts(grammar, text) for text in allowed} == dict.fromkeys(allowed, True)
    assert {text: accepts(grammar, text) for text in forbidden} == dict.fromkeys(forbidden, False)


def test_the_choices_of_one_request_share_their_tag(processor: OutputProcessor) -> None:
    """vLLM hands over each choice by itself, with the same constraint."""
    tag = json.dumps(build_tag(TOOLS, reasoning="tag"))
    request = _request(processor, OPEN, {"structural_tag": tag}, reasoning_ended=False)

    assert (request.sampling_params.structured_outputs.structural_tag, request.reasoning_ended) == (tag, True)


@pytest.mark.parametrize(
    "constraint",
    [
        {"regex": "a+"},
        {"structural_tag": '{"type": "structural_tag", "format": {"type": "any_text"}}'},
    ],
)
def test_the_reasoning_of_other_constraints_stays_vllms(constraint: dict[str, Any], processor: OutputProcessor) -> None:
    request = _request(processor, OPEN, constraint, reasoning_ended=False)

    assert request.reasoning_ended is False
    assert request.sampling_params.structured_outputs == StructuredOutputsParams(**constraint)


def test_the_engine_fills_masks_and_takes_tokens_from_the_first_one_on(processor: OutputProcessor) -> None:
    """vLLM's manager, in the engine's process, with its own reasoning parser: it starts the grammar at once."""
    from vllm.config import DeviceConfig, ModelConfig, StructuredOutputsConfig, VllmConfig
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

    model = ModelConfig(model=processor.tokenizer.name_or_path, max_model_len=512)
    manager = StructuredOutputManager(
        VllmConfig(
            model_config=model,
            device_config=DeviceConfig("cpu"),
            structured_outputs_config=StructuredOutputsConfig(reasoning_parser="glm45"),
        )
    )
    tag = json.dumps(build_tag(TOOLS))
    told = _request(processor, OPEN, {"structural_tag": tag}, reasoning_ended=False)
    request = Request.from_engine_core_request(told, None)
    told.sampling_params.structured_outputs._backend = "xgrammar"
    manager.grammar_init(request)
    call, think_end = (processor.tokenizer.convert_tokens_to_ids(text) for text in ("<tool_call>", "</think>"))

    def allowed() -> set[int]:
        while not request.structured_output_request.is_grammar_ready:
            pass
        row = manager.grammar_bitmask({"r": request}, ["r"], {})[0]
        return {token for token in (call, think_end) if row[token // 32] >> (token % 32) & 1}

    assert allowed() == {think_end}
    assert manager.accept_tokens(request, processor.tokenizer.encode("Hm.", add_special_tokens=False))
    assert allowed() == {think_end}
    drafts = [think_end, call]
    assert manager.validate_tokens(request, [call]) == []  # speculated, as the model itself
    assert manager.validate_tokens(request, drafts) == drafts
    assert manager.accept_tokens(request, [think_end])
    assert allowed() == {call}
