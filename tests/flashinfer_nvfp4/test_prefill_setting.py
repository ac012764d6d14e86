"""How much workspace an operator gives to prefill."""

from __future__ import annotations

import pytest

from flashinfer_nvfp4.errors import SettingRefused
from flashinfer_nvfp4.workspace import SETTING, chosen_workspace


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, 150_994_944), ("", 150_994_944), (" ", 150_994_944), ("0", 0), ("32", 33_554_432), (" 1024 ", 1 << 30)],
)
def test_the_setting_is_in_mib(monkeypatch: pytest.MonkeyPatch, value: str | None, expected: int) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    if value is not None:
        monkeypatch.setenv(SETTING, value)

    assert chosen_workspace() == expected


@pytest.mark.parametrize("value", ["-1", "144MiB", "1.5", "0x10", "1_000", "1048577", "\u0663", "none"])
def test_a_setting_that_is_no_amount_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(SETTING, value)
    with pytest.raises(SettingRefused, match=rf"{SETTING}=.*whole number of MiB.*unset for 144.*every worker"):
        chosen_workspace()
