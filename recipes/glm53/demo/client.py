"""One agent: turns of a conversation over the official OpenAI client, each streamed and timed."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from openai import OpenAI

from glm53.demo.conversation import TOOLS, first_messages, tool_for, tool_result

__all__ = ["LONGEST_ANSWER", "Answer", "Turn", "calls_as_data", "run_session"]

LONGEST_ANSWER = 512
_TEXT_TOKENS = 48


@dataclass(frozen=True)
class Answer:
    """What a client can see of one answer; equal answers are equal in all of it."""

    content: str
    reasoning: str
    tool_calls: tuple[tuple[str, str], ...]
    finish_reason: str
    completion_tokens: int


@dataclass(frozen=True)
class Turn:
    """One turn as the client saw it.

    cached_tokens: prompt tokens the prefill worker found in its cache. router_hit_rate: the part of the prompt's
    blocks the KV router expected there, 0 to 1, None without a KV router. ttft_s: seconds to the first streamed
    piece. itl_p50_s: median seconds between pieces; for a call that arrives in one piece, the server's mean
    seconds per token.
    """

    session: int
    turn: int
    prompt_tokens: int
    cached_tokens: int
    router_hit_rate: float | None
    ttft_s: float
    itl_p50_s: float
    answer: Answer


def run_session(client: OpenAI, model: str, session: int, turns: int, prompt: int, append: int) -> list[Turn]:
    """All turns of one agent: a tool call in each but the last, which answers in text."""
    messages = first_messages(session, prompt)
    done = []
    for number in range(1, turns + 1):
        last = number == turns
        turn = _ask(client, model, session, number, messages, None if last else tool_for(number))
        done.append(turn)
        if last:
            break
        calls = [
            {"id": f"call-{number}-{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(turn.answer.tool_calls)
        ]
        reply: dict[str, Any] = {"role": "assistant", "content": turn.answer.content}
        messages.append(reply | ({"tool_calls": calls} if calls else {}))
        result = tool_result(session, number, append)
        if calls:
            messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": result})
        else:
            messages.append({"role": "user", "content": result})
    return done


def _ask(
    client: OpenAI, model: str, session: int, number: int, messages: list[dict[str, Any]], tool: str | None
) -> Turn:
    began = time.perf_counter()
    stream = client.chat.completions.create(  # type: ignore[call-overload]  # plain dicts for its typed ones
        model=model,
        messages=messages,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": tool}} if tool else "auto",
        temperature=0.0,
        max_tokens=LONGEST_ANSWER if tool else _TEXT_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={
            "nvext": {"extra_fields": ["timing"]},
            # A model with random weights would not end its thinking before a call; and turning it on for some
            # turns would change the prompt from its first line on, so that nothing cached would fit.
            "chat_template_kwargs": {"enable_thinking": False},
        },
    )
    content = reasoning = finish = ""
    calls: dict[int, list[str]] = {}
    arrivals: list[float] = []
    usage: Any = None
    timing: dict[str, Any] = {}
    for chunk in stream:
        timing = ((chunk.model_extra or {}).get("nvext") or {}).get("timing") or timing
        usage = chunk.usage or usage
        for choice in chunk.choices:
            delta = choice.delta
            thought = (delta.model_extra or {}).get("reasoning_content") or ""
            if delta.content or thought or delta.tool_calls:
                arrivals.append(time.perf_counter() - began)
            content += delta.content or ""
            reasoning += thought
            finish = choice.finish_reason or finish
            for call in delta.tool_calls or []:
                parts = calls.setdefault(call.index, ["", ""])
                if call.function:
                    parts[0] += call.function.name or ""
                    parts[1] += call.function.arguments or ""
    answer = Answer(
        content,
        reasoning,
        tuple((name, arguments) for _, (name, arguments) in sorted(calls.items())),
        finish,
        usage.completion_tokens,
    )
    return Turn(
        session=session,
        turn=number,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=(usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0) or 0,
        router_hit_rate=timing.get("kv_hit_rate"),
        ttft_s=round(arrivals[0] if arrivals else time.perf_counter() - began, 4),
        itl_p50_s=round(_between(arrivals, timing, usage.completion_tokens), 5),
        answer=answer,
    )


def _between(arrivals: list[float], timing: dict[str, Any], tokens: int) -> float:
    """Median seconds between streamed pieces, or the server's mean per token if there are too few pieces."""
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    if len(gaps) >= 3:
        return statistics.median(gaps)
    first_ms = timing.get("ttft_ms", 0.0) + timing.get("kv_transfer_estimated_latency_ms", 0.0)
    return max(0.0, timing.get("total_time_ms", 0.0) - first_ms) / 1e3 / max(1, tokens - 1)


def calls_as_data(turn: Turn) -> list[dict[str, Any]]:
    """The turn's tool calls with parsed arguments; arguments that are not JSON stay text."""
    found = []
    for name, arguments in turn.answer.tool_calls:
        try:
            value: Any = json.loads(arguments)
        except ValueError:
            value = arguments
        found.append({"name": name, "arguments": value})
    return found
