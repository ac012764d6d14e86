"""What this plugin replaces in stock packages, only where ``RL_CAPTURE=on`` asks for it."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from rl_capture.stock import DYNAMO, VLLM, dynamo_serves
from stockpatch.register import Patch, Register

if TYPE_CHECKING:
    from rl_capture.generation import Capture
    from rl_capture.settings import Settings

__all__ = ["DYNAMO_WEIGHTS", "REGISTER", "SERVING", "install"]

_settings: Settings | None = None
#: Engine -> its capture; an engine that goes takes it along.
_captures: weakref.WeakKeyDictionary[Any, Capture] = weakref.WeakKeyDictionary()


def install(settings: Settings) -> None:
    """Record the requests of engines made from now on in this process; harmless when repeated."""
    global _settings
    _settings = settings
    REGISTER.apply([*SERVING, *(DYNAMO_WEIGHTS if dynamo_serves() else ())])


def _with_capture(original: Any) -> Any:
    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **more: Any) -> None:
        original(self, *arguments, **more)
        if _settings is not None:
            from rl_capture.engine import capture_for

            _captures[self] = capture_for(self, _settings)

    return __init__


def _recorded(original: Any) -> Any:
    @functools.wraps(original)
    def generate(self: Any, prompt: Any, sampling_params: Any, request_id: str, **more: Any) -> Any:
        capture = _captures.get(self)
        if capture is None:
            return original(self, prompt, sampling_params, request_id, **more)
        return capture.generate(functools.partial(original, self), prompt, sampling_params, request_id, more)

    return generate


def _undecoded(original: Any) -> Any:
    from rl_capture.generation import MARK

    @functools.wraps(original)
    def from_new_request(cls: Any, tokenizer: Any, request: Any) -> Any:
        params = request.sampling_params
        mine = params is not None and MARK in (params.extra_args or {})
        return original(cls, None if mine else tokenizer, request)

    return from_new_request


def _counted(original: Any) -> Any:
    @functools.wraps(original)
    async def collective_rpc(self: Any, method: Any, *arguments: Any, **more: Any) -> Any:
        capture = _captures.get(self)
        if capture is None or not (isinstance(method, str) and capture.weights.changed_by(method)):
            return await original(self, method, *arguments, **more)
        capture.weights.touched()
        try:
            return await original(self, method, *arguments, **more)
        finally:
            capture.weights.touched()

    return collective_rpc


def _declared(original: Any) -> Any:
    @functools.wraps(original)
    async def declare(self: Any, body: Any) -> Any:
        answer = await original(self, body)
        capture = _captures.get(self.engine_client)
        told = isinstance(answer, dict) and answer.get("status") == "ok" and answer.get("version_declared", True)
        if capture is not None and told:
            capture.weights.declare(answer["version"])
        return answer

    return declare


def _vllm(id: str, method: str, why: str, replace: Any, expects: tuple[str, ...], module: str = "async_llm") -> Patch:
    return Patch(
        id=id,
        target=f"vllm.v1.engine.{module}:{method}",
        window=VLLM,
        why=why,
        upstream=f"https://github.com/vllm-project/vllm/blob/main/vllm/v1/engine/{module}.py",
        remove_when="vLLM hands finished requests, with token ids and log-probabilities that the client did not ask "
        "for, to plugins.",
        replace=replace,
        expects=expects,
    )


def _dynamo(method: str) -> Patch:
    return Patch(
        id=f"dynamo-{method.replace('_', '-')}",
        target=f"dynamo.vllm.handlers:BaseWorkerHandler.{method}",
        window=DYNAMO,
        why="Dynamo's worker keeps the version of its weights to itself and does not tell vLLM's engine. The "
        "replacement notes the version that a trainer declared, after Dynamo has accepted it.",
        upstream="https://github.com/ai-dynamo/dynamo/blob/main/components/src/dynamo/vllm/handlers.py",
        remove_when="Dynamo's worker declares the version to vLLM's engine.",
        replace=_declared,
        expects=("self", "body"),
        optional_outside=True,
    )


_ARGUMENTS = (
    *("self", "vllm_config", "executor_class", "log_stats", "usage_context", "mm_registry", "log_requests"),
    *("start_engine_loop", "stat_loggers", "aggregate_engine_logging", "client_addresses", "client_count"),
    *("client_index", "profiler"),
)
_GENERATE = (
    *("self", "prompt", "sampling_params", "request_id", "prompt_text", "lora_request", "tokenization_kwargs"),
    *("trace_headers", "priority", "data_parallel_rank", "session_id", "kv_hints", "reasoning_ended"),
    *("reasoning_parser_kwargs",),
)

SERVING = ("capture-starts", "capture-requests", "capture-undecoded", "capture-weight-updates")
_DECLARING = ("set_weight_version", "update_weights_from_disk", "update_weights_from_distributed")
DYNAMO_WEIGHTS = tuple(f"dynamo-{method.replace('_', '-')}" for method in _DECLARING)

REGISTER = Register(
    "rl_capture",
    (
        _vllm(
            SERVING[0],
            "AsyncLLM.__init__",
            "Records need the engine's tokenizer, names and folder before the first request. The replacement opens "
            "them once the engine is made, and raises if it cannot.",
            _with_capture,
            _ARGUMENTS,
        ),
        _vllm(
            SERVING[1],
            "AsyncLLM.generate",
            "Token ids and log-probabilities of all requests pass here and nowhere else in the serving process; vLLM's "
            "plugins for statistics get counts only. The replacement asks the engine for the chosen tokens' "
            "log-probabilities, keeps a copy of each output, and takes out of it what the client did not ask for.",
            _recorded,
            _GENERATE,
        ),
        _vllm(
            SERVING[2],
            "LogprobsProcessor.from_new_request",
            "vLLM decodes every token that has a log-probability once more, to show it to the client, which takes "
            "longer than all else that a record needs. The replacement leaves that out where only the record has them.",
            _undecoded,
            ("cls", "tokenizer", "request"),
            "logprobs",
        ),
        _vllm(
            SERVING[3],
            "AsyncLLM.collective_rpc",
            "Weights are replaced by calls on all workers, and vLLM counts none. The replacement counts the beginning "
            "and the end of each.",
            _counted,
            ("self", "method", "timeout", "args", "kwargs"),
        ),
        *map(_dynamo, _DECLARING),
    ),
)
