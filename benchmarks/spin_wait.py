"""Why a waiting vLLM worker stalls on a busy machine: the cost of a loop of sched_yield() in virtual run time.

For about a second each, one process waits in a loop of ``os.sched_yield()``, as vLLM's message queues do, or in a
loop of short sleeps, as the patch ``spin-wait-sleeps`` makes them, alone on one core. Printed is by how much its
virtual run time grows per second of CPU it used; the scheduler runs the process with the least, so what is above 1
is a debt that the process pays in waiting as soon as another one wants the core.

Usage: ``python benchmarks/spin_wait.py [--json]``. Needs /proc/PID/sched (CONFIG_SCHED_DEBUG).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable

SECONDS = 1.0


def _virtual_ms() -> float:
    """This process's virtual run time in milliseconds."""
    with open("/proc/self/sched", encoding="ascii") as file:
        for line in file:
            if line.startswith("se.vruntime"):
                return float(line.rpartition(":")[2])
    raise SystemExit("/proc/self/sched has no se.vruntime: this kernel does not show it")


def _measure(wait: Callable[[], None]) -> dict[str, float]:
    began, used, virtual = time.monotonic(), time.process_time(), _virtual_ms()
    turns = 0
    while time.monotonic() - began < SECONDS:
        wait()
        turns += 1
    cpu = time.process_time() - used
    grown = (_virtual_ms() - virtual) / 1e3
    return {"turns": turns, "cpu_s": round(cpu, 3), "virtual_s": round(grown, 3), "ratio": round(grown / cpu, 2)}


def main() -> None:
    """Print both loops and their ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    loops = {"sched_yield": _measure(os.sched_yield), "sleep_50us": _measure(lambda: time.sleep(50e-6))}
    if as_json:
        print(json.dumps({"kernel": platform.release(), **loops}))
        return
    print(f"Linux {platform.release()}")
    for name, row in loops.items():
        print(
            f"{name:12} {row['turns']:9.0f} turns {row['cpu_s']:6.3f} s CPU {row['virtual_s']:10.3f} s virtual"
            f"  = {row['ratio']:.2f} per CPU second"
        )


if __name__ == "__main__":
    main()
