"""Masks secrets: where an expression matches the text of the ids, the tokens it touches lose id, text and probability.

Not storing text hides nothing by itself, because ids are text to whoever has the tokenizer. So known forms of secrets
are masked in the ids, too, and that is the default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rl_capture.record import MASKED
from rl_capture.token_bytes import TokenBytes

__all__ = ["REDACTED", "SECRETS", "Expression", "expressions", "masked_places", "masked_text"]

REDACTED = b"[redacted]"

#: Bytes that are searched at once. `re` lets no other thread run meanwhile, and half a megabyte takes it 20 ms.
_PIECE = 1 << 16
#: Bytes of the next lines that are searched as well, for the forms that may go over the end of a line.
_BEYOND = 512

#: Known forms of secrets, by what they are: texts of which one is in every match, and the expression. All but the first
#: are told by one line and the beginning of the next.
SECRETS: dict[str, tuple[tuple[str, ...], str]] = {
    "private key": (
        ("PRIVATE KEY",),
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----(?:(?!-----END)[\s\S])*(?:-----END [A-Z0-9 ]*PRIVATE KEY-----)?",
    ),
    "AWS key id": (("AKIA", "ASIA"), r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "GitHub token": (
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,})",
    ),
    "GitLab token": (("glpat-",), r"\bglpat-[A-Za-z0-9_-]{20,}"),
    "Slack token": (("xox",), r"\bxox[abeprs]-[A-Za-z0-9-]{10,}"),
    "sk- key": (("sk-",), r"\bsk-[A-Za-z0-9_-]{20,}"),
    "Google key": (("AIza",), r"\bAIza[0-9A-Za-z_-]{35}"),
    "Hugging Face token": (("hf_",), r"\bhf_[A-Za-z0-9]{30,}"),
    "JSON web token": (("eyJ",), r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"),
    "bearer": (("earer",), r"\b[Bb]earer\s+[A-Za-z0-9._~+/-]{16,}=*"),
    "password in an address": (("://",), r"://[^/\s:@]{1,64}:[^/\s:@]{1,128}@"),
    "assigned secret": (
        ("=", ":"),
        r"(?i:\b(?:password|passwd|secret|api[_-]?key|access[_-]?token|auth[_-]?token))[\"']?\s{0,4}[:=]\s{0,4}"
        r"(?:\"[^\"\n]{4,}\"|'[^'\n]{4,}'|[^\s\"',;]{8,})",
    ),
}


@dataclass(frozen=True)
class Expression:
    """What is masked. pattern: matched against UTF-8. one_line: told by one line and `_BEYOND` bytes of the next.

    hints: of which one is in every match, and which are looked for first, because that is a hundred times as fast.
    """

    pattern: re.Pattern[bytes]
    one_line: bool = False
    hints: tuple[bytes, ...] = ()

    def spans(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Begin and end of every match."""
        if self.hints and not any(hint in text for hint in self.hints):
            return
        if not self.one_line:
            yield from (match.span() for match in self.pattern.finditer(text))
            return
        start = 0
        while start < len(text):
            stop = text.find(b"\n", start + _PIECE) + 1 or len(text)
            limit = min(stop + _BEYOND, len(text))
            while start < stop and (match := self.pattern.search(text, start, limit)) and match.start() < stop:
                if match.end() == limit < len(text):
                    match = self.pattern.match(text, match.start()) or match
                yield match.span()
                start = match.end()
            start = max(start, stop)


def expressions(redact: str) -> list[Expression]:
    """The expressions of a setting: "none", "secrets", or those and a file's, one a line, ``#`` for comments.

    Raises ValueError for a file that cannot be read, and an expression that is none or matches nothing at all.
    """
    if redact == "none":
        return []
    known = [
        Expression(re.compile(text.encode()), kind != "private key", tuple(hint.encode() for hint in hints))
        for kind, (hints, text) in SECRETS.items()
    ]
    return known if redact == "secrets" else known + _read(Path(redact))


def masked_places(ids: list[int], known: TokenBytes, found: list[Expression]) -> set[int]:
    """Numbers of the ids that have a byte of a match."""
    if not found:
        return set()
    text, places = known.join(ids), set[int]()
    ends: list[int] | None = None
    for expression in found:
        for start, stop in expression.spans(text):
            ends = known.ends(ids) if ends is None else ends
            places.update(known.touched(ends, start, stop))
    return {place for place in places if place < len(ids)}


def masked_text(ids: list[int], known: TokenBytes) -> str:
    """The text of ids of which some are `MASKED`; a run of them is `REDACTED`."""
    pieces: list[bytes] = []
    start = 0
    while start < len(ids):
        stop = start
        masked = ids[start] == MASKED
        while stop < len(ids) and (ids[stop] == MASKED) == masked:
            stop += 1
        pieces.append(REDACTED if masked else known.join(ids[start:stop]))
        start = stop
    return b"".join(pieces).decode("utf-8", "replace")


def _read(path: Path) -> list[Expression]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"RL_CAPTURE_REDACT={str(path)!r} cannot be read: {error}. Name a file in UTF-8 with one regular "
            "expression a line, or set secrets."
        ) from error
    found = []
    for number, text in enumerate(lines, 1):
        if not text.strip() or text.startswith("#"):
            continue
        try:
            expression = re.compile(text.encode())
        except re.error as error:
            raise ValueError(
                f"RL_CAPTURE_REDACT={str(path)!r}, line {number}: {text!r} is no regular expression: {error}. "
                "Python's syntax is read, matched against UTF-8. Correct the line."
            ) from error
        if expression.match(b""):
            raise ValueError(
                f"RL_CAPTURE_REDACT={str(path)!r}, line {number}: {text!r} matches the empty text, so it masks nothing "
                "or everything. Make it need at least one character."
            )
        found.append(Expression(expression))
    return found
