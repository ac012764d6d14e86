"""What a hit in the DRAM tier saves, and what a dead master costs: no tier, vLLM's own connector, and ours, in one run.

Each way runs in a process of its own with a small model of GLM-5.3's shape on CPU, on a master and pool of its own on
loopback. Time to first token, in milliseconds: ``computed`` of prompts that nobody has seen; ``hit`` of the same ones
once the engine's own cache is empty; ``gap`` the longest step of a running request before the master is killed, and
after that while another one arrives; ``after death`` of three short ones that arrive then, one after the other.

Usage: ``python benchmarks/tier_connector.py [--json] [--tokens N] [--prompts N]``
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tier_rig import ENVIRONMENT, prompt

from glm53.local.processes import free_ports
from mooncake_tier.node.processes import Node
from mooncake_tier.node.settings import NodeSettings

WAYS = {"none": "no tier", "stock": "vLLM's MooncakeStoreConnector", "tier": "TierStoreConnector"}
#: Tokens of the requests that arrive when the master is dead: so few that computing them is a short step.
_SHORT = 130


class Engine:
    """An engine that is stepped by hand."""

    def __init__(self, model: str, transfer: dict[str, Any] | None) -> None:
        from vllm import LLM

        self.llm = LLM(
            model=model,
            dtype="float32",
            block_size=64,
            max_model_len=4096,
            kv_cache_memory_bytes=256 << 20,
            enforce_eager=True,
            skip_tokenizer_init=True,
            kv_transfer_config=transfer,
        )
        self.engine = self.llm.llm_engine
        self._count = 0

    def add(self, prompt: list[int], tokens: int) -> str:
        """Add a request; its name."""
        from vllm import SamplingParams

        name = f"request-{self._count}"
        self._count += 1
        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        self.engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        return name

    def first_token(self, name: str) -> list[float]:
        """Step until a request has a token; the seconds of each step."""
        steps, began = [], time.perf_counter()
        while time.perf_counter() - began < 120:
            at = time.perf_counter()
            outputs = self.engine.step()
            steps.append(time.perf_counter() - at)
            if any(output.request_id == name for output in outputs):
                return steps
        return steps

    def ttft(self, prompt: list[int]) -> float:
        """Milliseconds to the first token of a request, the only one of it."""
        return 1e3 * sum(self.first_token(self.add(prompt, 1)))

    def settle(self) -> None:
        """Step as an idle engine does, until everything is stored, and empty the engine's cache."""
        scheduler = self.engine.engine_core.engine_core.scheduler
        until = time.monotonic() + 60
        while scheduler.connector is not None and scheduler.connector.has_pending_push_work():
            self.engine.step()
            if time.monotonic() > until:
                raise RuntimeError("blocks were not stored within 60 s")
        if not self.engine.reset_prefix_cache():
            raise RuntimeError("the engine's cache is in use")


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """Prompts of byte tokens without a pattern."""
    return [prompt(length, 1000 * seed + number) for number in range(count)]


def measure(way: str, model: str, master: str, master_pid: int, count: int, length: int) -> dict[str, Any]:
    """Every figure of one way, in this process."""
    engine = Engine(model, _transfer(way, master))
    engine.ttft(prompts(1, length, seed=1)[0])  # what is made once, is made now
    engine.settle()
    asked = prompts(count, length, seed=2)
    computed = [engine.ttft(one) for one in asked]
    hits = []
    for _ in range(3):
        engine.settle()
        hits.append([engine.ttft(one) for one in asked])
    engine.settle()

    running = engine.add(prompts(1, 64, seed=3)[0], 3000)
    engine.first_token(running)
    before = [sum(engine.first_token(running)) for _ in range(40)]
    os.kill(master_pid, signal.SIGKILL)
    after, waits = [], []
    for one in prompts(3, _SHORT, seed=4):
        steps = engine.first_token(engine.add(one, 1))
        after += steps
        waits.append(1e3 * sum(steps))
    return {
        "computed_ms": statistics.median(computed),
        "hit_ms": statistics.median(min(one) for one in zip(*hits, strict=True)),
        "longest_step_before_ms": 1e3 * max(before),
        "longest_step_after_ms": 1e3 * max(after),
        "after_death_ms": waits,
    }


def _transfer(way: str, master: str) -> dict[str, Any] | None:
    if way == "none":
        return None
    common: dict[str, Any] = {"kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
    if way == "stock":
        return {"kv_connector": "MooncakeStoreConnector"} | common
    return {
        "kv_connector": "TierStoreConnector",
        "kv_connector_module_path": "mooncake_tier.store_connector",
        "kv_connector_extra_config": {"mooncake_tier": {"master": master}},
    } | common


def run(way: str, model: Path, count: int, length: int, folder: Path) -> dict[str, Any]:
    """Start a node and the process that measures."""
    rpc, metrics, pool = free_ports(3, "127.0.0.1")
    settings = NodeSettings(rpc_port=rpc, metrics_port=metrics, pool_port=pool, pool_bytes=1 << 30, lease_s=10.0)
    node = Node(settings, folder / way, open_ports=True)
    node.start()
    config = folder / f"{way}.json"
    config.write_text(
        json.dumps(
            {
                "metadata_server": "P2PHANDSHAKE",
                "master_server_address": settings.store.master,
                "protocol": "tcp",
                "device_name": "",
                "mode": "standalone-store",
                "global_segment_size": 0,
                "local_buffer_size": 64 << 20,
            }
        )
    )
    try:
        given = [way, str(model), settings.store.master, str(node.processes["master"].pid), str(count), str(length)]
        done = subprocess.run(
            [sys.executable, __file__, "--measure", *given],
            env=os.environ | ENVIRONMENT | {"MOONCAKE_CONFIG_PATH": str(config)},
            capture_output=True,
            text=True,
            timeout=900,
        )
    finally:
        node.stop()
    if done.returncode:
        raise RuntimeError(f"{way} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure every way and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tokens", type=int, default=1900, help="tokens of a prompt")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--measure", nargs=6, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        way, model, master, pid, count, length = given.measure
        print(json.dumps(measure(way, model, master, int(pid), int(count), int(length))), flush=True)
        os._exit(0)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        subprocess.run([sys.executable, "-m", "glm53.model", "make", str(model)], check=True, capture_output=True)
        found = {way: run(way, model, given.prompts, given.tokens, Path(folder)) for way in WAYS}
    if given.json:
        print(json.dumps(found))
        return
    print(f"{'ms':32} {'computed':>9} {'hit':>9} {'gap':>6} {'gap dead':>9}  after death")
    for way, one in found.items():
        waits = ", ".join(f"{wait:.0f}" for wait in one["after_death_ms"])
        gaps = f"{one['longest_step_before_ms']:6.0f} {one['longest_step_after_ms']:9.0f}"
        print(f"{WAYS[way]:32} {one['computed_ms']:9.0f} {one['hit_ms']:9.0f} {gaps}  {waits}")


if __name__ == "__main__":
    main()
