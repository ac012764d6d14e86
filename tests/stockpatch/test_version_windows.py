"""Windows of stock releases: what is inside, what is refused, and how a refusal can be overruled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from stockpatch import NotInstalled, UnsupportedVersion, Window, installed
from stockpatch.versions import OVERRIDE

Install = Callable[..., None]

WINDOW = ">=0.31,<0.34"

# From PEP 440: the release segment orders versions; local, pre, dev and post parts only refine a release.
TABLE = [
    (WINDOW, "0.30.2", False),
    (WINDOW, "0.30.2.post1", False),
    (WINDOW, "0.31.0.dev7", True),
    (WINDOW, "0.31.0rc1", True),
    (WINDOW, "0.31", True),
    (WINDOW, "0.31.0", True),
    (WINDOW, "0.31.0+cpu", True),
    (WINDOW, "0.31.1.dev3+g1a2b3c4", True),
    (WINDOW, "0.33.9", True),
    (WINDOW, "0.33.9.post2+cu130", True),
    (WINDOW, "0.34.0.dev1", False),
    (WINDOW, "0.34.0a1", False),
    (WINDOW, "0.34.0rc1", False),
    (WINDOW, "0.34.0rc1+cpu", False),
    (WINDOW, "0.34.0", False),
    (WINDOW, "0.34.0+cpu", False),
    (WINDOW, "1!0.32.0", False),
    ("==0.31.0", "0.31.0+cpu", True),
    ("==0.31.0", "0.31.0.post1", True),
    ("==0.31.0", "0.31.1", False),
    ("==0.31.*", "0.31.7", True),
    ("==0.31.*", "0.32.0rc1", False),
    ("~=0.31.2", "0.31.1", False),
    ("~=0.31.2", "0.31.9", True),
    ("~=0.31.2", "0.32.0", False),
    (">=0.31,<=0.33.0", "0.33.0+cu130", True),
    (">=0.31,<=0.33.0", "0.33.0.post1", True),
    (">=0.31,<=0.33.0", "0.33.1", False),
    (">0.31,<0.34", "0.31.0", False),
    (">0.31,<0.34", "0.31.1", True),
    (">=0.31,!=0.32.0,<0.34", "0.32.0+cpu", False),
    (">=0.31,!=0.32.0,<0.34", "0.32.1", True),
]


@pytest.mark.parametrize(("specifier", "version", "inside"), TABLE)
def test_a_version_is_judged_by_the_release_it_belongs_to(specifier: str, version: str, inside: bool) -> None:
    assert inside == Window(("stocklib",), specifier).contains(version)


@given(
    release=st.tuples(st.integers(0, 1), st.integers(28, 36), st.integers(0, 3)),
    suffix=st.sampled_from(["", "rc1", "a2", ".dev5", ".post1", "rc1.post2.dev3"]),
    local=st.sampled_from(["", "+cpu", "+cu130", "+g12ab.d20261020"]),
)
def test_suffixes_never_move_a_release_across_a_bound(release: tuple[int, int, int], suffix: str, local: str) -> None:
    version = ".".join(map(str, release)) + suffix + local

    assert ((0, 31, 0) <= release < (0, 34, 0)) == Window(("stocklib",), WINDOW).contains(version)


@pytest.mark.parametrize(
    ("specifier", "reason"),
    [
        (">=0.31", "no upper end"),
        ("", "no lower end"),
        ("<0.34", "no lower end"),
        ("!=0.32.0", "no lower end"),
        (">=0.34,<0.33", "is empty"),
        (">=0.33,<0.33", "is empty"),
        ("~=0.31.0,>=0.33", "is empty"),
        ("===0.31.0", "compares text"),
        (">=0.31.0rc1,<0.34", "final releases"),
        ("==0.31.0+cpu", "final releases"),
        (">=0.31,<0.34.0.post1", "final releases"),
        ("0.31 to 0.34", "not a PEP 440 specifier"),
    ],
)
def test_refuses_a_window_that_is_not_closed_by_final_releases(specifier: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        Window(("stocklib",), specifier)

    assert repr(specifier) in str(caught.value)
    assert ">=0.31,<0.34" in str(caught.value)


def test_refuses_a_tested_release_outside_its_own_window() -> None:
    with pytest.raises(ValueError, match=r"'0\.34\.0' lies outside"):
        Window(("stocklib",), WINDOW, tested=("0.31.0", "0.34.0"))


@pytest.mark.parametrize("names", ["vllm", ()])
def test_refuses_distributions_that_are_no_tuple_of_names(names: object) -> None:
    with pytest.raises(ValueError, match="must be a tuple"):
        Window(names, WINDOW)  # type: ignore[arg-type]


def test_installed_reads_the_first_distribution_present(install: Install) -> None:
    install("stocklib-cpu", "0.31.0+cpu")

    assert installed("stocklib", "stocklib-cpu") == ("stocklib-cpu", Version("0.31.0+cpu"))
    assert installed("stocklib") is None


def test_installed_needs_a_name() -> None:
    with pytest.raises(ValueError, match="at least one"):
        installed()


def test_two_distributions_of_one_release_agree(install: Install) -> None:
    install("stocklib", "0.31.0")
    install("stocklib-cpu", "0.31.0+cpu")

    assert installed("stocklib", "stocklib-cpu") == ("stocklib", Version("0.31.0"))


def test_two_distributions_of_different_releases_are_refused(install: Install) -> None:
    install("stocklib", "0.31.0")
    install("stocklib-cpu", "0.32.0+cpu")

    with pytest.raises(UnsupportedVersion, match=r"stocklib==0\.31\.0 and stocklib-cpu==0\.32\.0\+cpu"):
        Window(("stocklib", "stocklib-cpu"), WINDOW).require()


@pytest.mark.parametrize("version", ["unknown", None])
def test_metadata_without_a_readable_version_is_refused(install: Install, version: str | None) -> None:
    install("stocklib", version)

    with pytest.raises(UnsupportedVersion, match="Reinstall stocklib"):
        installed("stocklib")


def test_require_returns_the_installed_version_inside_the_window(install: Install) -> None:
    install("stocklib", "0.33.0+cu130")

    assert Window(("stocklib",), WINDOW).require() == Version("0.33.0+cu130")


def test_require_names_version_window_tested_releases_and_override(install: Install) -> None:
    install("stocklib", "0.34.0")

    with pytest.raises(UnsupportedVersion) as caught:
        Window(("stocklib",), WINDOW, tested=("0.31.0", "0.33.0")).require()

    text = str(caught.value)
    for part in ("stocklib==0.34.0", WINDOW, "tested: 0.31.0, 0.33.0", f'{OVERRIDE}="stocklib==0.34.0"'):
        assert part in text


def test_require_says_when_nothing_is_installed() -> None:
    with pytest.raises(NotInstalled, match=r"none of nosuchlib, nosuchlib-cpu is installed.*pip install"):
        Window(("nosuchlib", "nosuchlib-cpu"), WINDOW).require()


@pytest.mark.parametrize(
    ("version", "override", "runs"),
    [
        ("0.34.0", "stocklib==0.34.0", True),
        ("0.34.0", "other==1.0, stocklib==0.34.0,", True),
        ("0.34.0", "Stock.Lib==0.34.0", False),
        ("0.34.0", "STOCKLIB==0.34.0", True),
        ("0.34.0+cpu", "stocklib==0.34.0", True),
        ("0.34.0+cpu", "stocklib==0.34.0+cu130", False),
        ("0.34.0", "stocklib==0.34.0+cpu", False),
        ("0.34.1", "stocklib==0.34.0", False),
        ("0.34.0rc1", "stocklib==0.34.0", False),
        ("0.34.0rc1", "stocklib==0.34.0rc1", True),
        ("0.34.0", "stocklib-cpu==0.34.0", False),
    ],
)
def test_the_override_admits_exactly_the_release_it_names(
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    version: str,
    override: str,
    runs: bool,
) -> None:
    install("stocklib", version)
    monkeypatch.setenv(OVERRIDE, override)
    window = Window(("stocklib", "stocklib-cpu"), WINDOW)

    if runs:
        assert window.require() == window.require() == Version(version)
        assert len([r for r in caplog.records if r.levelname == "WARNING" and OVERRIDE in r.message]) == 1
    else:
        with pytest.raises(UnsupportedVersion):
            window.require()


@pytest.mark.parametrize("text", ["1", "stocklib", "stocklib>=0.34", "stocklib==", "==0.34", "stocklib==0.*"])
def test_a_malformed_override_is_an_error_even_when_not_needed(
    install: Install, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    install("stocklib", "0.31.0")
    monkeypatch.setenv(OVERRIDE, text)

    with pytest.raises(ValueError, match="NAME==VERSION"):
        Window(("stocklib",), WINDOW).require()


def test_select_takes_the_row_that_covers_the_installed_version(install: Install) -> None:
    install("stocklib", "0.32.1+cpu")
    window = Window(("stocklib",), WINDOW)

    assert window.select({"==0.31.*": "old", ">=0.32,<0.34": "new"}) == "new"


@pytest.mark.parametrize("table", [{"==0.31.*": 1}, {"==0.32.*": 1, ">=0.31,<0.34": 2}, {}])
def test_select_refuses_a_table_with_a_gap_or_an_overlap(install: Install, table: dict[str, int]) -> None:
    install("stocklib", "0.32.0")

    with pytest.raises(ValueError, match="exactly one row"):
        Window(("stocklib",), WINDOW).select(table)


@pytest.mark.parametrize(("version", "row"), [("0.30.0", "old"), ("0.34.0rc1", "new"), ("1.0", "new")])
def test_select_takes_the_nearest_row_for_a_release_that_only_the_override_admits(
    install: Install, monkeypatch: pytest.MonkeyPatch, version: str, row: str
) -> None:
    install("stocklib", version)
    monkeypatch.setenv(OVERRIDE, f"stocklib=={version}")

    assert Window(("stocklib",), WINDOW).select({"==0.31.*": "old", "~=0.32.0": "mid", "==0.33.*": "new"}) == row


def test_importing_stockpatch_imports_no_stock_package_and_no_plugin() -> None:
    code = "import sys, stockpatch, stockpatch.docs; print(sorted({m.partition('.')[0] for m in sys.modules}))"
    seen = set(eval(subprocess.check_output([sys.executable, "-c", code], text=True)))
    allowed = set(sys.stdlib_module_names) | {"stockpatch", "packaging", "__main__"}
    started = set(
        eval(
            subprocess.check_output(
                [
                    sys.executable,
                    "-c",
                    "import sys; print(sorted({m.partition('.')[0] for m in sys.modules}))",
                ],
                text=True,
            )
        )
    )

    assert seen - started <= allowed
