"""What a normalised schema says about its original: verdicts, messages, and the limits of the work.

A verdict is about the whole language: `exact` means that the grammar accepts the values the schema accepts,
`relaxed` that it accepts more, `impossible` that no value satisfies the schema, so that nothing is enforced.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LIMITS", "Limits", "Message", "Normalised", "Verdict", "pointer", "worst"]


class Verdict(enum.StrEnum):
    """How a keyword, or a whole schema, is enforced."""

    EXACT = "exact"
    RELAXED = "relaxed"
    IMPOSSIBLE = "impossible"


_RANK = {Verdict.EXACT: 0, Verdict.RELAXED: 1, Verdict.IMPOSSIBLE: 2}


def worst(verdicts: list[Verdict]) -> Verdict:
    """The least faithful of some verdicts; `exact` if there is none."""
    return max(verdicts, key=_RANK.__getitem__, default=Verdict.EXACT)


def pointer(path: tuple[str | int, ...]) -> str:
    """JSON pointer (RFC 6901) of a path, `#` first."""
    text = "#" + "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass(frozen=True, slots=True)
class Message:
    """One keyword at one place: what becomes of it, and why."""

    path: str
    keyword: str
    verdict: Verdict
    text: str

    def __str__(self) -> str:
        return f"{self.path} {self.keyword}: {self.verdict}: {self.text}"


@dataclass(frozen=True, slots=True)
class Normalised:
    """A schema that xgrammar enforces as it is written.

    `schema` holds only forms that tests/dynamo_structural_tags/test_xgrammar_facts_stock.py proves. Object keys come
    in its order. `verdict` is the worst of `messages`, which name every keyword that is enforced in another way or
    not at all, at its place in the original.
    """

    schema: dict[str, Any]
    verdict: Verdict
    messages: tuple[Message, ...] = field(default=())

    def about(self, *path: str | int) -> tuple[Message, ...]:
        """The messages at or below a path of the original schema."""
        start = pointer(path)
        return tuple(m for m in self.messages if m.path == start or m.path.startswith(start + "/"))


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the work per schema; what exceeds one is relaxed, with a message, never refused."""

    depth: int = 32  # nested schemas; xgrammar's time grows with the square of the depth
    nodes: int = 4000  # schemas read, all references together
    properties: int = 256  # of one object
    literals: int = 2000  # values of one enum
    branches: int = 64  # alternatives of one union
    pattern_length: int = 2000  # characters of one pattern
    pattern_size: int = 4000  # characters of a pattern after its counted repeats are written out
    minimum_count: int = 256  # smallest length or size enforced: the matcher's time per character grows with it
    maximum_count: int = 65536  # largest length or size enforced
    key_pattern_bytes: int = 200_000  # of patterns that keep other keys apart from declared ones
    messages: int = 500  # messages kept


LIMITS = Limits()
