"""``kv_connector_extra_config.blhnc``: what is accepted, and what a refusal says; and its page in the docs."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from refusal_table import says

from vllm_blhnc.settings import Settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "blhnc.md"


def test_rows_are_asked_for_unless_the_deployment_says_otherwise() -> None:
    assert Settings.read({}) == Settings.read({"blhnc": {}, "kv_lease_duration": 60}) == Settings()
    assert Settings().block_rows
    assert not Settings.read({"blhnc": {"layout": "stock"}}).block_rows


def test_every_setting_is_read() -> None:
    given = {
        "layout": "BLHNC",
        "transfer_log": "logs/t.jsonl",
        "progress_delay_us": 0,
        "row_alignment_tokens": 64,
        "block_allocation": "runs",
        "eviction_window": 1024,
    }

    assert dataclasses.asdict(Settings.read({"blhnc": given})) == given


@pytest.mark.parametrize(
    ("given", "seen", "allowed"),
    [
        ({"layout": "blhnc"}, "blhnc.layout='blhnc'", '"BLHNC" or "stock"'),
        ({"layout": None}, "blhnc.layout=None", '"BLHNC" or "stock"'),
        ({"transfer_log": ""}, "blhnc.transfer_log=''", "a file path"),
        ({"transfer_log": 3}, "blhnc.transfer_log=3", "a file path"),
        ({"progress_delay_us": -1}, "blhnc.progress_delay_us=-1", "a whole number from 0 to 1000000"),
        ({"progress_delay_us": 1_000_001}, "progress_delay_us=1000001", "a whole number from 0 to 1000000"),
        ({"progress_delay_us": 1.5}, "blhnc.progress_delay_us=1.5", "a whole number from 0 to 1000000"),
        ({"progress_delay_us": "1"}, "blhnc.progress_delay_us='1'", "a whole number from 0 to 1000000"),
        ({"progress_delay_us": True}, "blhnc.progress_delay_us=True", "a whole number from 0 to 1000000"),
        ({"row_alignment_tokens": 0}, "row_alignment_tokens=0", "a divisor of --block-size, such as 32 or 64"),
        ({"row_alignment_tokens": 64.0}, "row_alignment_tokens=64.0", "a divisor of --block-size"),
        ({"row_alignment_tokens": True}, "row_alignment_tokens=True", "a divisor of --block-size"),
        (
            {"row_alignment_tokens": 64, "layout": "stock"},
            "row_alignment_tokens=64",
            'left out with layout="stock", which has no rows',
        ),
        ({"block_allocation": "run"}, "block_allocation='run'", '"stock" or "runs"'),
        ({"block_allocation": None}, "block_allocation=None", '"stock" or "runs"'),
        ({"block_allocation": "runs", "eviction_window": -1}, "eviction_window=-1", "a whole number of blocks"),
        ({"block_allocation": "runs", "eviction_window": 0.05}, "eviction_window=0.05", "a whole number of blocks"),
        ({"block_allocation": "runs", "eviction_window": True}, "eviction_window=True", "a whole number of blocks"),
        ({"eviction_window": 512}, "eviction_window=512", 'left out unless block_allocation="runs" is set'),
        ("BLHNC", "kv_connector_extra_config.blhnc='BLHNC'", "an object"),
        (None, "kv_connector_extra_config.blhnc=None", "an object"),
    ],
)
def test_an_unusable_value_is_refused_with_what_is_allowed(given: Any, seen: str, allowed: str) -> None:
    with pytest.raises(ValueError, match="Correct it in --kv-transfer-config") as refused:
        Settings.read({"blhnc": given})

    says("start-value", str(refused.value))
    assert f"{seen} is not usable; it must be {allowed}" in str(refused.value)


def test_a_misspelt_setting_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match=re.escape("unknown keys ['Layout', 'log']")) as refused:
        Settings.read({"blhnc": {"log": "x", "Layout": "BLHNC"}})

    assert "Allowed are ['block_allocation', 'eviction_window', 'layout', 'progress_delay_us', " in str(refused.value)


def test_every_setting_has_its_row_in_the_docs() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\S+)", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)

    for field in dataclasses.fields(Settings):
        shown = "unset" if field.default is None else f"`{json.dumps(field.default)}`"
        assert (field.name, shown) in rows


@pytest.mark.parametrize("given", [{"layout": "stock"}, {"blnhc": {"layout": "stock"}}, {"BLHNC": {}}])
def test_settings_in_the_wrong_place_are_not_ignored(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match='this plugin\'s settings are under "blhnc"') as refused:
        Settings.read({"kv_lease_duration": 60} | given)

    assert repr(list(given)) in str(refused.value)
