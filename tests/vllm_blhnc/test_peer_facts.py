"""Facts that other packages add to the handshake, as they are told and compared."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from vllm_blhnc import peer_facts
from vllm_blhnc.peer_facts import GROUP, KEY, PeerFactError, differences, told

CONFIG = object()


class Tuned:
    setting = "TUNING"

    def value(self, vllm_config: object) -> str | None:
        assert vllm_config is CONFIG
        return "fast"


class Indifferent(Tuned):
    def value(self, vllm_config: object) -> str | None:
        return None


class Number(Tuned):
    def value(self, vllm_config: object) -> Any:
        return 7


class Raising(Tuned):
    def value(self, vllm_config: object) -> str | None:
        raise ValueError("TUNING='slow' is not known")


class Unbuilt(Tuned):
    def __init__(self, name: str) -> None: ...


class Mute:
    def value(self, vllm_config: object) -> str | None: ...


class Unset(Tuned):
    setting = None  # type: ignore[assignment]


Declare = Callable[..., None]


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Declare:
    """``declare(("tuning", "Tuned"))``: classes of this module as the installed facts."""

    def declared(*facts: tuple[str, str]) -> None:
        entries = [EntryPoint(name, value if ":" in value else f"{__name__}:{value}", GROUP) for name, value in facts]
        monkeypatch.setattr(peer_facts, "entry_points", lambda group: [e for e in entries if e.group == group])

    return declared


def test_facts_that_matter_are_told_with_their_setting(declare: Declare) -> None:
    declare(("tuning", "Tuned"), ("other", "Indifferent"))

    assert told(CONFIG) == {"tuning": {"value": "fast", "setting": "TUNING"}}


def test_without_a_package_there_is_nothing_to_tell(declare: Declare) -> None:
    declare()

    assert told(CONFIG) == {}


@pytest.mark.parametrize(
    ("value", "why", "allowed"),
    [
        ("nowhere:Fact", "it cannot be loaded (ModuleNotFoundError", "a class built without arguments"),
        ("Unbuilt", "it cannot be loaded (TypeError", "a class built without arguments"),
        ("Mute", "it lacks parts of vllm_blhnc.peer_facts.PeerFact", "setting (text), value"),
        ("Unset", "it lacks parts of vllm_blhnc.peer_facts.PeerFact", "setting (text), value"),
        ("Raising", "it cannot tell its value (TUNING='slow' is not known)", "a value, or None"),
        ("Number", "its value is 7", "text, or None"),
    ],
)
def test_a_fact_that_cannot_be_told_is_refused(declare: Declare, value: str, why: str, allowed: str) -> None:
    declare(("tuning", value))

    with pytest.raises(PeerFactError) as refused:
        told(CONFIG)
    text = str(refused.value)
    assert text.startswith("vllm_blhnc.peer_facts 'tuning' = ")
    assert why in text
    assert f"allowed: {allowed}" in text
    assert text.endswith("Correct what it names, or uninstall the package.")


def test_two_packages_with_one_name_are_refused(declare: Declare) -> None:
    declare(("tuning", "Tuned"), ("tuning", "Indifferent"))

    with pytest.raises(PeerFactError, match="another package declares a fact of this name"):
        told(CONFIG)


def _side(**values: str) -> dict[str, Any]:
    return {KEY: {name: {"value": value, "setting": f"--{name}"} for name, value in values.items()}}


@pytest.mark.parametrize(
    ("mine", "peer", "said"),
    [
        (_side(a="x"), _side(a="x"), []),
        ({}, {}, []),
        (_side(a="x", b="y"), _side(a="z", b="y"), ["a is 'x' here and 'z' at the peer: make --a equal"]),
        (_side(a="x"), _side(), ["a is 'x' here and None at the peer: make --a equal"]),
        ({}, _side(a="x"), ["a is None here and 'x' at the peer: make --a equal"]),
        (
            _side(b="1", a="1"),
            _side(a="2", b="2"),
            ["a is '1' here and '2' at the peer: make --a equal", "b is '1' here and '2' at the peer: make --b equal"],
        ),
    ],
)
def test_each_fact_that_differs_is_named_with_both_values(
    mine: dict[str, Any], peer: dict[str, Any], said: list[str]
) -> None:
    assert differences(mine, peer) == said
