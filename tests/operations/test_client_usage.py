"""`glm53 chat` and `glm53 models`: what cannot be sent is wrong usage, said before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from glm53.cli import app

runner = CliRunner()
NOWHERE = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize("command", [["models"], ["chat", "tiny", "hi"]])
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("OPENAI_API_KEY", "k\u00e9y", "OPENAI_API_KEY has a character"),
        ("OPENAI_API_KEY", "key\n", "OPENAI_API_KEY has a character"),
        ("SSL_CERT_FILE", "none.pem", "SSL_CERT_FILE="),
    ],
)
def test_a_key_or_certificate_that_cannot_be_used_is_named(
    command: list[str], variable: str, value: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / value) if variable == "SSL_CERT_FILE" else value)
    result = runner.invoke(app, [*command, "--url", NOWHERE])

    assert result.exit_code == 2, result.output
    assert said in " ".join(result.stderr.split())


def test_a_message_that_is_not_utf8_is_refused() -> None:
    piped = runner.invoke(app, ["chat", "tiny", "--url", NOWHERE], input=b"caf\xe9")
    typed = runner.invoke(app, ["chat", "tiny", "caf\udce9", "--url", NOWHERE])

    assert [piped.exit_code, typed.exit_code] == [2, 2], piped.output + typed.output
    assert "not UTF-8" in piped.stderr
    assert "not UTF-8" in typed.stderr


def test_tools_that_are_nested_too_deeply_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text("[" * 100_000)
    result = runner.invoke(app, ["chat", "tiny", "hi", "--url", NOWHERE, "--tools", str(tmp_path / "tools.json")])

    assert result.exit_code == 2, result.output
    assert "cannot be read as JSON" in " ".join(result.stderr.split())
