"""Everything about NVFP4 rows that only a GPU can show, in one command and bounded time:

    python benchmarks/nvfp4_gpu.py [--budget-s 600] [--json report.json] [--only numerics decode prefill]

1. What the device is, and which kernels can run on it; each that cannot is named with its reason.
2. Numerics: rows byte for byte against the codec, attention against float64. A figure over its bound fails the run.
3. Decode: 1 to 128 tokens in a launch, on a cold and on a warm L2 cache, against FlashInfer's op, FlashMLA and
   TRTLLM-gen. ``floor`` is the time in which the device could read the rows that the launch selects, once, at the
   bandwidth that it was measured to copy with; ``of best`` is a kernel's cold time over that of the best of this
   plugin's.
4. Prefill: microseconds of a row staged and of a token attended to, whole batches direct and staged, and the
   `flashinfer_nvfp4.prefill_plan.Costs` of this device.

On Hopper the Triton and sm_90a kernels run, and FlashMLA on its FP8 rows. The first run compiles, for some minutes.

Exit code: 0 when all that ran is right, 1 when a figure is not, 2 for wrong arguments, 3 without a GPU on which one of
this plugin's kernels runs.
``--device cpu`` runs small sizes in Triton's interpreter: that tries this program out, and its times mean nothing.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import sys
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from nvfp4_clock import Budget, Clock, floor_us, ratio, table
from nvfp4_launches import BLOCK, KERNELS, OWN, SCALE, Launch, Unavailable, Work, tried
from nvfp4_numerics import OWN_PERCENT, STOCK_PERCENT, Check, checks
from nvfp4_prefill import Prefill, TorchKernel, measured_costs, stock_kernel

from flashinfer_nvfp4.codec import decode_rows, encode_rows
from flashinfer_nvfp4.errors import LaunchRefused
from flashinfer_nvfp4.plan import PREFILL_WORKSPACE_BYTES
from flashinfer_nvfp4.prefill_plan import COSTS, Costs
from flashinfer_nvfp4.rowformat import LATENT, ROPE
from flashinfer_nvfp4.staging import ROWS
from flashinfer_nvfp4.workspace import plan_layout

SECTIONS = ["numerics", "decode", "prefill"]
TOKENS = [1, 2, 4, 8, 15, 16, 25, 32, 35, 45, 47, 64, 96, 128]
OLDEST = (9, 0)
NO_DEVICE = 3
COLUMNS = ["heads", "tokens", "kernel", "cold_us", "warm_us", "floor_us", "of_floor", "of_best", "error_percent"]
PREFILL_COLUMNS = ["rows", "tokens", "direct_us", "staged_us", "parts", "planned", "error_percent", "mib"]


def main(arguments: list[str] | None = None) -> int:
    """Run the sections that are wanted; the exit code."""
    wanted = _parse(arguments)
    if wanted.device == "cuda" and (why := _no_device()):
        print(f"nvfp4_gpu: {why}", file=sys.stderr)
        return NO_DEVICE
    if wanted.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
        sys.path.append(str(Path(sys.prefix) / "triton"))  # where `make test` puts it
    budget = Budget(wanted.budget_s)
    clock = Clock(wanted.device, wanted.repeat)
    speed = clock.bytes_per_microsecond()
    report: dict[str, Any] = {"device": device_facts(wanted.device, speed)}
    _print(wanted, " ".join(f"{name}={value}" for name, value in report["device"].items()))
    found: list[Check] = []
    if "numerics" in wanted.only:
        found += checks(wanted.device, wanted.heads, wanted.topk, budget, wanted.kernels)
        _print(wanted, "\n".join(map(str, found)))
    if "decode" in wanted.only:
        report["decode"] = decode_times(wanted, clock, speed, budget)
        _print(wanted, table([row for row in report["decode"] if "cold_us" in row], COLUMNS))
    if "prefill" in wanted.only:
        report["prefill"], right = prefill_times(wanted, clock, speed, budget)
        found += right
        _print(wanted, json.dumps({key: value for key, value in report["prefill"].items() if key != "batches"}))
        _print(wanted, "\n".join([table(report["prefill"]["batches"], PREFILL_COLUMNS), *map(str, right)]))
    report |= {"numerics": [{**asdict(each), "passed": each.passed} for each in found], "skipped": budget.skipped}
    if budget.skipped:
        _print(wanted, f"skipped after {wanted.budget_s:g} s: {', '.join(budget.skipped)}")
    if wanted.json:
        text = json.dumps(report, indent=1)
        print(text) if wanted.json == "-" else Path(wanted.json).write_text(text + "\n")
    return exit_code(found, wanted.only, budget)


def exit_code(found: list[Check], sections: list[str], budget: Budget) -> int:
    """What the module's docstring says; a run that was cut short, or has no numerics, need not have run a kernel."""
    if not all(each.passed for each in found):
        return 1
    ran = [each for each in found if each.figure is not None]
    return 0 if ran or "numerics" not in sections or budget.skipped else NO_DEVICE


