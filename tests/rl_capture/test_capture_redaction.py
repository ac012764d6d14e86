"""Redaction: published forms of secrets, the tokens that a match touches, and files of expressions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from byte_tokenizer import ByteTokenizer

from rl_capture import redaction
from rl_capture.record import MASKED
from rl_capture.redaction import SECRETS, Expression, expressions, masked_places, masked_text
from rl_capture.token_bytes import TokenBytes

KNOWN = TokenBytes(ByteTokenizer())

#: Made up, each in the form that its issuer publishes.
EXAMPLES = {
    "private key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\nabc=\n-----END RSA PRIVATE KEY-----",
    "AWS key id": "AKIA" + "IOSFODNN7EXAMPLE",
    "GitHub token": "ghp_" + "0aA1" * 9,
    "GitLab token": "glpat-" + "x1Y2z3" * 4,
    "Slack token": "xoxb-" + "123456789012-abcdef",
    "sk- key": "sk-" + "proj-Ab12" * 5,
    "Google key": "AIza" + "SyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q",
    "Hugging Face token": "hf_" + "AbCdEfGh" * 4,
    "JSON web token": "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3",
    "bearer": "Bearer " + "abcdef0123456789==",
    "password in an address": "://user:hunter2@",
    "assigned secret": 'password = "correct horse battery"',
}


def _ids(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize("kind", SECRETS)
def test_a_known_form_is_masked_whole_and_nothing_around_it(kind: str) -> None:
    before, after = "naïve text, ", "\nand 値 more"
    text = before + EXAMPLES[kind] + after
    ids = _ids(text)

    places = masked_places(ids, KNOWN, expressions("secrets"))
    start = len(before.encode())
    assert places == set(range(start, start + len(EXAMPLES[kind].encode())))


@pytest.mark.parametrize(
    "text",
    [
        "def f(password: str) -> None: ...",
        "risk-free, task-oriented: ask-",
        "sk-learn and scikit-learn",
        "https://example.org/a:b@c",
        "git commit 9f28095aa0c94ea3d8d9c4f4c0f9a2f9c5e9b1aa",
        "the secret of the tokenizer",
        "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
    ],
)
def test_ordinary_text_of_agents_is_left_alone(text: str) -> None:
    assert masked_places(_ids(text), KNOWN, expressions("secrets")) == set()


def test_a_key_whose_end_is_cut_off_is_masked_to_the_end() -> None:
    text = "x -----BEGIN PRIVATE KEY-----\nMIIEow"

    assert masked_places(_ids(text), KNOWN, expressions("secrets")) == set(range(2, len(text)))


def test_every_token_that_a_match_touches_is_masked() -> None:
    """The token of three bytes is touched in its middle, and goes whole."""
    ids = [*_ids("x"), 300, *_ids("yz"), 301]
    assert KNOWN.join(ids) == b"xabcyz<|user|>"
    assert KNOWN.ends(ids) == [1, 4, 5, 6, 14]

    assert masked_places(ids, KNOWN, [Expression(re.compile(b"b"))]) == {1}
    assert masked_places(ids, KNOWN, [Expression(re.compile(b"cy"))]) == {1, 2}
    assert masked_places(ids, KNOWN, [Expression(re.compile(b"x"))]) == {0}
    assert masked_places(ids, KNOWN, [Expression(re.compile(b"z<"))]) == {3, 4}


@pytest.mark.parametrize("kind", [*SECRETS])
def test_long_texts_are_searched_in_pieces_and_nothing_is_missed_between_them(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same secret at every distance from where a piece ends, with and without lines, against one whole search."""
    monkeypatch.setattr(redaction, "_PIECE", 40)
    (expression,) = [one for one, name in zip(expressions("secrets"), SECRETS, strict=True) if name == kind]
    for offset in range(0, 90, 3):
        for line in ("word " * 7 + "\n", "x" * 40):
            text = (line * 9)[:offset] + " " + EXAMPLES[kind] + "\n" + line * 3 + " " + EXAMPLES[kind] + " "
            whole = [match.span() for match in expression.pattern.finditer(text.encode())]

            assert [*expression.spans(text.encode())] == whole
            assert len(whole) == 2


def test_a_value_on_the_next_line_is_found_where_a_piece_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_PIECE", 8)
    text = b"a line\npassword =\n  hunter2hunter2\nmore\n"

    assert [text[slice(*span)] for one in expressions("secrets") for span in one.spans(text)] == [
        b"password =\n  hunter2hunter2"
    ]


def test_masked_text_says_once_where_tokens_are_missing() -> None:
    assert masked_text([*_ids("a値"), MASKED, MASKED, *_ids("b"), MASKED], KNOWN) == "a値[redacted]b[redacted]"


def test_nothing_is_masked_with_none() -> None:
    assert expressions("none") == []
    assert masked_places(_ids(EXAMPLES["sk- key"]), KNOWN, []) == set()


def test_a_files_expressions_come_beside_the_known_ones(tmp_path: Path) -> None:
    file = tmp_path / "patterns"
    file.write_text("# customers\n\nkunde-\\d+\nß+\n", encoding="utf-8")
    found = expressions(str(file))

    assert len(found) == len(SECRETS) + 2
    assert masked_places(_ids("an kunde-17 ßß"), KNOWN, found) == {*range(3, 11), *range(12, 16)}


@pytest.mark.parametrize(
    ("text", "said"),
    [("a(", "line 1: 'a\\(' is no regular expression"), ("ok\nx*", "line 2: 'x\\*' matches the empty")],
)
def test_an_expression_that_cannot_be_used_is_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "patterns"
    file.write_text(text)

    with pytest.raises(ValueError, match=said):
        expressions(str(file))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be read.*set secrets"):
        expressions(str(tmp_path / "none"))


def test_a_tokenizer_whose_tokens_are_no_bytes_is_refused() -> None:
    class Pieces(ByteTokenizer):
        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return list(text.replace(" ", "▁").encode())

    with pytest.raises(ValueError, match="byte-level tokenizer; without one set RL_CAPTURE_REDACT=none"):
        TokenBytes(Pieces())
