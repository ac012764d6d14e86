"""The planned descriptor counts against those that NIXL reports for real transfers over UCX on loopback."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pytest
from packaging.version import Version

from vllm_blhnc.plan import block_row, descriptor_count, run_lengths
from vllm_blhnc.transfers import RecordingAgent, Transfer

if TYPE_CHECKING:
    from conftest import Call

BLOCKS = 64  # in each cache
ROW = block_row({"attn": 4608, "indexer": 1056}, [576, 1])  # bytes; a small block with padding

# Memory of one cache: regions as (offset of the first block, bytes of a block, bytes to the next block).
REGIONS = {
    "rows": [(0, ROW.nbytes, ROW.nbytes)],
    "rows-without-padding": [(0, ROW.payload, ROW.nbytes)],
    "pages-in-rows": [(0, 1056, ROW.nbytes), (1056, 4608, ROW.nbytes)],
    "pages-apart": [(0, 1056, 1056), (1056 * BLOCKS, 4608, 4608)],
}
DENSE = {"rows": True, "rows-without-padding": False, "pages-in-rows": False, "pages-apart": True}

IDS = {
    "contiguous": (list(range(8, 48)), list(range(20, 60))),
    "four-runs": ([*range(10), *range(16, 26), *range(32, 42), *range(48, 58)], list(range(40))),
    "reversed-at-one-side": (list(range(10)), list(range(10))[::-1]),
    "scattered": (random.Random(0).sample(range(BLOCKS), 40), random.Random(1).sample(range(BLOCKS), 40)),
    "one": ([63], [0]),
}


def _read(regions: list[tuple[int, int, int]], source: list[int], destination: list[int], strided: bool) -> Any:
    """One NIXL read between two agents; what was recorded, and whether exactly the blocks' bytes moved."""
    import numpy as np
    from nixl._api import nixl_agent, nixl_agent_config

    def memory(fill: int) -> Any:
        generator = np.random.default_rng(fill)
        return generator.integers(0, 256, ROW.nbytes * BLOCKS, dtype=np.uint8)

    def descriptors(base: int) -> Any:
        if strided:
            return np.array([[base + start, n, 0, stride, BLOCKS] for start, n, stride in regions], dtype=np.uint64)
        return np.array(
            [[base + start + i * stride, n, 0] for start, n, stride in regions for i in range(BLOCKS)],
            dtype=np.uint64,
        )

    recorded: list[Transfer] = []
    theirs = nixl_agent("prefill", nixl_agent_config(capture_telemetry=True))
    ours: Any = RecordingAgent(
        nixl_agent("decode", nixl_agent_config(capture_telemetry=True)),
        "test",
        lambda: len(regions),
        recorded.append,
    )
    remote, local = memory(1), memory(2)
    for agent, array in ((theirs, remote), (ours, local)):
        agent.register_memory(agent.get_reg_descs([(array.ctypes.data, array.nbytes, 0, "")], "DRAM"))
    peer = ours.add_remote_agent(theirs.get_agent_metadata())
    sides = (
        ours.prep_xfer_dlist("NIXL_INIT_AGENT", descriptors(local.ctypes.data), mem_type="DRAM"),
        ours.prep_xfer_dlist(peer, descriptors(remote.ctypes.data), mem_type="DRAM"),
    )
    expected = local.copy()
    for start, n, stride in regions:
        for i, j in zip(source, destination, strict=True):
            expected[start + j * stride :][:n] = remote[start + i * stride :][:n]

    def ids(blocks: list[int]) -> Any:
        return np.concatenate([np.array(blocks) + k * BLOCKS for k in range(len(regions))]).astype(np.int32)

    handle = ours.make_prepped_xfer("READ", sides[0], ids(destination), sides[1], ids(source), b"request:1")
    state = ours.transfer(handle)
    while state == "PROC":
        state = ours.check_xfer_state(handle)
    ours.get_xfer_telemetry(handle)
    return state, [asdict(transfer) for transfer in recorded], bool((local == expected).all())


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("layout", REGIONS)
@pytest.mark.parametrize("strided", [pytest.param(False, id="block-list"), pytest.param(True, id="strided-list")])
def test_nixl_posts_the_planned_descriptors_and_moves_exactly_the_blocks(
    all_reads: Callable[[], dict[Any, Any]], strided: bool, layout: str, ids: str
) -> None:
    if strided and Version(metadata.version("nixl")) < Version("1.5"):
        pytest.skip("NIXL takes strided lists since 1.5: make test-lines runs it")
    source, destination = IDS[ids]
    regions = REGIONS[layout]
    runs = len(run_lengths(source, destination))

    state, (transfer,), right = all_reads()[strided, layout, ids]

    assert (state, right) == ("DONE", True)
    assert transfer["descriptors"] == descriptor_count(len(source), runs, len(regions), dense=DENSE[layout])
    assert transfer["nbytes"] == len(source) * sum(n for _, n, _ in regions)
    assert (transfer["request"], transfer["operation"]) == ("request", "READ")
    assert (transfer["blocks"], transfer["runs"], transfer["regions"]) == (len(source), runs, len(regions))


def _read_all(strided_too: bool) -> dict[Any, Any]:
    return {
        (strided, layout, ids): _read(REGIONS[layout], *IDS[ids], strided)
        for strided in ((False, True) if strided_too else (False,))
        for layout in REGIONS
        for ids in IDS
    }


@pytest.fixture(scope="module")
def all_reads(call: Call) -> Callable[[], dict[Any, Any]]:
    """All reads, made in one process; a function, so that pytest prints no megabytes when a test fails."""
    strided_too = Version(metadata.version("nixl")) >= Version("1.5")
    reads = call(_read_all, strided_too)
    return lambda: reads
