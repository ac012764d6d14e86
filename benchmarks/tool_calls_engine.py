"""Calls by a model with random weights on the real engine: how many break their schema, with stock's tags and ours.

Random weights say whatever the grammar allows, so this measures whether text that the grammar allows can come out
wrong. One ``vllm serve`` on the CPU, with the plugin's tags and its parser glm47_safe, answers requests of all kinds:
forced and auto, streamed and not, single and parallel, with thinking. For comparison the same server gets the same
requests with vLLM's own tags (of all schemas, as ``--tool-strict-level parameter`` and Dynamo send them) as plain
constraints, and vLLM's own parser reads what comes out.

Usage: ``python benchmarks/tool_calls_engine.py --calls 500 [--json]``
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tool_call_requests import Answer, Kind, ask, body_of, fault_of, kinds

from glm53.local.processes import free_ports

ENVIRONMENT = {
    "DYNAMO_STRUCTURAL_TAGS": "enforce",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_DSA": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    # Without it each of the three processes imports vLLM anew.
    "VLLM_WORKER_MULTIPROCESSING_METHOD": "fork",
}
#: Added to the logits of markers: enough that a model with random weights ends a thought and begins a call now and
#: then. Where the grammar forbids a marker it has no effect.
BIAS = {"</think>": 6.0, "<tool_call>": 5.0, "</arg_value>": 3.0, '"': 3.0, "]": 2.0, "}": 2.0}
TOKENS = 700


@dataclass
class Count:
    """Outcomes of many requests. faults: what was wrong with the first invalid calls."""

    requests: int = 0
    valid: int = 0
    invalid: int = 0
    refused: int = 0
    cut: int = 0
    silent: int = 0
    """Forced, ended by the engine itself, and yet without a call."""
    astray: int = 0
    """Answers with a call begun inside the reasoning, where no grammar holds it."""
    deltas: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return self.valid + self.invalid

    def join(self, other: Count) -> None:
        """Add another count to this one."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def add(self, kind: Kind, answer: Answer) -> None:
        """Judge one answer."""
        self.requests += 1
        self.deltas += answer.deltas
        codes = {note["code"] for note in answer.notes}
        self.astray += bool(codes & {"marker_as_text", "call_before_think_end", "call_in_reasoning"})
        if answer.error:
            self.refused += 1
            self.faults.append(answer.error)
            return
        for name, arguments in answer.calls:
            fault = fault_of(name, arguments)
            self.valid += fault is None
            self.invalid += fault is not None
            if fault is not None:
                self.faults.append(f"{name} {arguments[:150]}: {fault}")
        if answer.finish_reason == "length":
            self.cut += 1
        elif not answer.calls and kind.choice != "auto":
            self.silent += 1
            self.faults.append(f"{kind}: no call, content {answer.content[:100]!r}")


@contextmanager
def server(
    model: Path, log: Path, arguments: Iterable[str] = (), environment: dict[str, str] | None = None
) -> Iterator[str]:
    """A ``vllm serve`` with the plugin on loopback; yields its address.

    Raises RuntimeError with the end of its log if it does not start.
    """
    [port] = free_ports(1, "127.0.0.1")
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--served-model-name", "glm"),
        *("--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--dtype", "float32"),
        *("--max-model-len", "4096", "--max-num-seqs", "16", "--enable-auto-tool-choice"),
        *("--tool-call-parser", "glm47_safe", "--reasoning-parser", "glm45", *arguments),
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=os.environ | ENVIRONMENT | (environment or {}), stdout=out, stderr=out, start_new_session=True
        )
    try:
        _wait(process, f"http://127.0.0.1:{port}", log)
        yield f"http://127.0.0.1:{port}"
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and its engine."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, kind)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
            return


def _wait(process: subprocess.Popen[bytes], url: str, log: Path, patience: float = 300) -> None:
    until = time.monotonic() + patience
    while process.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.3)
    raise RuntimeError(
        "no server; its log ends with:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-30:])
    )


