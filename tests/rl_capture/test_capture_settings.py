"""Settings of capture: off by default, read strictly, and each refusal with what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_capture.settings import VARIABLES, Settings, byte_count

ON = {"RL_CAPTURE": "on", "RL_CAPTURE_DIR": "/records"}
PAGE = (Path(__file__).parents[2] / "docs" / "rl_capture.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("environment", [{}, {"RL_CAPTURE": ""}, {"RL_CAPTURE": "off"}, {"OTHER": "x"}])
def test_nothing_is_recorded_by_default(environment: dict[str, str]) -> None:
    assert Settings.read(environment) is None


def test_the_defaults_store_no_text_and_mask_secrets() -> None:
    settings = Settings.read(ON)

    assert settings == Settings(Path("/records"))
    assert settings is not None
    assert (settings.text, settings.redact, settings.drop_oldest) == (False, "secrets", False)


def test_every_setting_is_read() -> None:
    settings = Settings.read(
        ON
        | {
            "RL_CAPTURE_SAMPLE": "0.25",
            "RL_CAPTURE_REDACT": "/patterns",
            "RL_CAPTURE_TEXT": "on",
            "RL_CAPTURE_PROMPT_TOKENS": "0",
            "RL_CAPTURE_OUTCOMES": "off",
            "RL_CAPTURE_WEIGHTS": "step-0",
            "RL_CAPTURE_FILE_BYTES": "1MiB",
            "RL_CAPTURE_TOTAL_BYTES": "4000000",
            "RL_CAPTURE_FULL": "drop-oldest",
            "RL_CAPTURE_QUEUE_TOKENS": "9",
        }
    )

    assert settings == Settings(
        Path("/records"), 0.25, "/patterns", True, 0, False, "step-0", 1 << 20, 4_000_000, True, 9
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"RL_CAPTURE": "yes"}, "Allowed: off, on"),
        ({"RL_CAPTURE_DIR": ""}, "needs RL_CAPTURE_DIR"),
        ({"RL_CAPTURE_DIR": "records"}, "an absolute path"),
        ({"RL_CAPTURE_SAMPLE": "0"}, "above 0, up to 1"),
        ({"RL_CAPTURE_SAMPLE": "1.5"}, "above 0, up to 1"),
        ({"RL_CAPTURE_SAMPLE": "nan"}, "above 0, up to 1"),
        ({"RL_CAPTURE_REDACT": "all"}, "secrets, none"),
        ({"RL_CAPTURE_TEXT": "maybe"}, "Allowed: off, on"),
        ({"RL_CAPTURE_PROMPT_TOKENS": "-1"}, "a whole number"),
        ({"RL_CAPTURE_OUTCOMES": "on"}, "auto, off"),
        ({"RL_CAPTURE_FILE_BYTES": "64 MB"}, "bytes, or 64MiB"),
        ({"RL_CAPTURE_FILE_BYTES": "0"}, "bytes, or 64MiB"),
        ({"RL_CAPTURE_TOTAL_BYTES": "64MiB"}, "at least twice"),
        ({"RL_CAPTURE_FULL": "wait"}, "stop, drop-oldest"),
        ({"RL_CAPTURE_QUEUE_TOKENS": "0"}, "above 0"),
        ({"RL_CAPTURE_FOLDER": "/x"}, "no setting"),
        ({"RL_CAPTURE": "off"}, "has no effect"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_can(changed: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match="RL_CAPTURE") as caught:
        Settings.read(ON | changed)

    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("512B", 512), ("2KiB", 2048), ("3 MiB", 3 << 20), ("1GiB", 1 << 30), ("1TiB", 1 << 40)],
)
def test_sizes_are_in_bytes_or_powers_of_1024(text: str, size: int) -> None:
    assert byte_count(text) == size


@pytest.mark.parametrize("name", VARIABLES)
def test_every_variable_has_its_row_in_the_page(name: str) -> None:
    about, values, default = VARIABLES[name]
    rows = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]

    assert rows == [f"| `{name}` | {default} | {about} | {values} |"]
