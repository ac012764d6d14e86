"""A stock package to patch: a real module on disk with real installed metadata, so nothing is faked away."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stockpatch import register, versions

Install = Callable[..., None]

STOCK = """
LIMIT = 64

def plan(blocks, size):
    return blocks * size

class Base:
    def inherited(self, rows):
        return rows

    @staticmethod
    def fixed(value):
        return value

    @classmethod
    def made(cls, value):
        return cls, value

    @property
    def name(self):
        return "stock"

class Backend(Base):
    def run(self, query):
        return query

class Sibling(Base):
    pass
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """``install("name", "1.0")`` puts a distribution's metadata on the path, as pip would."""
    counter = itertools.count()

    def add(name: str, version: str | None) -> None:
        site = tmp_path / f"site{next(counter)}"
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        line = "" if version is None else f"Version: {version}\n"
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n{line}")
        monkeypatch.syspath_prepend(str(site))

    return add


@pytest.fixture
def stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Install) -> Iterator[Callable[[str], None]]:
    """Release 1.2.0 of ``stocklib``, importable; call it with other source to get a changed module."""
    folder = tmp_path / "stock"
    folder.mkdir()

    def write(source: str) -> None:
        sys.modules.pop("stocklib", None)
        (folder / "stocklib.py").write_text(source)

    write(STOCK)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    install("stocklib", "1.2.0")
    yield write
    sys.modules.pop("stocklib", None)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv(versions.OVERRIDE, raising=False)
    monkeypatch.setattr(versions, "_warned", set())
    monkeypatch.setattr(register, "_registers", {})
    caplog.set_level(logging.INFO, logger="stockpatch")
