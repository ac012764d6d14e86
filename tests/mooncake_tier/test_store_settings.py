"""What may be set of the store connector, and what is refused with the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mooncake_tier.client.connection import StoreAddress
from mooncake_tier.errors import SettingRefused
from mooncake_tier.identity.deployment import Identity
from mooncake_tier.options import Options
from mooncake_tier.store.settings import StoreSettings, store_settings

MASTER = {"master": "10.0.0.1:50051"}


def _read(**given: Any) -> StoreSettings:
    return store_settings({"mooncake_tier": MASTER | given, "another": 1})


def test_only_the_master_is_needed() -> None:
    assert _read() == StoreSettings(
        address=StoreAddress(master="10.0.0.1:50051"), identity=Identity(), options=Options()
    )


def test_every_part_takes_its_own_settings() -> None:
    found = _read(
        host="10.0.0.2",
        revision="0a1b",
        load_s=3.5,
        lease_s=30.0,
        metrics="10.0.0.1:9003",
        medium="EXTERNAL",
        report_dir="reports",
        save_decode=False,
        pinned_share=0.5,
    )

    assert found.address.host == "10.0.0.2"
    assert found.identity.revision == "0a1b"
    assert (found.options.load_s, found.options.lease_s) == (3.5, 30.0)
    assert (found.metrics_address, found.medium) == (("10.0.0.1", 9003), "EXTERNAL")
    assert (found.report_dir, found.save_decode, found.pinned_share) == (Path("reports"), False, 0.5)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"lookup": 1}, r"\['lookup'\]: it knows no such setting"),
        ({"checksum": "none"}, r"\['checksum'\]: it knows no such setting"),
        ({"events": "no"}, "events='no': it has another type"),
        ({"save_decode": 1}, "save_decode=1: it has another type"),
        ({"metrics": "10.0.0.1"}, "metrics='10.0.0.1': the port is missing"),
        ({"medium": "cpu"}, "medium='cpu': the router knows no such place; allowed: CPU or EXTERNAL"),
        ({"poll_s": 0}, "poll_s=0: it is out of range"),
        ({"pinned_share": 1.5}, "pinned_share=1.5: it is out of range"),
        ({"host": "0.0.0.0"}, "host='0.0.0.0': it stands for every interface"),
        ({"load_s": -1}, "load_s=-1"),
        ({"revision": 3}, "revision=3"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises((SettingRefused, ValueError), match=why):
        _read(**given)


@pytest.mark.parametrize("given", [{}, {"mooncake_tier": {}}, {"mooncake_tier": "10.0.0.1:50051"}])
def test_a_store_without_an_address_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(SettingRefused, match="the store's address is missing"):
        store_settings(given)
