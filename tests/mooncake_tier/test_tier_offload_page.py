"""The documentation's page of the secondary tier against the code."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from tier_engine import transfer_config

from mooncake_tier.identity.deployment import Identity
from mooncake_tier.keys import NamespaceFields
from mooncake_tier.offloading.figures import TIER_FIGURES
from mooncake_tier.offloading.settings import OffloadSettings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "mooncake_tier.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## In vLLM: a secondary tier")[2].partition("\n## ")[0]


def test_the_configuration_of_the_page_is_one_that_is_read() -> None:
    [text] = re.findall(r"--kv-transfer-config '(\{.*?\})'\n```", SECTION, re.DOTALL)
    config = json.loads(text)
    extra = config["kv_connector_extra_config"]

    assert OffloadSettings.of(extra).options.lease_s == 30
    tested = transfer_config({"master": "127.0.0.1:1"})
    assert {name: config[name] for name in config if name != "kv_connector_extra_config"} == {
        name: tested[name] for name in tested if name != "kv_connector_extra_config"
    }
    assert extra["secondary_tiers"] == tested["kv_connector_extra_config"]["secondary_tiers"]


def test_every_setting_has_its_row() -> None:
    rows = {
        name for row in re.findall(r"^\| (`[^|]+`) \|", SECTION, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    own = {field.name for field in fields(OffloadSettings)} - {"address", "identity", "options"}

    assert own | {field.name for field in fields(Identity)} <= rows


def test_every_default_is_the_one_of_the_page() -> None:
    defaults: dict[str, Any] = {field.name: field.default for field in fields(OffloadSettings)}
    shown = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", SECTION, re.MULTILINE))

    told = {name: value for name, value in shown.items() if name in defaults}
    assert {name: told[name] for name in ("poll_s", "opening_s", "session_bytes", "session_idle_s")} == {
        name: f"{defaults[name]:g}" for name in ("poll_s", "opening_s", "session_bytes", "session_idle_s")
    }
    assert told["loading_bytes"] == f"{defaults['loading_bytes'] >> 20} MiB"
    assert told["least_rate"] == f"{defaults['least_rate'] >> 20} MiB/s"
    assert told["write"] == f"`{defaults['write']}`"
    assert told["medium"] == f"`{defaults['medium']}`"


def test_every_figure_of_the_tier_is_named() -> None:
    for figure in TIER_FIGURES:
        name = figure.name.removeprefix("mooncake_tier_")
        assert f"`{name}`" in SECTION or f"`{figure.name}" in PAGE, name


def test_what_vllm_does_not_tell_is_a_field_of_the_namespace() -> None:
    assert {field.name for field in fields(Identity)} < {field.name for field in fields(NamespaceFields)}
