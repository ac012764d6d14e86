"""A sentence to be found again in a long text: the prompt, and where in it the sentence stands."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

__all__ = ["Needle", "make_needle"]

_PLACES = ("harbour", "mill", "orchard", "quarry", "library", "foundry", "lighthouse", "market")
_PEOPLE = ("keeper", "clerk", "mason", "baker", "pilot", "gardener", "smith", "printer")
_DEEDS = ("counts", "sorts", "repairs", "paints", "measures", "records", "moves", "inspects")
_THINGS = ("ladders", "barrels", "letters", "lanterns", "ropes", "tiles", "ledgers", "crates")


@dataclass(frozen=True)
class Needle:
    """prompt: tokens. answer: the digits asked for. depth: where the sentence is, 0 for the beginning, 1 for the end.

    positions: places of the sentence's tokens in the prompt.
    """

    prompt: list[int]
    answer: str
    depth: float
    positions: list[int]


def make_needle(tokenizer: Any, tokens: int, depth: float, seed: int) -> Needle:
    """A prompt of at least ``tokens`` tokens, in the chat form of ``tokenizer`` if it has one."""
    rng = random.Random(f"{seed} {depth}")
    answer = f"{rng.randrange(10**6, 10**7)}"
    sentence = f" The number of the grey door is {answer}."
    hay = _hay(tokenizer, tokens, rng)
    hay.insert(round(depth * len(hay)), sentence)
    question = " What is the number of the grey door? Answer with the number alone."
    text = "".join(hay).strip() + "\n\n" + question.strip()
    if tokenizer.chat_template:
        message = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    encoded = tokenizer(text, add_special_tokens=not tokenizer.chat_template, return_offsets_mapping=True)
    first = text.index(sentence.strip())
    last = first + len(sentence.strip())
    positions = [place for place, (begin, end) in enumerate(encoded["offset_mapping"]) if begin < last and end > first]
    return Needle(encoded["input_ids"], answer, depth, positions)


def _hay(tokenizer: Any, tokens: int, rng: random.Random) -> list[str]:
    """Sentences of at least ``tokens`` tokens together."""
    sentences: list[str] = []
    count = 0
    while count < tokens:
        place, person, deed, thing = (rng.choice(words) for words in (_PLACES, _PEOPLE, _DEEDS, _THINGS))
        sentences.append(f" At the {place} the {person} {deed} {rng.randrange(2, 100)} {thing}.")
        count += len(tokenizer(sentences[-1], add_special_tokens=False)["input_ids"])
    return sentences
