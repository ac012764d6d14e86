"""Where the grammar of a request begins in vLLM: at the first token, with the reasoning in the tag.

By itself vLLM starts a grammar behind the reasoning, at ``</think>`` or at the first ``<tool_call>``, so a call that
the model begins inside of the reasoning is outside of the grammar (in vLLM 0.31 all of it, later only where the marker
is not one token). A prompt tells whether its output begins in the reasoning, and the tag says then what that may
hold: any text but ``<tool_call>``, up to ``</think>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from dynamo_structural_tags.ebnf.turn import Begin, begin_with, begins_with
from dynamo_structural_tags.glm_format import THINK, THINK_END

__all__ = ["begin_of", "own_the_reasoning"]

#: What the last marker of a prompt says about the output. Any other special token ends a turn: what is in front of
#: it is somebody else's text.
_MARKERS = {THINK: Begin.THOUGHT, THINK_END: Begin.ANSWER, "<|assistant|>": Begin.TURN}
_known: WeakKeyDictionary[Any, dict[int, Begin]] = WeakKeyDictionary()


def begin_of(prompt: Sequence[int] | None, tokenizer: Any) -> Begin:
    """What the output begins with; `Begin.ANSWER` also if the last turn of the prompt has none of the markers.

    prompt: token ids. tokenizer: vLLM's, None if it has none. Linear in the text behind the last marker.
    """
    if prompt is None or tokenizer is None:
        return Begin.ANSWER
    markers = _known.get(tokenizer)
    if markers is None:
        vocabulary = tokenizer.get_vocab()
        markers = dict.fromkeys(tokenizer.all_special_ids, Begin.ANSWER)
        markers |= {vocabulary[text]: begin for text, begin in _MARKERS.items() if text in vocabulary}
        _known[tokenizer] = markers
    return next((markers[token] for token in reversed(prompt) if token in markers), Begin.ANSWER)


def own_the_reasoning(request: Any, tokenizer: Any) -> None:
    """Let a tag of this plugin begin with the reasoning if the output does, and the engine not wait for its end.

    request: vLLM's ``EngineCoreRequest``; any other constraint stays as it is.
    """
    constraint: Any = getattr(request.sampling_params, "structured_outputs", None)
    tag = getattr(constraint, "structural_tag", None)
    if not isinstance(tag, str) or (written := begins_with(tag)) is None:
        return
    begin = begin_of(request.prompt_token_ids, tokenizer)
    if begin is Begin.ANSWER:
        return
    if written in (Begin.ANSWER, Begin.ANYWHERE):  # choices of one request share it: the first changes it for all
        constraint.structural_tag = begin_with(tag, begin)
    request.reasoning_ended = True
