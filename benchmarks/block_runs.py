"""Runs of consecutive blocks in transfers, on a long trace of coding agents: vLLM's block pool against runs.

A pair of vLLM's real cache managers, prefill and decode, serves sessions that arrive, send a long prompt, append
about 6,000 tokens a turn, wait for their tools, end or are aborted; sessions that wait are evicted when others need
the room. Only time is simulated: a step is one prefill chunk and 16 decoded tokens of every running request. Whenever
decode fetches a prompt's KV, the block ids of both sides tell how many descriptors whole rows need.

Usage: ``python benchmarks/block_runs.py [--steps N] [--json FILE]``, in an environment with vLLM.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request, RequestStatus

from vllm_blhnc import patches
from vllm_blhnc.allocation import hand_out_runs
from vllm_blhnc.plan import run_lengths

BLOCK_TOKENS = 64
#: The managers count in units of 16 tokens, so a block has 4 of them; that leaves the arithmetic of blocks alone.
UNIT_TOKENS = 16
UNITS = BLOCK_TOKENS // UNIT_TOKENS


@dataclass(frozen=True)
class Policy:
    """How blocks are handed out: vLLM's order, or runs with a window of this many cached blocks."""

    name: str
    window: int | None = None


@dataclass(frozen=True)
class Scenario:
    """Sizes in blocks; tokens as drawn for each turn. One prefill chunk is 8,192 tokens."""

    name: str
    prefill_blocks: int = 17_000  # 1.09 million tokens: GLM-5.3 in FP8 on four GPUs of 192 GB
    decode_blocks: int = 17_000
    sessions: int = 40
    prefix_caching: bool = True
    chunk_tokens: int = 8_192
    first_prompt: float = 36_000  # median; log-normal, at most 140,000
    appended: float = 5_000  # median of a turn, mean about 6,000
    answer: tuple[int, int] = (800, 2_400)  # uniform
    turns: tuple[int, int] = (4, 40)
    tool_steps: tuple[int, int] = (40, 200)
    longest: int = 190_000
    aborted: float = 0.03


SCENARIOS = (
    Scenario("prefill cache too small for its sessions"),
    Scenario("prefill cache holds its sessions", prefill_blocks=60_000),
    Scenario("no prefix caching", prefix_caching=False, prefill_blocks=5_000),
)
POLICIES = (Policy("stock"), Policy("runs", 0), *(Policy(f"runs, window {w}", w) for w in (256, 512, 1024)))


class Worker:
    """One side's cache manager, with the time that allocating and freeing took."""

    def __init__(self, blocks: int, scenario: Scenario, policy: Policy):
        spec = FullAttentionSpec(block_size=UNITS, num_kv_heads=1, head_size=1, dtype=torch.float32)
        self.manager = KVCacheManager(
            KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["kv"], spec)]),
            max_model_len=1 << 20,
            max_in_flight_tokens=1 << 20,
            scheduler_block_size=UNITS,
            hash_block_size=UNITS,
            enable_caching=scenario.prefix_caching,
        )
        if policy.window is not None:
            patches.follow_the_requests_blocks()
            hand_out_runs(self.manager.block_pool, policy.window)
        self.seconds = 0.0
        self.blocks = 0
        self.hit = self.asked = 0

    def start(self, request: Request, units: int, *, remote: bool) -> bool:
        """Admit a request whose first `units` beyond the cache hit are computed here, or come from the peer."""
        found, hit, *_ = self.manager.get_computed_blocks(request)
        new = min(units, request.num_tokens - hit)
        options: dict[str, Any] = (
            {"num_external_computed_tokens": new, "delay_cache_blocks": True}
            if remote
            else {"full_sequence_must_fit": True}
        )
        if not self._allocate(request, 0 if remote else new, hit, found, **options):
            return False
        self.hit += hit
        self.asked += request.num_tokens
        request.num_computed_tokens = hit + new
        request.status = RequestStatus.RUNNING
        return True

    def grow(self, request: Request, units: int) -> bool:
        if not self._allocate(request, units):
            return False
        request.num_computed_tokens += units
        return True

    def finish(self, request: Request) -> None:
        began = time.thread_time()
        self.manager.free(request)
        self.seconds += time.thread_time() - began

    def ids(self, request: Request) -> list[int]:
        return self.manager.get_block_ids(request.request_id)[0]

    def _allocate(self, *arguments: Any, **options: Any) -> bool:
        began = time.thread_time()
        blocks = self.manager.allocate_slots(*arguments, **options)
        self.seconds += time.thread_time() - began
        if blocks is None:
            return False
        self.blocks += len(blocks.get_block_ids()[0])
        return True


