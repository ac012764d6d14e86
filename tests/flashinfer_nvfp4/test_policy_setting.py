"""The one setting of the row's writer, and the row format that obeys it; nothing here loads torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flashinfer_nvfp4.cpu_rows import Nvfp4Rows
from flashinfer_nvfp4.errors import RowsRefused
from flashinfer_nvfp4.policy import POLICIES, SETTING


@pytest.mark.parametrize(("value", "policy"), [(None, "search"), ("", "search"), *((name, name) for name in POLICIES)])
def test_rows_are_written_under_the_policy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, value: str | None, policy: str
) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    if value is not None:
        monkeypatch.setenv(SETTING, value)

    assert Nvfp4Rows().policy == policy


def test_another_value_is_refused_with_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "RTN")

    with pytest.raises(RowsRefused) as refused:
        Nvfp4Rows()
    assert str(refused.value) == (
        "FLASHINFER_NVFP4_POLICY='RTN': there is no such way to choose the scales of a row; allowed: rtn, "
        "four_over_six, search, and unset for search. Correct it in the environment of every worker."
    )


def test_the_format_is_what_the_cpu_plugin_asks_for_and_is_found_without_torch() -> None:
    code = (
        "import sys\n"
        "from vllm_cpu_dsa.rows import row_formats\n"
        "found = row_formats()['nvfp4_ds_mla']\n"
        "print(type(found).__qualname__, found.name, found.row_bytes, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["Nvfp4Rows", "nvfp4", "352", "False"]
