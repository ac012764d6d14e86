"""What an output begins with. It depends on how the prompt ends, which who builds a tag may not know yet.

So every grammar has a rule for each beginning, and its first line says which one counts: `begin_with` changes it in a
tag that is made already. xgrammar drops the rules that nothing refers to.
"""

from __future__ import annotations

import re
from enum import StrEnum

from .markers import free_text
from .rules import Rules, quote

__all__ = ["Begin", "begin_with", "begins_with", "turn"]


class Begin(StrEnum):
    """The beginnings, by the names of their rules."""

    ANSWER = "answer"
    """Behind the reasoning, or where there is none."""
    THOUGHT = "thought"
    """Inside of the reasoning: the prompt ends with its opening marker."""
    TURN = "turn"
    """In front of both: the model may open a reasoning by itself."""
    ANYWHERE = "anywhere"
    """In any of these places: whoever asks for the tag does not say, and looser is better than wrong."""


def turn(rules: Rules, answer: str, begin: Begin, think: tuple[str, str], trigger: str | None) -> str:
    """The whole grammar.

    answer: an expression for what follows the reasoning.
    think: the markers around the reasoning. Of all texts it excludes only the one that ends it, and `trigger`, which
    a reader would take for the beginning of a call.
    """
    opened, closed = think
    free = free_text(rules, [closed] if trigger is None else [trigger, closed])
    lines = [
        f"root ::= {begin}",
        f"{Begin.ANSWER} ::= {answer}",
        f"{Begin.THOUGHT} ::= {free} {quote(closed)} {Begin.ANSWER}",
        f'{Begin.TURN} ::= "\\n"? {quote(opened)} {Begin.THOUGHT} | {Begin.ANSWER}',
        f"{Begin.ANYWHERE} ::= {Begin.THOUGHT} | {Begin.TURN}",
    ]
    return rules.text(lines)


_ROOT = re.compile(r'("root ::= )(' + "|".join(Begin) + r")(\\n)")


def begins_with(tag: str) -> Begin | None:
    """What the outputs of a tag begin with, None if `turn` did not make it. tag: its JSON text."""
    found = _ROOT.search(tag)
    return None if found is None else Begin(found[2])


def begin_with(tag: str, begin: Begin) -> str:
    """The same tag for outputs that begin with something else."""
    return _ROOT.sub(rf"\g<1>{begin}\g<3>", tag, count=1)
