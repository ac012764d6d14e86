"""Mooncake finds libibverbs on a machine without RDMA, and a machine's own library is never hidden."""

from pathlib import Path

import mooncake_libraries
import pytest


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    for folder, names in {
        "mooncake_transfer_engine_non_cuda.libs": ("libasio-d08c.so",),
        "nixl_cu12.libs": (
            "libibverbs-1de1.so.1.14",
            "libnl-3-47cd.so.200",
            "libnl-route-3-3ad4.so.200",
            "libnuma-3387.so.1.0.0",
            "libcurl-6afc.so.4",
            "libzstd-76b7.so.1.4.4",
        ),
    }.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_text(name)
    return tmp_path


def test_what_the_machine_lacks_is_lent_with_all_that_it_needs(packages: Path) -> None:
    lent = mooncake_libraries.lend(packages, found=lambda name: name != "libibverbs.so.1")

    folder = packages / "mooncake_transfer_engine_non_cuda.libs"
    links = {link.name: link.read_text() for link in folder.iterdir() if link.is_symlink()}
    assert lent == ["libibverbs.so.1"]
    assert links == {
        "libibverbs.so.1": "libibverbs-1de1.so.1.14",
        "libnl-3-47cd.so.200": "libnl-3-47cd.so.200",
        "libnl-route-3-3ad4.so.200": "libnl-route-3-3ad4.so.200",
    }


def test_lending_twice_is_harmless_and_moves_with_the_environment(packages: Path, tmp_path: Path) -> None:
    assert mooncake_libraries.lend(packages, found=lambda name: False) == list(mooncake_libraries.LENT)
    assert mooncake_libraries.lend(packages, found=lambda name: False) == list(mooncake_libraries.LENT)

    moved = packages.rename(tmp_path.with_name("moved"))
    assert (moved / "mooncake_transfer_engine_non_cuda.libs" / "libnuma.so.1").read_text() == "libnuma-3387.so.1.0.0"


def test_nothing_is_lent_where_the_machine_has_it_or_a_wheel_is_missing(packages: Path) -> None:
    assert mooncake_libraries.lend(packages, found=lambda name: True) == []
    for file in (packages / "nixl_cu12.libs").iterdir():
        file.unlink()
    assert mooncake_libraries.lend(packages, found=lambda name: False) == []
    (packages / "nixl_cu12.libs").rmdir()
    assert mooncake_libraries.lend(packages, found=lambda name: False) == []


def test_a_library_that_no_machine_has_is_not_found() -> None:
    assert mooncake_libraries.loads("libc.so.6")
    assert not mooncake_libraries.loads("libno-such-library.so.1")
