"""vLLM's processes know the connectors by name, as a MultiConnector's log needs them."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test")

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

from mooncake_tier.vllm_plugin import CONNECTORS, register
from stockpatch.versions import UnsupportedVersion, Window


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name: load for name, load in KVConnectorFactory._registry.items() if name not in CONNECTORS}
    monkeypatch.setattr(KVConnectorFactory, "_registry", known)


def test_vllm_finds_the_entry_point() -> None:
    found = {one.name: one.value for one in entry_points(group="vllm.general_plugins")}
    assert found["mooncake_tier"] == "mooncake_tier.vllm_plugin:register"


@pytest.mark.parametrize("name", CONNECTORS)
def test_statistics_of_a_child_are_read_where_it_was_not_made(name: str) -> None:
    with pytest.raises(ValueError, match="is not registered"):
        MultiConnector.build_kv_connector_stats({name: {}})
    register()
    register()
    child = getattr(import_module(CONNECTORS[name]), name)
    assert KVConnectorFactory.get_connector_class_by_name(name) is child
    MultiConnector.build_kv_connector_stats({name: {}})


def test_on_a_release_that_was_not_tested_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(window: Window) -> None:
        raise UnsupportedVersion("vllm 0.99 is not supported")

    monkeypatch.setattr(Window, "require", refuse)
    register()
    assert not set(CONNECTORS) & set(KVConnectorFactory._registry)