class Stock:
    """vLLM's own tags and parser for the same requests."""

    def __init__(self, model: Path) -> None:
        from vllm.parser.parser_manager import ParserManager
        from vllm.tokenizers import get_tokenizer

        self.tokenizer = get_tokenizer(str(model))
        self._parsers = ParserManager.get_parser(tool_parser_name="glm47", enable_auto_tools=True)

    def ask(self, url: str, kind: Kind, body: dict[str, Any]) -> Answer:
        """The answer under vLLM's tag, read by vLLM's parser."""
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.tool_parsers.structural_tag_registry import get_model_structural_tag
        from vllm.tool_parsers.tool_strict_level import ToolStrictLevel

        request = ChatCompletionRequest.model_validate({**body, "stream": False})
        tag = get_model_structural_tag(
            "glm_4_7", request.tools, request.tool_choice, False, strict_level=ToolStrictLevel.PARAMETER
        )
        assert tag is not None
        # With a field that it does not know the plugin's hook passes the tag on as it is.
        constraint = json.dumps({**tag.model_dump(), "as_it_is": True})
        plain = {
            key: value for key, value in body.items() if key not in ("tools", "tool_choice", "parallel_tool_calls")
        }
        answer = ask(url, {**plain, "stream": False, "structured_outputs": {"structural_tag": constraint}})
        if not answer.error:
            found = self._parsers(self.tokenizer, request.tools).tool_parser.extract_tool_calls(answer.content, request)
            answer.calls = [(call.function.name, call.function.arguments) for call in found.tool_calls]
        return answer


def measure(count: int, seed: int, send: Callable[[Kind, int], Answer], clients: int = 16) -> Count:
    """Send requests of so many kinds, some at a time, and judge the answers."""
    found = Count()
    chosen = list(kinds(count, seed))
    with ThreadPoolExecutor(clients) as pool:
        for kind, answer in zip(chosen, pool.map(send, chosen, range(seed, seed + count)), strict=True):
            found.add(kind, answer)
    return found


def run(url: str, model: Path, calls: int, *, stock_calls: int | None = None, size: int = 64) -> dict[str, Count]:
    """At least so many calls with the plugin's tags, and with stock's, in turns of `size` requests.

    A request has one, several or no calls; after 20 requests a call it gives up.
    """
    stock = Stock(model)
    bias = {str(stock.tokenizer.get_vocab()[marker]): value for marker, value in BIAS.items()}

    def ours(kind: Kind, seed: int) -> Answer:
        return ask(url, body_of(kind, seed, bias, TOKENS))

    def theirs(kind: Kind, seed: int) -> Answer:
        return stock.ask(url, kind, body_of(kind, seed, bias, TOKENS))

    found = {"ours": Count(), "stock": Count()}
    wanted = {"ours": calls, "stock": calls if stock_calls is None else stock_calls}
    seed = 0
    while seed < 20 * calls and any(found[side].calls < wanted[side] for side in found):
        for side, send in (("ours", ours), ("stock", theirs)):
            if found[side].calls < wanted[side]:
                found[side].join(measure(size, seed, send))
                print(f"{side}: {found[side].calls} calls, {found[side].invalid} invalid", file=sys.stderr, flush=True)
        seed += size
    return found


def counters(url: str) -> dict[str, float]:
    """The plugin's counters at ``/metrics`` that are not zero."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    found = (line.rpartition(" ") for line in lines if line.startswith("dynamo_structural_tags_"))
    return {
        name: float(value)
        for name, _, value in found
        if float(value) and "_bucket" not in name and "_created" not in name
    }


def main(argv: list[str] | None = None) -> int:
    """Print the table; 1 if a call with the plugin's tags was invalid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=500, help="with the plugin's tags, and as many with stock's")
    parser.add_argument("--model", type=Path, help="a model folder; without it a small one is made")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    chosen = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        model = chosen.model
        if model is None:
            from glm53.model import make

            model = Path(folder) / "model"
            make(model, layers=2)
        start = time.monotonic()
        with server(model, Path(folder) / "server.log") as url:
            found = run(url, model, chosen.calls)
            told = counters(url)
        seconds = time.monotonic() - start
    if chosen.json:
        print(json.dumps({"seconds": seconds, "counters": told} | {k: vars(v) for k, v in found.items()}, indent=2))
    else:
        names = ("requests", "valid", "invalid", "refused", "cut", "silent", "astray", "deltas")
        print(f"| Tags | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
        for side, count in found.items():
            print(f"| {side} | {' | '.join(str(getattr(count, name)) for name in names)} |")
        for side, count in found.items():
            kinds_of = Counter(fault.partition(": ")[2][:60] for fault in count.faults).most_common(5)
            print(f"{side}: {kinds_of}")
        print(f"{seconds:.0f} s; {told}")
    ours = found["ours"]
    return int(any((ours.invalid, ours.silent, ours.refused, ours.astray)))


if __name__ == "__main__":
    sys.exit(main())
