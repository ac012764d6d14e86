"""vLLM: GLM's reasoning ends once, and what follows it is left as it is."""

from __future__ import annotations

from glm53.stage.edits import Body, Import, Insert
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Said, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["REASONING_END"]

_FILE = "parser/glm47_moe.py"
_CLASS = "Glm47MoeParser"


def _solved(tree: Tree) -> str | None:
    """A parser of its own that does not hand whole answers to the engine, which takes every marker for its own."""
    source = tree.source(_FILE)
    if source.calls(f"{_CLASS}.extract_reasoning", "super().extract_reasoning"):
        return None
    return f"{source.file}: {_CLASS}.extract_reasoning"


REASONING_END = Topic(
    id="reasoning-end",
    project=PROJECTS["vllm"],
    title="[Reasoning Parser] GLM: end the reasoning at its first marker, and leave what follows alone",
    releases=">=0.31,<0.34",
    how="Where the tool calls are left to a tool parser, Glm47MoeParser divides a whole answer where a stream is "
    "divided: at the first </think> or <tool_call>. In a stream it reads no more of a delta than the end of the "
    "reasoning, and hands the rest on as it is.",
    risks="Behind the first end of the reasoning a second <think> is text, in whole answers as in streams. An answer "
    "whose prompt has ended the reasoning is parsed as before.",
    near=_FILE,
    solved=_solved,
    edits=(
        Import(file=_FILE, code="from vllm.entrypoints.generate.base.protocol import DeltaMessage"),
        Insert(
            file=_FILE,
            anchor=_CLASS,
            where="before",
            code="""\
            _REASONING_END = re.compile(f"{re.escape(THINK_END)}|{re.escape(TOOL_CALL_START)}")
            """,
            blank=2,
        ),
        Body(
            file=_FILE,
            scope=f"{_CLASS}.extract_reasoning",
            code="""\
            if not self.thinking_enabled:
                return None, model_output
            self._reset()
            if self._reasoning_ended:  # in the prompt
                return ParserEngine.extract_reasoning(self, model_output, request)
            found = _REASONING_END.search(model_output)
            end = found.start() if found else len(model_output)
            self._reasoning_ended = found is not None
            reasoning = model_output[:end].replace(THINK_START, "")
            if self._strip_trailing_reasoning_ws:
                reasoning = reasoning.rstrip()
            return reasoning or None, model_output[end:].removeprefix(THINK_END) or None
            """,
        ),
        Insert(
            file=_FILE,
            anchor=f"{_CLASS}.extract_reasoning",
            where="after",
            code="""\
            def extract_reasoning_streaming(
                self,
                previous_text: str,
                current_text: str,
                delta_text: str,
                previous_token_ids,
                current_token_ids,
                delta_token_ids,
            ) -> DeltaMessage | None:
                found = None
                if self.thinking_enabled and not self._reasoning_ended:
                    found = _REASONING_END.search(delta_text)
                marker = self.vocab.get(found.group()) if found else None
                end, ids = len(delta_text), list(delta_token_ids)
                if found and marker in ids:
                    end, ids = found.end(), ids[: ids.index(marker) + 1]
                delta = super().extract_reasoning_streaming(
                    previous_text,
                    current_text,
                    delta_text[:end],
                    previous_token_ids,
                    current_token_ids,
                    ids,
                )
                # Calls follow: their arguments may have these markers, too.
                if rest := delta_text[end:]:
                    delta = delta or DeltaMessage()
                    delta.content = (delta.content or "") + rest
                return delta
            """,
            blank=1,
        ),
    ),
    tests=(Place("recipes/glm53/stage/tests/vllm/test_reasoning_end.py", "tests/reasoning/test_glm_reasoning_end.py"),),
    evidence=(
        Evidence(
            "outputs with </think> and <think> in arguments, whole and in deltas of every size: markers are cut out of "
            "the arguments, or what follows them is taken for reasoning",
            "pytest tests/dynamo_structural_tags/test_vllm_parser_stock.py",
        ),
    ),
    records=(
        "dynamo_structural_tags:reasoning-up-to-the-first-marker",
        "dynamo_structural_tags:deltas-end-with-the-reasoning",
    ),
    said=Said(
        "vLLM's GLM reasoning parser takes every <think> and </think> of an answer that is not streamed for its own, "
        "also those inside of arguments, and cuts them out; in a stream it does so in the delta in which the reasoning "
        "ends. What a tool gets then is not what the model wrote.",
        "https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/parser/glm47_moe.py",
        "vLLM's reasoning parser stops at the first marker, whole and streamed.",
    ),
)
