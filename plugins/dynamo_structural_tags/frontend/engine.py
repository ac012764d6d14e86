"""The chat engine: one request from OpenAI's dict to OpenAI's chunks, over Dynamo's router."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

from dynamo_structural_tags.frontend.choice import Choice, CountedCalls
from dynamo_structural_tags.frontend.detokenize import Detokenizer
from dynamo_structural_tags.frontend.guidance import Guidance
from dynamo_structural_tags.frontend.inbox import Inbox, merged
from dynamo_structural_tags.frontend.model import ServedModel
from dynamo_structural_tags.frontend.preprocessed import check, preprocessed, stops
from dynamo_structural_tags.frontend.refusal import RefusedRequest
from dynamo_structural_tags.frontend.reply import Reply
from dynamo_structural_tags.frontend.stock import engine_error, incomplete, refused, template_arguments
from dynamo_structural_tags.frontend.stops import StopStrings
from dynamo_structural_tags.stream import GlmStream

__all__ = ["ChatEngine"]

_log = logging.getLogger(__name__)


class ChatEngine:
    """Serves one model. routed: Dynamo's routed engine, which finds a worker for a preprocessed request."""

    def __init__(self, model: ServedModel, routed: Any, guidance: Guidance) -> None:
        self._model = model
        self._routed = routed
        self._guidance = guidance

    async def generate(self, request: dict[str, Any], context: Any = None) -> AsyncGenerator[dict[str, Any], None]:
        """Answer one chat completion request with chunks, as Dynamo's HTTP service expects them.

        Raises Dynamo's own exceptions: InvalidArgument for what cannot be served and for what a worker refuses,
        StreamIncomplete for an answer that broke off.
        """
        try:
            sent, reply, choices = await asyncio.to_thread(self._prepare, request)
        except RefusedRequest as error:
            raise refused(str(error)) from error
        for annotation in reply.annotations(sent):
            yield annotation
        inbox = None
        try:
            inbox = Inbox(await self._routed.generate(sent, context=context))
            async for batch in inbox.batches():
                found, failure = _data(batch)
                for message in merged(found):
                    for chunk in self._answer(message, reply, choices):
                        yield chunk
                if failure is not None:
                    raise RuntimeError(failure)
                if all(choice.finished for choice in choices.values()):
                    for chunk in reply.end(choices):
                        yield chunk
                    return
        except Exception as error:
            raise engine_error(error) from error
        finally:
            if inbox is not None:
                inbox.close(ended=all(choice.ended_by_engine for choice in choices.values()))
        raise incomplete(
            f"the worker's stream for request {reply.id} ended without a finish reason after {reply.tokens(choices)} "
            "tokens, so the answer is incomplete. Look for the reason in the worker's log and send the request again.",
        )

    def _answer(self, data: dict[str, Any], reply: Reply, choices: Mapping[int, Choice]) -> list[dict[str, Any]]:
        reason = data.get("finish_reason")
        if isinstance(reason, str) and reason.startswith("error"):
            raise RuntimeError(reason.partition(":")[2].strip() or "the worker ended the output with an error")
        choice = choices.get(data.get("index") or 0)
        if choice is None:
            raise RuntimeError(f"the worker answered with choice {data.get('index')} of {len(choices)}")
        return reply.chunks(choice, data)

    def _prepare(self, request: dict[str, Any]) -> tuple[dict[str, Any], Reply, dict[int, Choice]]:
        """Everything in front of the router; runs in a thread, because long prompts take time."""
        check(request)
        nvext = request.get("nvext") or {}
        arguments = template_arguments(request, self._model.runtime)
        prompt, tokens = self._model.prompt(request, arguments)
        if nvext.get("token_data") is not None:
            tokens = list(nvext["token_data"])
        thinking = self._model.thinks(prompt)
        guided = self._guidance.options(request, thinking=thinking)
        sent = preprocessed(
            request,
            tokens,
            eos=self._model.eos,
            guided=guided,
            template_arguments=arguments,
            grammar_holds_reasoning="structural_tag" in (guided or ()),
        )
        reply = Reply(
            id=f"chatcmpl-{uuid.uuid4()}",
            created=int(time.time()),
            model=request["model"],
            request=request,
            prompt=prompt,
            prompt_tokens=len(tokens),
            table=self._model.table,
        )
        count = request.get("n") or 1
        return sent, reply, {index: self._choice(index, request, thinking) for index in range(count)}

    def _choice(self, index: int, request: Mapping[str, Any], thinking: bool) -> Choice:
        strings, numbers = stops(request)
        ignore = bool(request.get("ignore_eos"))
        return Choice(
            index,
            Detokenizer(self._model.table, skip_special=bool(request.get("skip_special_tokens"))),
            StopStrings(() if ignore else strings, shown=bool(request.get("include_stop_str_in_output"))),
            GlmStream(
                request.get("tools"), request.get("tool_choice") or "auto", thinking=thinking, counts=CountedCalls()
            ),
            tools=request.get("tools") or (),
            think_end=self._model.think_end if thinking else None,
            whole_calls=not request.get("stream"),
            end_tokens=frozenset() if ignore else frozenset((*self._model.eos, *numbers)),
            min_tokens=request.get("min_tokens") or 0,
        )


def _data(batch: Iterable[Any]) -> tuple[list[dict[str, Any]], str | None]:
    """What the messages of a stream hold up to an error among them, and the error's text."""
    found: list[dict[str, Any]] = []
    for message in batch:
        if message.is_error():
            return found, "; ".join(message.comments() or ()) or "the worker failed and gave no reason"
        if (data := message.data()) is not None:
            found.append(data)
    return found, None
