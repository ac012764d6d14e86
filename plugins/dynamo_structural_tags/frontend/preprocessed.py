"""A chat completion request as what Dynamo's router and workers take, and what of it cannot be served here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dynamo_structural_tags.frontend.refusal import RefusedRequest

__all__ = ["EXTRA_FIELDS", "HIDDEN", "REFUSED", "check", "preprocessed", "stops"]

#: Fields that change the answer and that no worker can be told of, with the way out.
REFUSED: dict[str, str] = {
    "audio": "the model writes text. Leave it out.",
    "functions": "functions are deprecated. Send tools.",
    "guided_decoding_backend": "the worker's backend is fixed when it starts. Leave it out.",
    "logit_bias": "Dynamo's workers are not told of it. Leave it out.",
    "web_search_options": "nothing here searches the web. Send a tool that does.",
    "mm_processor_kwargs": "this frontend serves text. Leave it out, or use dynamo.frontend.",
    "media_io_kwargs": "this frontend serves text. Leave it out, or use dynamo.frontend.",
}

#: The same in ``nvext``.
_REFUSED_NVEXT: dict[str, str] = {
    "greed_sampling": "Dynamo's workers are not told of it. Send temperature 0.",
    "metadata_upload": "only Dynamo's own chat engine uploads. Leave it out, or use dynamo.frontend.",
}

#: What ``nvext.extra_fields`` may ask for.
EXTRA_FIELDS = ("stop_reason", "completion_token_ids", "timing")

#: Fields that Dynamo accepts, but does not hand to chat engines written in Python, and what to send instead.
HIDDEN: dict[str, str] = {
    "cache_salt": "`nvext.cache_salt`, or the header `x-tenant-id`",
    "stop_token_ids": "`stop` with a list of token ids",
    "allowed_token_ids": "nothing",
    "bad_words_token_ids": "nothing",
    "logprob_token_ids": "`top_logprobs`",
    "detokenize": "nothing",
}

_ROUTING = (
    "backend_instance_id",
    "prefill_worker_id",
    "decode_worker_id",
    "dp_rank",
    "prefill_dp_rank",
    "cache_salt",
    "routing_constraints",
)


def check(request: Mapping[str, Any]) -> None:
    """Raise `RefusedRequest` for a field that would have no effect, and for combinations that mean nothing."""
    for field, why in REFUSED.items():
        if request.get(field):
            raise RefusedRequest(f"{field}={_short(request[field])}: {why}")
    if (modalities := request.get("modalities")) and modalities != ["text"]:
        raise RefusedRequest(f"modalities={_short(modalities)}: the model writes text. Send ['text'] or leave it out.")
    nvext = request.get("nvext") or {}
    for field, why in _REFUSED_NVEXT.items():
        if nvext.get(field):
            raise RefusedRequest(f"nvext.{field}={_short(nvext[field])}: {why}")
    if unknown := sorted(set(nvext.get("extra_fields") or ()) - set(EXTRA_FIELDS)):
        raise RefusedRequest(
            f"nvext.extra_fields={_short(unknown)}: only Dynamo's own chat engine has them. Here are "
            f"{', '.join(EXTRA_FIELDS)}."
        )
    if request.get("top_logprobs") and not request.get("logprobs"):
        raise RefusedRequest(f"top_logprobs={request['top_logprobs']} without logprobs. Set logprobs to true.")


def stops(request: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    """The stop strings, and the stop token ids, which OpenAI's ``stop`` may hold instead."""
    given = request.get("stop")
    entries = [given] if isinstance(given, str) else list(given or ())
    return [one for one in entries if isinstance(one, str)], [one for one in entries if isinstance(one, int)]


def preprocessed(
    request: Mapping[str, Any],
    tokens: Sequence[int],
    *,
    eos: Sequence[int],
    guided: Mapping[str, Any] | None,
    template_arguments: Mapping[str, Any],
    grammar_holds_reasoning: bool = False,
) -> dict[str, Any]:
    """The request for the router.

    tokens: the prompt. eos: ids that end an output. guided: Dynamo's guided decoding options, a structural tag among
    them. template_arguments: the chat template's, from which the worker's reasoning parser sees whether there is any.
    grammar_holds_reasoning: the grammar begins at the first token, where vLLM would wait for the end of the reasoning.
    """
    strings, numbers = stops(request)
    ignore_eos = bool(request.get("ignore_eos"))
    nvext = request.get("nvext") or {}
    result: dict[str, Any] = {
        "model": request["model"],
        "token_ids": list(tokens),
        "stop_conditions": {
            "max_tokens": _first(request, "max_completion_tokens", "max_tokens"),
            # What stop strings and stop ids mean is for the frontend alone under ignore_eos: Dynamo drops them there.
            "stop": None if ignore_eos else strings or None,
            "stop_token_ids": None if ignore_eos else numbers or None,
            "stop_token_ids_hidden": None if ignore_eos else list(eos),
            "min_tokens": request.get("min_tokens"),
            "ignore_eos": request.get("ignore_eos"),
            "max_thinking_tokens": _first({**nvext, **request}, "thinking_token_budget", "max_thinking_tokens"),
        },
        "sampling_options": {
            key: request.get(key)
            for key in (
                *("n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p"),
                *("top_k", "min_p", "seed", "include_stop_str_in_output"),
            )
        },
        "output_options": {
            "logprobs": (1 if request.get("top_logprobs") is None else request["top_logprobs"])
            if request.get("logprobs")
            else None,
            "prompt_logprobs": request.get("prompt_logprobs"),
            "skip_special_tokens": bool(request.get("skip_special_tokens")),
            "return_tokens_as_token_ids": request.get("return_tokens_as_token_ids"),
        },
        "eos_token_ids": [] if ignore_eos else list(eos),
        "annotations": list(nvext.get("annotations") or ()),
        "routing": _routing(nvext),
    }
    if guided is not None:
        result["sampling_options"]["guided_decoding"] = dict(guided)
    if nvext.get("router"):
        result["router"] = nvext["router"]
    if nvext.get("request_timestamp_ms") is not None:
        result["request_timestamp_ms"] = nvext["request_timestamp_ms"]
    extra = _extra(nvext, template_arguments)
    if grammar_holds_reasoning:
        extra["reasoning_ended"] = True
    if extra:
        result["extra_args"] = extra
    return result


def _routing(nvext: Mapping[str, Any]) -> dict[str, Any]:
    """Hints for the router, named as Dynamo's own preprocessor names them."""
    routing = {key: nvext[key] for key in _ROUTING if nvext.get(key) is not None}
    hints = nvext.get("agent_hints") or {}
    if hints.get("osl") is not None:
        routing["expected_output_tokens"] = hints["osl"]
    if hints.get("strict_priority") is not None:
        routing["strict_priority"] = hints["strict_priority"]
    if hints.get("priority") is not None:
        routing |= {"priority": hints["priority"], "priority_jump": float(max(hints["priority"], 0))}
    elif hints.get("latency_sensitivity") is not None:
        routing["priority_jump"] = hints["latency_sensitivity"]
    return routing


def _extra(nvext: Mapping[str, Any], template_arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What passes through the router to the worker as it is."""
    passed = {key: nvext[key] for key in ("extra_fields", "cache_salt") if nvext.get(key)}
    if nvext.get("token_data") is not None:
        passed["token_in"] = True
    extra: dict[str, Any] = {"nvext": passed} if passed else {}
    if template_arguments:
        extra["reasoning_parser_kwargs"] = {"chat_template_kwargs": dict(template_arguments)}
    return extra


def _first(fields: Mapping[str, Any], *names: str) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
