"""Time to the first token and between tokens of vLLM's CPU engine: without a tier, with stock's connectors, with ours.

Every connector serves the same small GLM-shaped model in a process of its own, on a master and pool of its own:

- cold and hit: one prompt on an idle engine, computed and then loaded from the store.
- full batch: a prompt that uses every token of several steps, and eight prompts queued behind it that are in the store.
  Waits are counted from their arrival, and from the end of the first prompt, when their turn comes.
- faults: a request decodes while another arrives each second; then the master is killed.

``--delay`` adds seconds to every get of a store, as a larger block or a slower network would: on this small model a
load takes a hundredth of a step, on GPUs several steps.

Usage: ``python benchmarks/tier_offload.py [--json] [--delay S] [--only NAME ...] [--no-faults]``
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tier_rig
from tier_rig import prompt

from glm53.local.processes import free_ports
from mooncake_tier.node.processes import Node
from mooncake_tier.node.settings import NodeSettings

CHUNK, BUDGET, BATCH_STEPS, TOKENS = 128, 256, 8, 400
#: Seven chunks and a turn's own tokens: 4 % of the prompt, as of agents that append 6,000 to 140,000.
PROMPT = 7 * CHUNK + 36
#: Requests in the queue behind the full batch.
WAITING = 8
NAMES = ("no tier", "ours", "ours, no prefetch", "stock offload, files", "stock store connector")


def transfer(name: str, node: NodeSettings, folder: Path) -> dict[str, Any] | None:
    """``--kv-transfer-config`` of a connector."""
    if name == "no tier":
        return None
    if name == "stock store connector":
        file = folder / "mooncake.json"
        file.write_text(
            json.dumps(
                {
                    "metadata_server": "P2PHANDSHAKE",
                    "master_server_address": node.store.master,
                    "protocol": "tcp",
                    "mode": "standalone-store",
                    "global_segment_size": 0,
                    "local_buffer_size": 64 << 20,
                }
            )
        )
        os.environ["MOONCAKE_CONFIG_PATH"] = str(file)
        return {
            "kv_connector": "MooncakeStoreConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {},
        }
    if name.startswith("ours"):
        section = {"master": node.store.master, "prefetch": name == "ours", "load_threads": 4}
        return tier_rig.transfer("offload", section, 256 << 20)
    extra: dict[str, Any] = {
        "spec_name": "CpuTieringSpec",
        "spec_module_path": "mooncake_tier.cpu_platform",
        "cpu_bytes_to_use": 256 << 20,
        "block_size": CHUNK,
    }
    extra["secondary_tiers"] = [{"type": "fs", "root_dir": str(folder / "chunks")}]
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def slow_down(llm: Any, name: str, delay: float) -> None:
    """Add seconds to each get from the store."""

    def slower(call: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*args: Any, **kwargs: Any) -> Any:
            time.sleep(delay)
            return call(*args, **kwargs)

        return slow

    if name.startswith("ours"):
        native = _scheduler(llm).connector._tier.pool.client._native
        native.get = slower(native.get)
    elif name == "stock store connector":
        from mooncake.store import MooncakeDistributedStore as Store

        Store.batch_get_into_multi_buffers = slower(Store.batch_get_into_multi_buffers)
    elif name == "stock offload, files":
        from vllm.v1.kv_offload.tiering.fs import manager

        manager.batch_load_block = slower(manager.batch_load_block)


def _scheduler(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler


class Clocked:
    """An engine that is stepped here, with the time of every token of every request."""

    def __init__(self, llm: Any) -> None:
        self.llm, self.times = llm, {}  # type: ignore[var-annotated]

    def add(self, name: str, ids: list[int], tokens: int) -> None:
        from vllm import SamplingParams

        self.times[name] = [time.monotonic()]
        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        self.llm.llm_engine.add_request(name, {"prompt_token_ids": ids}, sampling)

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Step until nothing is left to do, stores included, or something is true."""
        while not until() if until else _scheduler(self.llm).has_requests():
            for out in self.llm.llm_engine.step():
                seen = self.times[out.request_id]
                now = time.monotonic()
                seen.extend([now] * (len(out.outputs[0].token_ids) + 1 - len(seen)))
            if not _scheduler(self.llm).running:
                time.sleep(0.001)

    def first(self, name: str) -> float:
        return float(self.times[name][1] - self.times[name][0])

    def forget(self) -> None:
        """Empty the caches of GPU and host; the store stays."""
        assert _scheduler(self.llm).reset_prefix_cache()
        offloading: Any = getattr(_scheduler(self.llm).connector, "connector_scheduler", None)
        if hasattr(getattr(offloading, "manager", None), "secondary_tiers"):
            offloading.manager.reset_cache()
            getattr(offloading.manager, "on_reset_flushed", lambda: None)()


