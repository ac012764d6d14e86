"""Writes docs/patches.md from the registers of all plugins: ``python -m stockpatch.docs [--check]``.

Every folder with a ``patches.py`` under ``--plugins`` counts, so a new register cannot be forgotten.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterable
from pathlib import Path

from stockpatch.register import Patch, Register

__all__ = ["discover", "main", "render"]

_HEAD = """\
# Patches to stock packages

Each record replaces one attribute of a stock package in the running process, on the releases of its window
only; no file of the stock package is changed. A record whose target moved stops the start with an error.
This page is written by `python -m stockpatch.docs`; edit the records, not the page.
"""


def discover(plugins: Path) -> list[Register]:
    """The ``REGISTER`` of every ``<plugins>/<name>/patches.py``, sorted by name.

    Raises TypeError if a ``patches.py`` holds no register.
    """
    registers = []
    for path in sorted(plugins.glob("*/patches.py")):
        found = getattr(importlib.import_module(f"{path.parent.name}.patches"), "REGISTER", None)
        if not isinstance(found, Register):
            raise TypeError(f"{path}: REGISTER={found!r}; it must be a stockpatch.Register. Define REGISTER there.")
        registers.append(found)
    return registers


def render(registers: Iterable[Register]) -> str:
    """The page as Markdown text."""
    parts = [_HEAD]
    for register in registers:
        parts.append(f"## {register.plugin}\n")
        parts.extend(_record(patch) for patch in register.patches)
        if not register.patches:
            parts.append("No patches.\n")
    if len(parts) == 1:
        parts.append("No plugin patches stock code.\n")
    return "\n".join(parts)


def _record(patch: Patch) -> str:
    outside = "skipped" if patch.optional_outside else "refused"
    return "\n".join(
        [
            f"### `{patch.id}`\n",
            f"- Replaces: `{patch.target}`",
            f"- Releases: {patch.window.distributions[0]} `{patch.window.specifier}`; others are {outside}",
            f"- Why: {patch.why}",
            f"- Upstream: {patch.upstream}",
            f"- Remove when: {patch.remove_when}",
            "",
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or with ``--check`` only compare; 0 when it is up to date, 1 when it is not."""
    parser = argparse.ArgumentParser(prog="python -m stockpatch.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="do not write; exit 1 if the page is stale")
    parser.add_argument("--plugins", type=Path, default=Path("plugins"), help="folder of the plugins")
    parser.add_argument("--output", type=Path, default=Path("docs/patches.md"), help="the page")
    chosen = parser.parse_args(arguments)
    if not chosen.plugins.is_dir():
        parser.error(f"--plugins={chosen.plugins} is not a folder; run in the repository's root or name it")
    sys.path.insert(0, str(chosen.plugins.resolve()))
    text = render(discover(chosen.plugins))
    if chosen.check:
        if chosen.output.is_file() and chosen.output.read_text(encoding="utf-8") == text:
            return 0
        print(f"{chosen.output} is out of date: run python -m stockpatch.docs", file=sys.stderr)
        return 1
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
