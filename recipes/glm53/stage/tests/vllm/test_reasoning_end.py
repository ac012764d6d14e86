import re
from types import SimpleNamespace

import pytest
from vllm.reasoning import ReasoningParserManager

MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|user|>", "<|assistant|>"]
UNITS = re.compile("|".join(map(re.escape, MARKS)) + "|.", re.DOTALL)


class Tokenizer:
    """A token a marker, and one a character."""

    def get_vocab(self):
        return {mark: 0x110000 + at for at, mark in enumerate(MARKS)}

    def encode(self, text, **unused):
        return [self.get_vocab().get(one) or ord(one) for one in UNITS.findall(text)]

    def decode(self, ids, **unused):
        return "".join(MARKS[one - 0x110000] if one >= 0x110000 else chr(one) for one in ids)


CALL = "<tool_call>run<arg_key>cmd</arg_key><arg_value>{}</arg_value></tool_call>"
WRITTEN = CALL.format("echo '<think>' 'a</think>b'")
ANSWERS = {
    "text": ("So.</think>Yes.", "So.", "Yes."),
    "markers in a call behind the reasoning": ("So.</think>" + WRITTEN, "So.", WRITTEN),
    "a call ends the reasoning": ("So." + WRITTEN, "So.", WRITTEN),
    "no reasoning at all": ("</think>" + WRITTEN, None, WRITTEN),
    "its own beginning": ("<think>So.</think>Yes.", "So.", "Yes."),
    "a second reasoning is text": ("So.</think>Yes.<think>no</think>", "So.", "Yes.<think>no</think>"),
    "only reasoning": ("So", "So", None),
}


def parser():
    return ReasoningParserManager.get_reasoning_parser("glm45")(Tokenizer())


@pytest.mark.parametrize("name", ANSWERS)
def test_a_whole_answer_is_divided_at_the_end_of_its_reasoning(name):
    text, reasoning, content = ANSWERS[name]
    assert parser().extract_reasoning(text, SimpleNamespace()) == (reasoning, content)


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("name", ANSWERS)
def test_a_stream_is_divided_there_too(name, size):
    text, reasoning, content = ANSWERS[name]
    units = UNITS.findall(text)
    made, tokenizer = parser(), Tokenizer()
    found, rest = "", ""
    for at in range(0, len(units), size):
        piece = "".join(units[at : at + size])
        if made.has_engine_confirmed_reasoning_end():
            rest += piece  # what serving does with it
            continue
        delta = made.extract_reasoning_streaming("", "", piece, [], [], tokenizer.encode(piece))
        deltas = [delta, made.finish_streaming()] if made.has_engine_confirmed_reasoning_end() else [delta]
        for one in filter(None, deltas):
            found += one.reasoning or ""
            rest += one.content or ""
    assert (found, rest) == (reasoning or "", content or "")


def test_an_answer_without_thinking_is_content():
    made = ReasoningParserManager.get_reasoning_parser("glm45")(
        Tokenizer(), chat_template_kwargs={"enable_thinking": False}
    )
    assert made.extract_reasoning(WRITTEN, SimpleNamespace()) == (None, WRITTEN)