@dataclass
class Session:
    """One agent. All it will do is drawn from its own number, so every policy sees the same agent."""

    number: int
    scenario: Scenario
    starts: int
    units: int = 0
    hashes: list[Any] = field(default_factory=list)
    answer: int = 0
    fetched: int = 0
    prefill: Request | None = None
    decode: Request | None = None

    def __post_init__(self) -> None:
        self._draw = random.Random(self.number)
        self.turns = self._draw.randint(*self.scenario.turns)
        self._say(min(140_000, self._draw.lognormvariate(0, 0.8) * self.scenario.first_prompt))

    def next_turn(self, now: int) -> bool:
        """Append a tool result; False if this was the last turn."""
        self.turns -= 1
        self.starts = now + self._draw.randint(*self.scenario.tool_steps)
        self._say(self._draw.lognormvariate(0, 0.6) * self.scenario.appended)
        return self.turns > 0 and self.units * UNIT_TOKENS <= self.scenario.longest and not self.aborts

    def extend(self, units: int) -> None:
        self.units += units
        self.hashes += [b"%08d.%08d" % (self.number, i) for i in range(len(self.hashes), self.units // UNITS)]

    def request(self, name: str) -> Request:
        return Request(
            request_id=f"{name}-{self.number}-{self.turns}",
            prompt_token_ids=[0] * self.units,
            sampling_params=SamplingParams(max_tokens=1 << 20),
            pooling_params=None,
            block_hasher=lambda request: self.hashes[len(request.block_hashes) : request.num_tokens // UNITS],
        )

    def _say(self, tokens: float) -> None:
        self.extend(max(1, int(tokens) // UNIT_TOKENS))
        self.answer = max(1, int(self._draw.uniform(*self.scenario.answer)) // UNIT_TOKENS)
        self.aborts = self._draw.random() < self.scenario.aborted
        if self.aborts:
            self.answer = max(1, self.answer // 2)


class Pair:
    """Prefill and decode with the sessions that use them; `transfers` holds run lengths of each."""

    def __init__(self, scenario: Scenario, policy: Policy, seed: int):
        self.scenario = scenario
        self.prefill = Worker(scenario.prefill_blocks, scenario, policy)
        self.decode = Worker(scenario.decode_blocks, scenario, policy)
        self.transfers: list[list[int]] = []
        self.usage: list[float] = []
        self._numbers = itertools.count(seed * 1_000_000)
        self._idle = [Session(next(self._numbers), scenario, 5 * i) for i in range(scenario.sessions)]
        self._waiting: deque[Session] = deque()
        self._chunked: list[Session] = []
        self._prefilled: deque[Session] = deque()
        self._fetching: list[Session] = []
        self._decoding: list[Session] = []

    def step(self, now: int) -> None:
        for session in [s for s in self._idle if s.starts <= now]:
            self._idle.remove(session)
            session.prefill = session.request("prefill")
            self._waiting.append(session)
        self._prefill_chunk()
        for session in [s for s in self._fetching if s.fetched <= now]:
            self._fetching.remove(session)
            self._start_decoding(session)
        while self._prefilled and self._fetch(self._prefilled[0], now):
            self._prefilled.popleft()
        for session in list(self._decoding):
            self._decode(session, now)
        self.usage.append(self.decode.manager.usage)

    def _prefill_chunk(self) -> None:
        left = self.scenario.chunk_tokens // UNIT_TOKENS
        for session in list(self._chunked):
            request = session.prefill
            assert request is not None
            units = min(left, session.units - request.num_computed_tokens)
            if not units or not self.prefill.grow(request, units):
                break
            left -= units
            self._prefilled_if_complete(session, request)
        while self._waiting and left and len(self._chunked) < 4:
            request = self._waiting[0].prefill
            assert request is not None
            before = self.prefill.hit
            if not self.prefill.start(request, left, remote=False):
                break
            left -= request.num_computed_tokens - (self.prefill.hit - before)
            session = self._waiting.popleft()
            self._chunked.append(session)
            self._prefilled_if_complete(session, request)

    def _prefilled_if_complete(self, session: Session, request: Request) -> None:
        if request.num_computed_tokens >= session.units:
            self._chunked.remove(session)
            self._prefilled.append(session)

    def _fetch(self, session: Session, now: int) -> bool:
        request = session.decode = session.request("decode")
        before = self.decode.hit
        if not self.decode.start(request, session.units, remote=True):
            return False
        hit = (self.decode.hit - before) // UNITS
        assert session.prefill is not None
        source, destination = self.prefill.ids(session.prefill)[hit:], self.decode.ids(request)[hit:]
        if lengths := run_lengths(source[: len(destination)], destination[: len(source)]):
            self.transfers.append(lengths)
        session.fetched = now + 1 + len(destination) // 200
        self._fetching.append(session)
        return True

    def _start_decoding(self, session: Session) -> None:
        assert session.prefill is not None
        assert session.decode is not None
        self.prefill.finish(session.prefill)
        # The last prompt token is computed by decode itself.
        session.decode.num_computed_tokens = session.units - 1
        self.decode.manager.cache_blocks(session.decode, session.units - 1)
        self._decoding.append(session)

    def _decode(self, session: Session, now: int) -> None:
        request = session.decode
        assert request is not None
        if self.decode.grow(request, 1):
            session.extend(1)
            request.append_output_token_ids(0)
            session.answer -= 1
        else:
            session.answer = 0  # no room: the client is told to come back
        if session.answer <= 0:
            self._decoding.remove(session)
            self.decode.finish(request)
            again = session.next_turn(now)
            self._idle.append(session if again else Session(next(self._numbers), self.scenario, session.starts))


@dataclass(frozen=True)
class Result:
    """One policy on one trace. Runs and blocks as transferred; hit rates of prompt tokens; usage of decode."""

    scenario: str
    policy: str
    transfers: int
    blocks: int
    mean_run: float
    median_run: float
    descriptors_200k: float
    prefill_hits: float
    decode_hits: float
    decode_usage: float
    microseconds_a_block: float


def simulate(scenario: Scenario, policy: Policy, steps: int, seed: int = 1) -> Result:
    """Run the trace; the first third only fills the caches and is not counted."""
    pair = Pair(scenario, policy, seed)
    for now in range(steps):
        if now == steps // 3:
            pair.transfers.clear()
            pair.usage.clear()
        pair.step(now)
    runs = [length for transfer in pair.transfers for length in transfer]
    sides = (pair.prefill, pair.decode)
    return Result(
        scenario=scenario.name,
        policy=policy.name,
        transfers=len(pair.transfers),
        blocks=sum(runs),
        mean_run=statistics.mean(runs),
        median_run=statistics.median(runs),
        descriptors_200k=200_000 / BLOCK_TOKENS / statistics.mean(runs),
        prefill_hits=pair.prefill.hit / pair.prefill.asked,
        decode_hits=pair.decode.hit / pair.decode.asked,
        decode_usage=statistics.mean(pair.usage),
        microseconds_a_block=1e6 * sum(side.seconds for side in sides) / sum(side.blocks for side in sides),
    )


def _results(steps: int) -> Iterator[Result]:
    for scenario in SCENARIOS:
        for policy in POLICIES:
            if policy.window and not scenario.prefix_caching:
                continue  # nothing is cached, so there is no window to choose from
            print(f"{scenario.name}: {policy.name}", file=sys.stderr, flush=True)
            yield simulate(scenario, policy, steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3_000, help="length of the trace (default: 3000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    arguments = parser.parse_args()
    if arguments.steps < 300:
        parser.error(f"--steps={arguments.steps} is too short to fill the caches; use 300 or more")
    results = list(_results(arguments.steps))
    print(
        f"{'':20}{'transfers':>10}{'median run':>11}{'mean run':>9}{'per 200k tokens':>16}{'to stock':>9}"
        f"{'hits P':>8}{'hits D':>8}{'D in use':>9}{'us/block':>9}{'to stock':>9}"
    )
    for scenario, group in itertools.groupby(results, key=lambda result: result.scenario):
        print(scenario)
        rows = list(group)
        for row in rows:
            print(
                f"  {row.policy:18}{row.transfers:10}{row.median_run:11.0f}{row.mean_run:9.1f}"
                f"{row.descriptors_200k:16.0f}{row.descriptors_200k / rows[0].descriptors_200k:9.3f}"
                f"{row.prefill_hits:8.1%}{row.decode_hits:8.1%}{row.decode_usage:9.1%}"
                f"{row.microseconds_a_block:9.2f}{row.microseconds_a_block / rows[0].microseconds_a_block:9.2f}"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in results], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
