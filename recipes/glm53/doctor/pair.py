"""Two hosts' reports compared: every disagreement by which KV could not move, or would be misread."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from glm53.doctor.finding import Diagnosis
from glm53.doctor.packages import BUNDLE, STACK
from glm53.doctor.report import KIND, SCHEMA
from glm53.doctor.variables import OTHERS, VARIABLES

__all__ = ["ReportError", "compare", "read"]

_SHAPE: dict[str, type | tuple[type, ...]] = {
    "host": dict,
    "versions": dict,
    "entry_points": list,
    "variables": dict,
    "recipe": (dict, type(None)),
}
#: Python and torch compute, but no byte of a row's format depends on their release.
_TOLERATED = {"torch"}


class ReportError(ValueError):
    """A file that is no report, or one of another schema."""


def read(path: Path) -> dict[str, Any]:
    """A report as ``glm53 doctor --json`` wrote it. Raises `ReportError`."""
    fix = "Write it on that host: glm53 doctor --json > FILE."
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(f"{path}: cannot be read ({error.strerror}). {fix}") from None
    except ValueError as error:
        raise ReportError(f"{path}: is no JSON ({error}). {fix}") from None
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise ReportError(f"{path}: is no report of glm53 doctor. {fix}")
    if data.get("schema") != SCHEMA:
        raise ReportError(
            f"{path}: has schema={data.get('schema')!r}, and this glm53 reads {SCHEMA}. Write both with one release."
        )
    for key, kind in _SHAPE.items():
        if not isinstance(data.get(key), kind):
            raise ReportError(f"{path}: {key} is missing or damaged. {fix}")
    recipe = data["recipe"]
    if recipe is not None and not isinstance(recipe.get("agreed"), dict):
        raise ReportError(f"{path}: recipe.agreed is missing or damaged. {fix}")
    return data


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Diagnosis]:
    """Every disagreement of two reports, with both values and the fix."""
    names = _name(a, "A"), _name(b, "B")
    if names[0] == names[1]:
        names = f"{names[0]} (A)", f"{names[1]} (B)"
    return [
        *_versions(a, b, names),
        *_entries(a, b, names),
        *_variables(a, b, names),
        *_recipes(a, b, names),
        *_machines(a, b, names),
    ]


def _name(report: Mapping[str, Any], otherwise: str) -> str:
    name = str(report["host"].get("name") or otherwise)
    return f"{name} ({report['recipe'].get('role')})" if report["recipe"] else name


def _versions(a: Mapping[str, Any], b: Mapping[str, Any], names: tuple[str, str]) -> Iterator[Diagnosis]:
    for package in sorted({*a["versions"], *b["versions"]} & set(STACK)):
        mine, theirs = a["versions"].get(package), b["versions"].get(package)
        if mine == theirs:
            continue
        chosen, where = (mine, names[1]) if mine else (theirs, names[0])
        yield Diagnosis(
            "pair-version",
            package,
            f"{names[0]} has {mine or 'none'}, {names[1]} has {theirs or 'none'}.",
            f"Install {package}=={chosen} on {where}, or use one image for both.",
            # The bundle is on no index: it is installed from its folder.
            () if package == BUNDLE else (("python", "-m", "pip", "install", "--no-deps", f"{package}=={chosen}"),),
            level="note" if package in _TOLERATED else "error",
        )


def _entries(a: Mapping[str, Any], b: Mapping[str, Any], names: tuple[str, str]) -> Iterator[Diagnosis]:
    mine, theirs = set(a["entry_points"]), set(b["entry_points"])
    for entry in sorted(mine ^ theirs):
        has, lacks = names if entry in mine else names[::-1]
        yield Diagnosis(
            "pair-plugin",
            entry,
            f"it is discovered on {has}, and not on {lacks}.",
            f"Install what brings it on {lacks}, or uninstall it on {has}.",
        )


def _variables(a: Mapping[str, Any], b: Mapping[str, Any], names: tuple[str, str]) -> Iterator[Diagnosis]:
    shared = {name for name, variable in VARIABLES.items() if variable.shared}
    shared |= {name for name, agrees in OTHERS.items() if agrees}
    for name in sorted({*a["variables"], *b["variables"]}):
        known = VARIABLES.get(name)
        default = known.default if known else None
        mine = a["variables"].get(name) or default
        theirs = b["variables"].get(name) or default
        if mine == theirs:
            continue
        seen = [f"{value!r}" if value is not None else "unset" for value in (mine, theirs)]
        chosen = mine if mine is not None else theirs
        yield Diagnosis(
            "pair-setting",
            name,
            f"{names[0]} has {seen[0]}, {names[1]} has {seen[1]}.",
            f"Set the same on both, for example {name}={chosen}.",
            (("export", f"{name}={chosen}"),),
            level="error" if name in shared else "note",
        )


def _recipes(a: Mapping[str, Any], b: Mapping[str, Any], names: tuple[str, str]) -> Iterator[Diagnosis]:
    if (a["recipe"] is None) != (b["recipe"] is None):
        without = names[0] if a["recipe"] is None else names[1]
        yield Diagnosis(
            "pair-recipe-absent",
            "recipe",
            f"the report of {without} was made without a recipe, so dtype, layout and sizes cannot be compared.",
            f"Run glm53 doctor --recipe RECIPE --role ROLE --json on {without}, with the recipe of the other host.",
        )
    if a["recipe"] is None or b["recipe"] is None:
        return
    mine, theirs = a["recipe"]["agreed"], b["recipe"]["agreed"]
    for key in sorted({*mine, *theirs}):
        if mine.get(key) != theirs.get(key):
            yield Diagnosis(
                "pair-recipe",
                key,
                f"{names[0]} has {mine.get(key)!r}, {names[1]} has {theirs.get(key)!r}.",
                "Use one recipe file for both hosts; the key exists in it once.",
            )


def _machines(a: Mapping[str, Any], b: Mapping[str, Any], names: tuple[str, str]) -> Iterator[Diagnosis]:
    for key in ("python", "machine"):
        mine, theirs = a["host"].get(key), b["host"].get(key)
        if mine != theirs:
            yield Diagnosis(
                "pair-python",
                key,
                f"{names[0]} has {mine!r}, {names[1]} has {theirs!r}.",
                "Use one image for both, unless the machines differ on purpose.",
                level="note",
            )