def measure(name: str, model: str, delay: float, folder: Path, node: Node, with_faults: bool) -> dict[str, Any]:
    """All figures of one connector, in seconds; needs an engine's process of its own."""
    from vllm import LLM

    llm = LLM(
        model=model,
        kv_transfer_config=transfer(name, node.settings, folder),
        dtype="float32",
        max_model_len=4096,
        max_num_batched_tokens=BUDGET,
        kv_cache_memory_bytes=128 << 20,
        max_num_seqs=16,
        enforce_eager=True,
    )
    engine = Clocked(llm)
    found: dict[str, Any] = {}
    prompts = [prompt(PROMPT, seed) for seed in range(WAITING + 1)]
    engine.add("warm up", prompt(PROMPT, 50), 4)  # also opens the store
    engine.run()
    for number, ids in enumerate(prompts):
        engine.add(f"cold {number}", ids, 1)
        engine.run()
    found["cold"] = statistics.median(engine.first(f"cold {number}") for number in range(WAITING + 1))
    time.sleep(2)
    engine.forget()
    slow_down(llm, name, delay)
    engine.add("hit", prompts[0], 1)
    engine.run()
    found["hit"] = engine.first("hit")
    engine.add("running", prompt(BATCH_STEPS * BUDGET, 60), 1)
    engine.run(lambda: bool(_scheduler(llm).running))
    for number in range(1, WAITING + 1):
        engine.add(f"waiting {number}", prompts[number], 1)
    engine.run()
    turn = engine.times["running"][1]
    found["waited"] = [engine.first(f"waiting {number}") for number in range(1, WAITING + 1)]
    found["after its turn"] = [engine.times[f"waiting {number}"][1] - turn for number in range(1, WAITING + 1)]
    if with_faults:
        found |= faults(engine, node)
    llm.llm_engine.engine_core.shutdown()
    return found


def faults(engine: Clocked, node: Node) -> dict[str, Any]:
    """Time between the tokens of a request, with new requests beside it, with and without a master."""
    found = {}
    for state in ("well", "master killed"):
        if state == "master killed":
            os.kill(node.processes["master"].pid, signal.SIGKILL)
        name, began = f"decoding {state}", time.monotonic()
        engine.add(name, prompt(40, 70 + len(state)), TOKENS)
        for beside in range(6):
            engine.run(functools.partial(_over, engine, name, time.monotonic() + 1.0))
            engine.add(f"beside {state} {beside}", prompt(300, 80 + beside + len(state)), 1)
        engine.run(lambda: not _scheduler(engine.llm).has_unfinished_requests())
        gaps = [b - a for a, b in zip(engine.times[name][1:], engine.times[name][2:], strict=False)]
        found[state] = {
            "median gap": statistics.median(gaps),
            "longest gap": max(gaps),
            "seconds": time.monotonic() - began,
            "longest first token": max(engine.first(f"beside {state} {beside}") for beside in range(6)),
        }
    return found


def _over(engine: Clocked, name: str, until: float) -> bool:
    """Whether it is time, or the request has all its tokens."""
    return time.monotonic() > until or len(engine.times[name]) > TOKENS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--delay", type=float, default=1.0, help="seconds added to each get")
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES, help="connectors to measure")
    parser.add_argument("--no-faults", action="store_true", help="leave out what a dead master does")
    parser.add_argument("--child", nargs=2, metavar=("NAME", "MODEL"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        rpc, metrics, pool = free_ports(3, "127.0.0.1")
        settings = NodeSettings(
            rpc_port=rpc,
            metrics_port=metrics,
            pool_port=pool,
            pool_bytes=512 << 20,
            lease_s=60.0,
        )
        with tempfile.TemporaryDirectory() as folder:
            node = Node(settings, Path(folder))
            node.start()
            try:
                print(
                    "RESULT "
                    + json.dumps(
                        measure(given.child[0], given.child[1], given.delay, Path(folder), node, not given.no_faults)
                    ),
                    flush=True,
                )
            finally:
                node.stop()
        return
    environment = os.environ | {
        "VLLM_CPU_DSA": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    report = {}
    with tempfile.TemporaryDirectory() as folder:
        from glm53.model import make

        make(Path(folder) / "model", context=4096)
        for name in given.only:
            command = [sys.executable, __file__, "--delay", str(given.delay), "--child", name, f"{folder}/model"]
            command += ["--no-faults"] * given.no_faults
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
            results = [line[7:] for line in done.stdout.splitlines() if line.startswith("RESULT ")]
            if not results:
                raise SystemExit(f"{name}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
            report[name] = json.loads(results[0])
    if given.json:
        print(json.dumps(report, indent=1))
        return
    print(f"{'':24}{'cold':>7}{'hit':>7}  {'queued: first, median, last':>27}  {'after its turn':>23}")
    for name, one in report.items():
        spans = (f"{_span(one[key]):>{width}}" for key, width in (("waited", 27), ("after its turn", 23)))
        print(f"{name:24}{one['cold']:7.2f}{one['hit']:7.2f}  {'  '.join(spans)}")
    for name, one in report.items():
        for state in ("well", "master killed") if "well" in one else ():
            seen = one[state]
            print(
                f"{name}, {state}: median gap {seen['median gap']:.3f}, longest {seen['longest gap']:.2f}, "
                f"longest first token of a new request {seen['longest first token']:.2f}"
            )


def _span(values: list[float]) -> str:
    return f"{values[0]:.2f}, {statistics.median(values):.2f}, {values[-1]:.2f}"


if __name__ == "__main__":
    main()
