"""Every observed defect has a test that carries its number: D of parsers, G of grammars."""

from __future__ import annotations

import re
from pathlib import Path

_NUMBER = re.compile(r"_([dg][0-9]+)(?=_)")


def test_d1_to_d25_and_g1_to_g8_are_in_the_names_of_tests() -> None:
    found: set[str] = set()
    for file in Path(__file__).parent.glob("test_*.py"):
        if file != Path(__file__):
            for name in re.findall(r"^def (test_\w+)", file.read_text("utf-8"), re.MULTILINE):
                found.update(_NUMBER.findall(name))

    wanted = {f"d{number}" for number in range(1, 26)} | {f"g{number}" for number in range(1, 9)}
    assert wanted <= found, sorted(wanted - found)
