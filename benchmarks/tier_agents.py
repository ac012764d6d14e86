"""Sessions of agents on the engine of `tier_rig`, in its process, and what an engine at rest still holds.

Each session asks with its last prompt, the answer, and something new. Several run at a time, and begin again when they
are through.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tier_rig import Request, Rig, prompt, rig

__all__ = ["CLOSED", "CONNECTED", "NOTHING", "Soaked", "Turn", "at_rest", "run", "sessions"]

FIRST, MORE, ANSWER, AT_A_TIME = 150, 70, 12, 3


@dataclass(frozen=True)
class Turn:
    """ids: the prompt. tokens: what an engine without a tier answers."""

    ids: list[int]
    tokens: list[int]


@dataclass
class Soaked:
    """What came of it: turns, prompt tokens and those of them that were found; names of turns with other tokens."""

    turns: int = 0
    asked: int = 0
    cached: int = 0
    wrong: list[str] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)


def sessions(count: int, turns: int) -> list[list[Turn]]:
    """Sessions with growing prompts, answered by this engine."""
    found = []
    for number in range(count):
        ids, session = prompt(FIRST, 10_000 + number), []
        for turn in range(turns):
            session.append(Turn(ids, rig().ask("agent", ids, ANSWER).tokens))
            ids = ids + session[-1].tokens + prompt(MORE, 20_000 + 100 * number + turn)
        found.append(session)
    return found


def run(agents: list[list[Turn]], seconds: float, seed: int) -> Soaked:
    """Let sessions run for so long, whatever happens to the store meanwhile."""
    engine, chosen, soaked = rig(), random.Random(seed), Soaked()
    running: dict[int, tuple[int, Request]] = {}
    turns: Counter[int] = Counter()
    end = time.monotonic() + seconds
    while running or time.monotonic() < end:
        idle = [number for number in range(len(agents)) if number not in running]
        while idle and len(running) < AT_A_TIME and time.monotonic() < end:
            number = idle.pop(chosen.randrange(len(idle)))
            turn = turns[number] % len(agents[number])
            last = turn == len(agents[number]) - 1
            running[number] = (turn, engine.add(f"agent {number}", agents[number][turn].ids, ANSWER, last))
        engine.step()
        if time.monotonic() > end + 120:
            raise TimeoutError(f"requests without an answer: {list(engine.scheduler.requests)}")
        for number, (turn, one) in list(running.items()):
            if one.finished:
                del running[number]
                turns[number] += 1
                _count(soaked, agents[number][turn], one, f"session {number}, turn {turn}")
    engine.rest()
    return soaked


def _count(soaked: Soaked, turn: Turn, one: Request, name: str) -> None:
    soaked.turns += 1
    soaked.asked += len(turn.ids)
    soaked.cached += one.cached
    soaked.firsts.append(one.first)
    soaked.gaps += [after - before for before, after in zip(one.times[1:], one.times[2:], strict=False)]
    if one.tokens != turn.tokens:
        soaked.wrong.append(name)


def at_rest(baseline: dict[str, int] | None = None, within_s: float = 60.0) -> dict[str, int]:
    """What the engine holds when nothing runs and the store works, once that is no more than the baseline."""
    engine, end = rig(), time.monotonic() + within_s
    while True:
        engine.ask("small", prompt(20, 7), 1)  # sessions end, and the store is asked, with a step
        found = _held(engine)
        quiet = engine.client.breaker.allows and not any(found[name] for name in NOTHING if name in found)
        uneven = (CLOSED, CONNECTED)
        if quiet and all(found[name] <= value for name, value in (baseline or {}).items() if name not in uneven):
            return found
        if time.monotonic() > end:
            return found
        time.sleep(0.2)


#: Of what `at_rest` tells, that which an engine at rest has none of.
NOTHING = (
    "blocks in use",
    "requests",
    "jobs",
    "chunks in use",
    "lookups",
    "held keys",
    "renewed leases",
    "sessions",
    "waiting requests",
)


#: Sockets whose other end is gone: Mooncake 0.3.13 keeps those to a pool that dies.
CLOSED = "sockets of dead pools"
#: Mooncake opens them to a pool as it needs them, up to `mooncake_tier.stock.TCP_LANES`, and keeps them.
CONNECTED = "connections"
_ESTABLISHED, _CLOSE_WAIT = "01", "08"


def _sockets() -> Counter[str]:
    """This process's TCP sockets by their state, as Linux numbers it."""
    lines = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    states = {f"socket:[{line[9]}]": line[3] for line in lines}
    mine = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            mine.append(os.readlink(f"/proc/self/fd/{entry}"))
    return Counter(states[name] for name in mine if name in states)


def _held(engine: Rig) -> dict[str, int]:
    scheduler = engine.scheduler
    blocks, connector = scheduler.kv_cache_manager.block_pool, scheduler.connector
    sockets = _sockets()
    closed, connected = sockets[_CLOSE_WAIT], sockets[_ESTABLISHED]
    found = {
        "file descriptors": len(os.listdir("/proc/self/fd")) - closed - connected,
        CLOSED: closed,
        CONNECTED: connected,
        "threads": len(os.listdir("/proc/self/task")),
        "Python threads": threading.active_count(),
        "blocks in use": blocks.num_gpu_blocks - 1 - blocks.get_num_free_blocks(),
        "renewed leases": len(engine.client.care.held),
    }
    return found | (_held_by_offload(connector) if engine.way == "offload" else _held_by_store(connector, scheduler))


def _held_by_offload(connector: Any) -> dict[str, int]:
    pool, stock = connector._tier.pool, connector.connector_scheduler
    host = stock.manager.primary_tier
    return {
        "requests": len(stock._req_status),
        "jobs": len(pool.jobs),
        "chunks in use": host._num_allocated_chunks - len(host._free_list) - host._num_evictable_cache_chunks,
        "lookups": 0 if pool._lookups is None else len(pool._lookups),
        "held keys": len(pool.holds),
        "sessions": len(pool.sessions),
        "waiting requests": len(connector._prefetcher),
    }


def _held_by_store(connector: Any, scheduler: Any) -> dict[str, int]:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    part, worker = connector._part.scheduler, get_kv_transfer_group()._mover.worker
    return {
        "requests": len(part._requests) + len(part._loading) + len(part._ordered),
        "jobs": len(part._pinned) + part._pins + len(worker._storing) + len(worker._loading) + len(worker._unsent),
    }
