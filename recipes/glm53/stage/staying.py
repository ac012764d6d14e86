"""Patches that are no topic: what upstream would have to have first, or why it could not take them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["STAYING", "Stays"]


@dataclass(frozen=True)
class Stays:
    """Patches of the register, as ``plugin:id``, and why there is no change of upstream in their place."""

    records: tuple[str, ...]
    reason: str


STAYING = (
    Stays(
        ("dynamo_structural_tags:tags-the-parser-reads-back",),
        "Tags and the parsers that read what they allow have to be changed together, for each format and each parser: "
        "in xgrammar, whose builders vLLM and Dynamo take, in vLLM's and in Dynamo's parsers. The patch swaps the "
        "tags of all of them at the one place that they pass, and each swap answers the faults of one parser. What "
        "upstream can take is the parser first, topic `glm-parser`; then xgrammar's builder for it "
        "(mlc-ai/xgrammar#833).",
    ),
    Stays(
        ("dynamo_structural_tags:tags-own-the-reasoning",),
        "It writes the reasoning into tags that this plugin has built, and needs them: to begin vLLM's own grammar in "
        "front of the marker that ended the reasoning is another change, in the scheduler's bookkeeping of reasoning "
        "(vllm-project/vllm#46149).",
    ),
    Stays(
        ("dynamo_structural_tags:notes-in-the-message",),
        "It adds a field to answers that only this plugin's parser fills. As a change of vLLM it would be a field of "
        "an API without a user there.",
    ),
    Stays(
        ("dynamo_structural_tags:cut-calls-in-streamed-choices",),
        "vLLM streams the reason length where the engine has it. What is left, here and in `cut-calls-in-choices`, are "
        "calls inside of which the engine stopped by itself or at a stop string. Only the parser knows, vLLM asks it "
        "for no finish reason, and the OpenAI API does not say that such an answer has the reason length.",
    ),
    Stays(
        (
            "rl_capture:capture-starts",
            "rl_capture:capture-requests",
            "rl_capture:capture-undecoded",
            "rl_capture:capture-weight-updates",
        ),
        "Together they are an interface that vLLM does not have: plugins that are handed finished requests with token "
        "ids and log-probabilities that the client did not ask for, and that hear of weight updates. It takes an "
        "agreement on what such a plugin may see and cost, before a change; none of the four is of use by itself.",
    ),
)
