"""What this plugin replaces: in vLLM a hook for tags, where its engine gets its grammar compiler, and three places that
hand notes and the end to clients, in Dynamo's frontend the chat engine."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

from dynamo_structural_tags.frontend.hook import CHAT_ENGINE
from dynamo_structural_tags.stock import VLLM
from stockpatch.register import Patch, Register
from stockpatch.versions import Window

__all__ = ["ANSWERS", "REGISTER", "TAGS", "WARM"]

_SERVING = "vllm.entrypoints.openai.chat_completion.serving"
_NOTES = "tool_call_notes"


def _with_our_tag(original: Any) -> Any:
    @functools.wraps(original)
    def post_init(self: Any) -> None:
        if isinstance(self.structural_tag, str):
            from dynamo_structural_tags.worker import replaced

            self.structural_tag = replaced(self.structural_tag)
        original(self)

    return post_init


def _with_the_reasoning_in_the_tag(original: Any) -> Any:
    @functools.wraps(original)
    def add_request(self: Any, request: Any, *arguments: Any, **named: Any) -> None:
        from dynamo_structural_tags.vllm_begin import own_the_reasoning

        own_the_reasoning(request, self.tokenizer)
        original(self, request, *arguments, **named)

    return add_request


def _with_a_prepared_compiler(original: Any) -> Any:
    @functools.wraps(original)
    def init(self: Any, vllm_config: Any) -> None:
        from dynamo_structural_tags.vllm_warm import prepare

        original(self, vllm_config)
        prepare(self)

    return init


def _or_the_prepared_one(original: Any) -> Any:
    @functools.wraps(original)
    def post_init(self: Any) -> None:
        from dynamo_structural_tags.vllm_warm import hand_over

        if not hand_over(self):
            original(self)

    return post_init


def _told_the_tokens(original: Any) -> Any:
    @functools.wraps(original)
    def parse(
        self: Any,
        model_output: str,
        request: Any,
        enable_auto_tools: bool = False,
        model_output_token_ids: Any = (),
    ) -> Any:
        if (tell := getattr(self.tool_parser, "note_tokens", None)) is not None:
            tell(model_output_token_ids)
        return original(self, model_output, request, enable_auto_tools, model_output_token_ids)

    return parse


def _up_to_the_first_marker(original: Any) -> Any:
    @functools.wraps(original)
    def extract_reasoning(self: Any, model_output: str, request: Any) -> Any:
        found = original(self, model_output, request)
        split = getattr(self.tool_parser, "split_reasoning", None)
        if split is None or found == (None, model_output):  # there is none, or thinking is off
            return found
        return split(model_output)

    return extract_reasoning


def _marker_by_marker(original: Any) -> Any:
    @functools.wraps(original)
    def parse_delta(
        self: Any,
        delta_text: str,
        delta_token_ids: list[int],
        request: Any,
        prompt_token_ids: list[int] | None = None,
        *,
        finished: bool,
    ) -> Any:
        divided = getattr(self.tool_parser, "divided", None)
        if divided is None:
            return original(self, delta_text, delta_token_ids, request, prompt_token_ids, finished=finished)
        *earlier, (text, tokens) = divided(delta_text, delta_token_ids)
        deltas = [original(self, *piece, request, prompt_token_ids, finished=False) for piece in earlier]
        deltas.append(original(self, text, tokens, request, prompt_token_ids, finished=finished))
        return self.tool_parser.joined(deltas)

    return parse_delta


def _with_notes(original: Any) -> Any:
    @functools.wraps(original)
    def finalize(self: Any, message: Any, *, parser: Any) -> Any:
        message = original(self, message, parser=parser)
        if notes := getattr(getattr(parser, "tool_parser", None), "notes", None):
            setattr(message, _NOTES, notes)
        return message

    return finalize


def _with_cut_visible(original: Any) -> Any:
    """The class of a choice, as a function: of a choice whose message tells of a cut call, the reason is "length"."""

    @functools.wraps(original, updated=())
    def choice(**fields: Any) -> Any:
        made = original(**fields)
        notes = getattr(fields.get("message", fields.get("delta")), _NOTES, None) or ()
        if made.finish_reason in ("stop", "tool_calls") and any(note["code"] == "truncated_call" for note in notes):
            made.finish_reason = "length"
        return made

    return choice


def _tags_have_a_hook() -> bool:
    parameters = importlib.import_module("vllm.sampling_params").StructuredOutputsParams
    return any("hook" in name or "transform" in name for name in vars(parameters))


def _backends_are_made_at_the_start() -> bool:
    manager = importlib.import_module("vllm.v1.structured_output").StructuredOutputManager
    return "XgrammarBackend" in manager.__init__.__code__.co_names


def _parsers_are_told_the_reason() -> bool:
    parser = importlib.import_module("vllm.tool_parsers.abstract_tool_parser").ToolParser
    return "finish_reason" in inspect.signature(parser.extract_tool_calls).parameters


def _answer(id: str, target: str, why: str, remove_when: str, replace: Any, expects: tuple[str, ...] | None) -> Patch:
    return Patch(
        id=id,
        target=target,
        window=VLLM,
        why=why,
        upstream="https://github.com/vllm-project/vllm/pull/47963",
        remove_when=remove_when,
        replace=replace,
        expects=expects,
        obsolete=_parsers_are_told_the_reason,
        optional_outside=True,
    )


#: Applied in every process of vLLM, whatever its release: it tells itself what it may do there.
TAGS = ("tags-the-parser-reads-back", "tags-own-the-reasoning")

#: Applied in every process of vLLM where tags are enforced; they act where its engine is.
WARM = ("compiler-made-at-the-start", "prepared-compiler-handed-over")

#: Applied where the parser glm47_safe is loaded.
ANSWERS = (
    "tokens-for-the-parser",
    "reasoning-up-to-the-first-marker",
    "deltas-end-with-the-reasoning",
    "notes-in-the-message",
    "cut-calls-in-choices",
    "cut-calls-in-streamed-choices",
)

_REASON_REMOVE = "vLLM gives tool parsers the engine's finish reason and lets them decide on the client's."

REGISTER = Register(
    "dynamo_structural_tags",
    (
        Patch(
            id=TAGS[0],
            target="vllm.sampling_params:StructuredOutputsParams.__post_init__",
            window=Window(VLLM.distributions, ">=0.31,<1", tested=VLLM.tested),
            why="Every structural tag, built by Dynamo's frontend or by vLLM, becomes a request's constraint here, and "
            "nowhere before it is there something to subclass or configure. The tags allow texts that the parsers "
            "behind them misread, and forbid values that the tools' schemas allow. The replacement hands the tag to "
            "worker.replaced, which gives it back as it was unless it knows it and a tag for the same tools compiles.",
            upstream="https://github.com/mlc-ai/xgrammar/issues/833",
            remove_when="vLLM has a hook for structural tags, or its and Dynamo's tags are what the parsers read back.",
            replace=_with_our_tag,
            expects=("self",),
            obsolete=_tags_have_a_hook,
            optional_outside=True,
        ),
        Patch(
            id=TAGS[1],
            target="vllm.v1.engine.output_processor:OutputProcessor.add_request",
            window=Window(VLLM.distributions, ">=0.31,<1", tested=VLLM.tested),
            why="vLLM starts a grammar behind the reasoning, which a call that begins inside of it ends as well: 0.31 "
            "lets all of that call go free, later releases if its marker is not one token. Whether the output begins "
            "inside of the reasoning is known once prompt and tag are together, and this is the first place where "
            "they are, for every API and each choice. The replacement writes the reasoning into this plugin's own "
            "tags, any text but the marker of a call, and tells the engine not to wait for its end.",
            upstream="https://github.com/vllm-project/vllm/pull/46149",
            remove_when="vLLM keeps calls out of the reasoning, or starts the grammar in front of the marker that "
            "ended it.",
            replace=_with_the_reasoning_in_the_tag,
            expects=("self", "request", "prompt", "parent_req", "request_index", "queue"),
            optional_outside=True,
        ),
        Patch(
            id=WARM[0],
            target="vllm.v1.structured_output:StructuredOutputManager.__init__",
            window=VLLM,
            why="The engine makes its grammar compiler at the first request with a grammar, so that request waits for "
            "what all of GLM's grammars share, half a second of processor time and more on a busy machine. The "
            "replacement also makes one, and compiles a tag of each of GLM's families with it, before the engine "
            "serves; only for a model with GLM's markers.",
            upstream="https://github.com/vllm-project/vllm/blob/v0.31.0/vllm/v1/structured_output/__init__.py",
            remove_when="vLLM makes the compiler when the engine starts, and can be given grammars to compile then.",
            replace=_with_a_prepared_compiler,
            expects=("self", "vllm_config"),
            obsolete=_backends_are_made_at_the_start,
            optional_outside=True,
        ),
        Patch(
            id=WARM[1],
            target="vllm.v1.structured_output.backend_xgrammar:XgrammarBackend.__post_init__",
            window=VLLM,
            why="The other half: which backend an engine has is decided by the first request, as in stock, and if it "
            "is xgrammar, the prepared compiler becomes its own.",
            upstream="https://github.com/vllm-project/vllm/blob/v0.31.0/vllm/v1/structured_output/__init__.py",
            remove_when="See compiler-made-at-the-start.",
            replace=_or_the_prepared_one,
            expects=("self",),
            obsolete=_backends_are_made_at_the_start,
            optional_outside=True,
        ),
        _answer(
            ANSWERS[0],
            "vllm.parser.abstract_parser:DelegatingParser.parse",
            "A tool parser gets a whole answer as text alone, so it cannot tell an answer that was cut off inside a "
            "call from one whose last marker is missing. The replacement tells it the tokens first.",
            _REASON_REMOVE,
            _told_the_tokens,
            ("self", "model_output", "request", "enable_auto_tools", "model_output_token_ids"),
        ),
        _answer(
            ANSWERS[1],
            "vllm.parser.abstract_parser:DelegatingParser.extract_reasoning",
            "Not streamed, vLLM's GLM reasoning parser takes every <think> and </think> for its own, also those inside "
            "of arguments, and cuts them out. The replacement divides an answer where streaming does: at the first "
            "</think> or <tool_call>.",
            "vLLM's reasoning parser leaves arguments alone in answers that are not streamed.",
            _up_to_the_first_marker,
            ("self", "model_output", "request"),
        ),
        _answer(
            ANSWERS[2],
            "vllm.parser.abstract_parser:DelegatingParser.parse_delta",
            "If the end of the reasoning and arguments come in one delta, vLLM's reasoning parser cuts <think> and "
            "</think> out of them; and of a tool parser's last delta vLLM keeps content, reasoning and calls only. "
            "The replacement hands over such a delta in two pieces, and adds the notes of glm47_safe to what goes out.",
            "vLLM's reasoning parser stops at the first marker, and tool parsers can add fields to the last delta.",
            _marker_by_marker,
            ("self", "delta_text", "delta_token_ids", "request", "prompt_token_ids", "finished"),
        ),
        _answer(
            ANSWERS[3],
            f"{_SERVING}:OpenAIServingChat._finalize_response_message",
            "Parsers return content and calls, and what else there is to say about an answer is lost. The "
            "replacement of this hook, which does nothing in stock, adds the notes of glm47_safe to the message.",
            "vLLM puts what a tool parser has to say about an answer into the message.",
            _with_notes,
            ("self", "message", "parser"),
        ),
        _answer(
            ANSWERS[4],
            f"{_SERVING}:ChatCompletionResponseChoice",
            "vLLM gives the reason tool_calls to answers with a call even if the last one was cut off, and stop if the "
            "engine stopped inside the only one. The replacement makes the same choice with the reason length.",
            _REASON_REMOVE,
            _with_cut_visible,
            None,
        ),
        _answer(
            ANSWERS[5],
            f"{_SERVING}:ChatCompletionResponseStreamChoice",
            "The same for streamed answers.",
            _REASON_REMOVE,
            _with_cut_visible,
            None,
        ),
        CHAT_ENGINE,
    ),
)