def device_facts(device: str, speed: float) -> dict[str, Any]:
    """What the device is and what is installed."""
    facts: dict[str, Any] = {"name": "cpu", "gigabytes_per_second": round(speed / 1e3, 6)}
    if device == "cuda":
        told = torch.cuda.get_device_properties(0)
        facts |= {
            "name": told.name,
            "capability": ".".join(map(str, torch.cuda.get_device_capability())),
            "multiprocessors": told.multi_processor_count,
            "l2_mib": int(getattr(told, "L2_cache_size", 0)) >> 20,
            "memory_gib": round(told.total_memory / 2**30, 1),
        }
    return facts | {name: _version(name) for name in ("torch", "triton", "flashinfer-python", "vllm")}


def decode_times(wanted: argparse.Namespace, clock: Clock, speed: float, budget: Budget) -> list[dict[str, Any]]:
    """A row for each number of heads, of tokens, and kernel; one row with the reason of a kernel that cannot run."""
    rows = _cache(wanted.slots, wanted.device)
    keys = torch.cat(decode_rows(rows), -1)
    found: list[dict[str, Any]] = []
    out: dict[tuple[int, str], str] = {}
    for heads in wanted.heads:
        for tokens in wanted.tokens:
            generator = torch.Generator().manual_seed(tokens)
            query = torch.randn(tokens, heads, LATENT + ROPE, generator=generator).bfloat16()
            chosen = [torch.randperm(wanted.slots, generator=generator)[: wanted.topk] for _ in range(tokens)]
            work = Work(query.to(wanted.device), torch.stack(chosen).int().to(wanted.device), rows, keys)
            distinct, here = work.indices.unique().numel(), []
            for name in wanted.kernels:
                if (heads, name) in out or not budget.allows(f"decode {name}, {heads} heads, {tokens} tokens"):
                    continue
                try:
                    launch = tried(name, work)
                    error, ready = launch.error(work.indices), _recorded(clock, name, launch)
                except Unavailable as why:
                    out[heads, name] = str(why)
                    found.append({"heads": heads, "kernel": name, "not_run": str(why)})
                    _print(wanted, f"{name} at {heads} heads is left out: {why}")
                    continue
                cold, warm = (round(clock.median(ready, cold=each), 2) for each in (True, False))
                floor = round(floor_us(distinct, launch.row_bytes, speed), 2)
                here.append(
                    {"heads": heads, "tokens": tokens, "kernel": name, "cold_us": cold, "warm_us": warm}
                    | {"floor_us": floor, "of_floor": ratio(cold, floor), "error_percent": round(error, 3)}
                )
            best = min((row["cold_us"] for row in here if row["kernel"] in OWN), default=None)
            found += [{**row, "of_best": ratio(row["cold_us"], best)} for row in here]
    return found


def _recorded(clock: Clock, name: str, launch: Launch) -> Any:
    """The launch as a CUDA graph; a stock kernel that cannot be recorded is left out."""
    try:
        return clock.ready(launch.call)
    except RuntimeError as error:
        if name in OWN:
            raise
        raise Unavailable(f"it cannot be recorded in a CUDA graph: {str(error).splitlines()[0][:200]}") from error


