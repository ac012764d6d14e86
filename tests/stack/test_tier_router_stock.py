"""Dynamo's KV router follows the DRAM tier: a turn goes to the worker that has its prefix there, while it is there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from stacks import deployment_for, needs_stack

from glm53.demo.tier import tokens_by_source
from glm53.local.stack import Stack, running_stack

pytestmark = [
    needs_stack,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("mooncake") is None, reason="needs Mooncake: run `make test`"),
]

WORKERS = ("aggregated-0", "aggregated-1")
PROMPT, CHUNK, BLOCK = 1100, 256, 64
CHUNKS = PROMPT // CHUNK * CHUNK
TIER = {"memory": "256MiB", "buffer": "16MiB", "protocol": "tcp", "chunk_tokens": CHUNK, "poll_seconds": 1}
ROW = 4 * 576 * 4 + 3 * 132  # bytes a token: an MLA row of floats in four layers, an indexer row in three of them
# Room for less than three prompts, and in host memory, which is the tier's buffer, for less than two.
ENGINE = {"dtype": "float32", "max_model_len": 2048, "max_batched_tokens": 2048, "kv_cache": "24MiB"}
FILLERS = 3
_FIGURE = re.compile(r"(worker_id|host_pinned_blocks)=(\d+)")


class Listener:
    """Subscribes to a worker's KV events, as Dynamo does beside it."""

    def __init__(self, stack: Stack, worker: str) -> None:
        zmq = pytest.importorskip("zmq", reason="comes with vLLM: make env")
        self._unpack = pytest.importorskip("msgspec", reason="comes with vLLM: make env").msgpack.decode
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(f"ipc://{stack.run_dir / worker}.events.tcp:1")

    def removals(self, seconds: float) -> int:
        """Blocks of the tier that are told to be gone until nothing is told for so long."""
        count = 0
        while self._socket.poll(1000 * seconds):
            _, events, *_ = self._unpack(self._socket.recv_multipart()[-1])
            gone = [one for one in events if one["type"] == "BlockRemoved" and one["medium"] == "CPU"]
            count += sum(len(one["block_hashes"]) for one in gone)
        return count


class Asked:
    """One completion. chosen: the worker. promised: blocks in its tier, by the router's count.

    computed, gpu, tier: prompt tokens by where they came from.
    """

    def __init__(self, stack: Stack, prompt: str, worker_id: int | None = None) -> None:
        before = _tokens(stack)
        given = {} if worker_id is None else {"backend_instance_id": worker_id}
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 1, "temperature": 0, "nvext": given}
        answer = httpx.post(f"{stack.url}/v1/completions", json=body, timeout=300, trust_env=False)
        assert answer.status_code == 200, answer.text
        self.text = answer.json()["choices"][0]["text"]
        after = _tokens(stack)
        spent = {name: {kind: after[name][kind] - before[name][kind] for kind in after[name]} for name in WORKERS}
        [self.chosen] = [name for name, by_source in spent.items() if any(by_source.values())]
        self.computed, self.gpu, self.tier = (spent[self.chosen][kind] for kind in ("computed", "gpu", "tier"))
        log = (stack.run_dir / "frontend.log").read_text(encoding="utf-8")
        said = [line for line in log.splitlines() if "Selected worker" in line]
        figures = dict(_FIGURE.findall(said[-1]))
        self.worker_id, self.promised = int(figures["worker_id"]), int(figures["host_pinned_blocks"])


def _tokens(stack: Stack) -> dict[str, dict[str, int]]:
    """Prompt tokens of each worker by where they came from."""
    return {
        name: tokens_by_source(httpx.get(f"{stack.status_url(name)}/metrics", timeout=30, trust_env=False).text)
        for name in WORKERS
    }


def _words(name: str, length: int = PROMPT) -> str:
    """So many characters, which are tokens, that begin differently for each name."""
    return (f"{name}: " + f"the {name} prompt is kept in blocks of memory. " * length)[:length]


def _mooncake_tier(stack: Stack, *command: str) -> Any:
    where = ["--run-dir", str(stack.run_dir / "tier"), "--json"]
    program = [sys.executable, "-m", "mooncake_tier.cli", *command, *where]
    return json.loads(subprocess.run(program, capture_output=True, text=True, check=True).stdout.partition("\nI")[0])


@pytest.fixture(scope="module")
def stack(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    deployment = deployment_for(model, workers={"aggregated": 2}, tier=TIER, engine=ENGINE)
    with running_stack(Stack(deployment, tmp_path_factory.mktemp("tr")), print) as running:
        yield running


@pytest.fixture(scope="module")
def holders(stack: Stack) -> dict[str, Asked]:
    """Sessions, two on each worker, whose first turns are in the tier and not in the GPU's cache or host memory."""
    first = Asked(stack, _words("session 0"))
    here = {first.chosen: first.worker_id}
    asked = {"session 0": first}
    for number in range(1, 100):
        if len(here) == 2:
            break
        one = Asked(stack, _words(f"session {number}"))
        asked |= {} if one.chosen in here else {f"session {number}": one}
        here.setdefault(one.chosen, one.worker_id)
    for worker, worker_id in here.items():
        asked[f"late {worker}"] = Asked(stack, _words(f"late {worker}"), worker_id)
        assert asked[f"late {worker}"].chosen == worker
    for worker, worker_id in here.items():
        for number in range(FILLERS):
            Asked(stack, _words(f"filler {number} of {worker}"), worker_id)
    assert sorted(one.chosen for one in asked.values()) == sorted([*WORKERS, *WORKERS])
    return asked


def test_the_next_turn_goes_to_the_worker_whose_tier_has_the_prefix(stack: Stack, holders: dict[str, Asked]) -> None:
    for session, first in holders.items():
        if session.startswith("late"):
            continue
        turn = Asked(stack, _words(session) + " Go on." * 10)

        assert turn.promised == CHUNKS // BLOCK
        assert (turn.chosen, turn.gpu, turn.tier) == (first.chosen, 0, CHUNKS)
        assert turn.computed == PROMPT + 70 - CHUNKS


def test_blocks_that_were_removed_are_not_counted_on_though_no_request_comes(
    stack: Stack, holders: dict[str, Asked]
) -> None:
    """Stock tells a router nothing of them; an engine that waits for requests is woken to tell it."""
    listeners = {name: Listener(stack, name) for name in WORKERS}
    time.sleep(1)  # a subscription takes a moment
    [(namespace, keys)] = _mooncake_tier(stack, "stats", "--namespaces")["namespaces"].items()

    assert _mooncake_tier(stack, "flush", "--namespace", namespace)["removed"] == keys
    # Chunks in host memory, at most so many in each worker, are still there.
    staged = (16 << 20) // (CHUNK * ROW)
    gone = sum(listener.removals(3) for listener in listeners.values())
    assert gone >= (keys - 2 * staged) * CHUNK // BLOCK
    for session, first in holders.items():
        if session.startswith("late"):
            turn = Asked(stack, _words(session) + " Go on." * 10)
            assert (turn.promised, turn.tier) == (0, 0)
            assert turn.computed + turn.gpu == PROMPT + 70
            assert first.computed == PROMPT
