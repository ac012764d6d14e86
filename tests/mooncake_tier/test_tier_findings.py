"""Each finding from facts that trip it, with its way out; and none from a machine that is in order."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from tier_fields import fields

from mooncake_tier import keys
from mooncake_tier.identity.reports import read_reports, write_report
from mooncake_tier.node.findings import CODES, Facts, Workload, examine
from stockpatch.versions import UnsupportedVersion

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mooncake_tier.md"
NON_CUDA, CUDA = "mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine"
WELL: dict[str, Any] = {
    "wheels": {NON_CUDA: "0.3.13.post1"},
    "xxhash": "libxxhash.so.0",
    "capacity": 64 << 30,
    "lease_s": 30.0,
    "workload": Workload(sessions=8, tokens=146_000, bytes_per_token=48_672, gigabytes_per_s=1.0),
}

CASES: list[tuple[str, dict[str, Any], str]] = [
    ("wheel-missing", {"wheels": {}}, "pip install mooncake"),
    ("wheel-two", {"wheels": {NON_CUDA: "0.3.13.post1", CUDA: "0.3.13.post1"}}, f"pip uninstall {CUDA} {NON_CUDA}"),
    (
        "wheel-release",
        {"wheels": {NON_CUDA: "0.3.14"}, "unsupported": UnsupportedVersion("install 0.3.13")},
        "install 0.3.13",
    ),
    ("wheel-cuda", {"wheels": {CUDA: "0.3.13.post1"}}, "non-cuda"),
    ("wheel-cuda", {"gpus": True}, "CUDA release"),
    ("library-missing", {"missing": {"libibverbs.so.1": "store.so"}}, "apt-get install libibverbs1"),
    ("library-missing", {"missing": {"libcuda.so.1": "store.so"}}, "driver"),
    ("library-missing", {"missing": {"libodd.so.3": "store.so"}}, "package"),
    ("checksum-missing", {"xxhash": None}, "libxxhash0"),
    ("rdma-missing", {"protocol": "rdma"}, "/dev/infiniband"),
    ("rdma-memlock", {"protocol": "rdma", "rdma_devices": ["mlx5_0"], "locked_memory": 65_536}, "ulimit -l"),
    ("ports-open", {"everywhere": ["0.0.0.0:15947"], "compiler": False}, "LD_PRELOAD"),
    ("compiler-missing", {"compiler": False}, "--open-transfer-ports"),
    ("store-unreachable", {"unreachable": "no answer", "capacity": None}, "mooncake-tier serve"),
    ("pool-missing", {"capacity": 0}, "--pool"),
    # 146,000 x 48,672 bytes are 7.106 GB: 7.106 s at 1 GB/s, and twice that is 14.2 s.
    ("lease-short", {"lease_s": 14.2}, "--lease 15"),
    # Eight of them are 52.94 GiB.
    ("pool-small", {"capacity": 52 << 30}, "--pool 53GiB"),
    ("report-unreadable", {"unreadable": {"w.json": "no JSON"}}, "restart"),
    ("keys-differ", {"reports": {"a": {"layout": "BLHNC"}, "b": {"layout": "LBNHC"}}}, "make layout equal"),
]


@pytest.mark.parametrize(("code", "changed", "fix"), CASES)
def test_each_fault_is_one_finding_with_its_way_out(code: str, changed: dict[str, Any], fix: str) -> None:
    found = examine(Facts(**WELL | changed))

    assert [one.code for one in found] == [code]
    assert fix in found[0].fix
    assert all(dataclasses.astuple(found[0]))


def test_a_machine_in_order_has_no_finding() -> None:
    assert examine(Facts(**WELL)) == []
    assert examine(Facts(**WELL | {"lease_s": 14.3, "capacity": 53 << 30})) == []
    assert examine(Facts(**WELL | {"wheels": {CUDA: "0.3.13.post1"}, "gpus": True})) == []


def test_every_code_has_a_case_here_and_a_row_in_the_docs() -> None:
    rows = re.findall(r"^\| `([a-z]+-[a-z]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert set(CODES) == {code for code, _, _ in CASES}
    assert rows == list(CODES)


def test_reports_of_workers_are_compared_field_by_field(tmp_path: Path) -> None:
    mine = write_report(tmp_path, "prefill-0", fields())
    theirs = write_report(tmp_path, "decode-0", fields(layout="LBNHC", tp_size=4))
    found, unreadable = read_reports([tmp_path])

    [finding] = examine(Facts(**WELL | {"reports": found, "unreadable": unreadable}))
    assert mine == keys.namespace(**fields()) != theirs
    assert finding.code == "keys-differ"
    assert "layout is 'LBNHC' and 'BLHNC'; tp_size is 4 and 1" in finding.seen
    assert "decode-0.json and" in finding.needed


def test_equal_workers_agree(tmp_path: Path) -> None:
    for worker in ("a", "b", "c"):
        write_report(tmp_path, worker, fields())

    found, unreadable = read_reports([tmp_path / "a.json", tmp_path])
    assert (len(found), unreadable) == (3, {})
    assert examine(Facts(**WELL | {"reports": found})) == []


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"namespace": "mt1-00"}', '{"model": 3}'])
def test_a_report_that_says_nothing_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)

    found, unreadable = read_reports([tmp_path, tmp_path / "gone.json"])
    assert found == {}
    assert set(unreadable) == {str(tmp_path / "x.json"), str(tmp_path / "gone.json")}


def test_a_report_whose_namespace_does_not_follow_is_told(tmp_path: Path) -> None:
    write_report(tmp_path, "a", fields())
    file = tmp_path / "a.json"
    file.write_text(file.read_text().replace("BLHNC", "LBNHC"))

    found, unreadable = read_reports([file])
    assert found == {}
    assert "and it says mt1-" in unreadable[str(file)]