def prefill_times(
    wanted: argparse.Namespace, clock: Clock, speed: float, budget: Budget
) -> tuple[dict[str, Any], list[Check]]:
    """Microseconds of each step, the costs that they make, and whole batches, at the first number of heads; and
    whether what is staged is right."""
    heads = wanted.heads[0]
    right: list[Check] = []
    found: dict[str, Any] = {"heads": heads, "batches": []}
    kernel: Any = TorchKernel()
    try:
        if wanted.device == "cpu":
            raise Unavailable("no GPU")
        kernel = stock_kernel(wanted.device, heads, 8192 // heads)
    except Unavailable as why:
        found["not_timed"] = f"staged: {why}"
    try:
        found["direct_kernel"], direct = _direct(wanted)
    except Unavailable as why:
        return found | {"not_run": str(why)}, right
    costs: Costs = COSTS
    for rows in wanted.rows:
        if not budget.allows(f"prefill in {rows} rows"):
            continue
        prefill = Prefill(clock, _cache(rows, wanted.device), heads, wanted.topk, wanted.workspace, kernel)
        if "steps_us" not in found:
            steps = prefill.costs(min(wanted.prefill_tokens[0], rows), direct, speed)
            found["steps_us"] = {name: round(value, 5) for name, value in steps.items()}
            found["costs"] = measured_costs(steps, heads)
            costs = Costs(**found["costs"]) if found["costs"] else COSTS
        batches = prefill.batches(wanted.prefill_tokens, direct, budget, costs)
        most = OWN_PERCENT if isinstance(kernel, TorchKernel) else STOCK_PERCENT
        for row in batches:
            name = f"prefill of {row['tokens']} tokens in {row['rows']} rows, {row['parts']} parts, %"
            right.append(Check(name, row["error_percent"], most))
        found["batches"] += batches
    return found, right


def _direct(wanted: argparse.Namespace) -> tuple[str, Any]:
    """This plugin's first kernel that runs here, by name; for caches whose blocks lie in order, so positions are slots.

    Raises `Unavailable` where none does.
    """
    rows = _cache(64, wanted.device)
    query = torch.zeros(1, wanted.heads[0], LATENT + ROPE, dtype=torch.bfloat16, device=wanted.device)
    reasons = []
    for name in (each for each in wanted.kernels if each in OWN):
        try:
            tried(name, Work.of(query, torch.zeros(1, 32, dtype=torch.int32, device=wanted.device), rows))
        except Unavailable as why:
            reasons.append(f"{name}: {why}")
            continue
        return name, functools.partial(_attend, name)
    raise Unavailable("; ".join(reasons) or f"none of {', '.join(OWN)} is among --kernels")


def _attend(name: str, query: Any, positions: Any, cache: Any) -> Any:
    module = importlib.import_module(f"flashinfer_nvfp4.{'cuda_decode' if name == 'cuda' else 'kernels.decode'}")
    found = module.decode(query, cache, positions, SCALE)
    return found if name == "cuda" else found[0]


def _cache(slots: int, device: str) -> Any:
    """Rows, uint8 [slots, 352]: a pattern of 4096 random ones over and over."""
    generator = torch.Generator().manual_seed(0)
    pattern = encode_rows(torch.randn(4096, LATENT, generator=generator), torch.randn(4096, ROPE, generator=generator))
    return pattern.repeat(-(-slots // len(pattern)), 1)[:slots].to(device)


def _no_device() -> str:
    if not torch.cuda.is_available():
        return "torch sees no CUDA device; run this on a machine with an NVIDIA GPU, or try it out with --device cpu"
    if (capability := torch.cuda.get_device_capability()) < OLDEST:
        return (
            f"compute capability {capability[0]}.{capability[1]} has no kernel for these rows; allowed: 9.0 and later"
        )
    return ""


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _print(wanted: argparse.Namespace, text: str) -> None:
    print(text, file=sys.stderr if wanted.json == "-" else sys.stdout, flush=True)


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    add = parser.add_argument
    add("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="sections to run")
    add("--budget-s", type=float, default=600.0, help="seconds after which nothing new begins (default 600)")
    add("--json", metavar="FILE", help="write the report there; - for standard output, the text then goes to the other")
    add("--kernels", nargs="+", choices=list(KERNELS), default=list(KERNELS))
    add("--tokens", type=_positive, nargs="+", default=TOKENS, help="tokens in a decode launch")
    add("--heads", type=_positive, nargs="+", default=[16, 64], help="heads a GPU (default 16 64); prefill: the first")
    add("--topk", type=_positive, default=2048, help="keys a token, a multiple of 32 (default 2048)")
    add("--slots", type=_positive, default=1 << 18, help="rows in the decode cache (default 262144)")
    add("--rows", type=_positive, nargs="+", default=[16_384, 131_072, 1_048_576], help="cached rows of a prefill")
    add("--prefill-tokens", type=_positive, nargs="+", default=[1024, 128, 8192], help="new tokens of a prefill")
    add("--workspace", type=_positive, default=PREFILL_WORKSPACE_BYTES, help="bytes of the prefill workspace")
    add("--repeat", type=_positive, default=30, help="launches that a median is of (default 30)")
    add("--device", choices=["cuda", "cpu"], default="cuda")
    wanted = parser.parse_args(arguments)
    if wanted.topk % 32 or wanted.slots % BLOCK or wanted.topk > wanted.slots or any(n % BLOCK for n in wanted.rows):
        parser.error(
            f"--topk={wanted.topk}, --slots={wanted.slots}, --rows={wanted.rows}: no launch fits; allowed: a multiple "
            f"of 32, at most --slots, which like --rows is a multiple of {BLOCK}"
        )
    if wanted.json and not Path(wanted.json).parent.is_dir():
        parser.error(f"--json={wanted.json}: {Path(wanted.json).parent} is no folder; allowed: one that exists, or -")
    try:
        plan_layout(wanted.workspace, wanted.topk, wanted.heads[0], ROWS)
    except LaunchRefused as refused:
        parser.error(f"--workspace={wanted.workspace}: {refused}")
    if wanted.device == "cpu":
        wanted.kernels = ["triton"]
    return wanted


if __name__ == "__main__":
    sys.exit(main())
