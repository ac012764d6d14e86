"""What the DRAM tier gives: one prompt computed, found in the GPU's cache, and found in the tier after its eviction."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass
from typing import Any

import httpx

from glm53.deployment import Deployment
from glm53.local.stack import Progress, Stack, StackError, running_stack

__all__ = ["Asked", "drive", "tokens_by_rank", "tokens_by_source"]

#: vLLM's names of where a prompt's tokens came from, and ours.
_SOURCES = {"local_compute": "computed", "local_cache_hit": "gpu", "external_kv_transfer": "tier"}
_TOKENS = 16
_SETTLE_S = 30.0


@dataclass(frozen=True)
class Asked:
    """One answer. computed, gpu, tier: prompt tokens by where prefill had them from. loaded_bytes: from the store."""

    what: str
    computed: int
    gpu: int
    tier: int
    loaded_bytes: int
    ttft_s: float
    text: str


def drive(deployment: Deployment, run_dir: Any, progress: Progress) -> dict[str, Any]:
    """Start the deployment with one prefill worker, ask, and return the part of the report. Raises StackError.

    The prompt is asked for, asked for again, and asked for once more after other prompts have taken its place in host
    memory and prefill's own cache was reset, as it would be in a busy cluster.
    """
    assert deployment.tier is not None
    with running_stack(Stack(deployment, run_dir / "tier"), progress) as stack:
        status = stack.status_url("prefill-0")
        prompt = _words("first", deployment.engine.max_model_len // 2)
        asked = [_ask(stack, status, "first time", prompt), _ask(stack, status, "again", prompt)]
        # Each data-parallel rank has a buffer of its own, and the router chooses among them.
        rows = int(deployment.tier.buffer) // _bytes_per_token(status) * deployment.roles.prefill.data_parallel
        for number in range(1 + 2 * rows // len(prompt)):
            _ask(stack, status, "another", _words(f"other {number}", len(prompt)))
        _stored(status)
        httpx.post(f"{status}/engine/flush_cache", json={}, timeout=60, trust_env=False).raise_for_status()
        asked.append(_ask(stack, status, "after eviction", prompt))
        ranks = tokens_by_rank(_metrics(status))
    first, again, evicted = asked
    progress(f"tier: {evicted.tier} of {evicted.tier + evicted.computed} prompt tokens came from the DRAM tier")
    return {
        "asked": [asdict(one) for one in asked],
        "ranks": ranks,
        "outputs_equal": first.text == again.text == evicted.text,
        "from_the_tier": evicted.tier > 0 and evicted.loaded_bytes > 0 and evicted.gpu == 0,
    }


def _words(name: str, length: int) -> str:
    """About `length` characters, which are tokens, that begin differently for each name."""
    return (f"{name}: " + f"the {name} prompt is kept in blocks of memory. " * length)[:length]


def _ask(stack: Stack, status: str, what: str, prompt: str) -> Asked:
    before, began = _figures(status), time.perf_counter()
    ttft, text = 0.0, ""
    with httpx.stream(
        "POST",
        f"{stack.url}/v1/completions",
        json={
            "model": stack.deployment.model.served_name,
            "prompt": prompt,
            "max_tokens": _TOKENS,
            "temperature": 0,
            "stream": True,
            "ignore_eos": True,
        },
        timeout=600,
        trust_env=False,
    ) as answer:
        if answer.status_code != 200:
            raise StackError(f"a completion got HTTP {answer.status_code}: {answer.read()[:500]!r}")
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                ttft = ttft or time.perf_counter() - began
                text += line
    after = _figures(status)
    tokens = {ours: int(after.get(ours, 0) - before.get(ours, 0)) for ours in _SOURCES.values()}
    loaded = int(after.get("loaded", 0) - before.get("loaded", 0))
    said = "".join(re.findall(r'"text":"((?:[^"\\]|\\.)*)"', text))
    return Asked(what, **tokens, loaded_bytes=loaded, ttft_s=round(ttft, 3), text=said)


def _stored(status: str) -> None:
    """Wait until nothing is on its way to the store."""
    until = time.monotonic() + _SETTLE_S
    while _figures(status).get("storing", 0) > 0:
        if time.monotonic() > until:
            raise StackError(f"blocks still wait to be stored after {_SETTLE_S:.0f} s.")
        time.sleep(0.2)


def _bytes_per_token(status: str) -> int:
    """Bytes of a token in prefill's cache, by what vLLM says of the cache."""
    found = re.search(r"vllm:cache_config_info\{(.*)\}", _metrics(status))
    labels = dict(re.findall(r'(\w+)="([^"]*)"', found[1])) if found else {}
    return int(labels["kv_cache_memory_bytes"]) // int(labels["kv_cache_size_tokens"])


def _figures(status: str) -> dict[str, float]:
    text = _metrics(status)
    found: dict[str, float] = dict(tokens_by_source(text))
    for name, ours in (("mooncake_tier_loaded_bytes_total", "loaded"), ("mooncake_tier_waiting", "storing")):
        for labels, value in re.findall(rf"^vllm:{name}\{{(.*)\}} (\S+)$", text, re.MULTILINE):
            if ours == "loaded" or 'kind="store"' in labels:
                found[ours] = found.get(ours, 0) + float(value)
    return found


def tokens_by_source(metrics: str) -> dict[str, int]:
    """Prompt tokens so far, computed, from the GPU's cache and from the tier, by a worker's ``/metrics``."""
    ranks = tokens_by_rank(metrics).values()
    return {source: sum(rank[source] for rank in ranks) for source in _SOURCES.values()}


def tokens_by_rank(metrics: str) -> dict[str, dict[str, int]]:
    """The same for each data-parallel rank of the worker, by its number."""
    found: dict[str, dict[str, int]] = {}
    for text, value in re.findall(r"^vllm:prompt_tokens_by_source_total\{(.*)\} (\S+)$", metrics, re.MULTILINE):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', text))
        if (source := _SOURCES.get(labels.get("source", ""))) is not None:
            rank = found.setdefault(labels.get("engine", "0"), dict.fromkeys(_SOURCES.values(), 0))
            rank[source] += int(float(value))
    return found


def _metrics(status: str) -> str:
    return httpx.get(f"{status}/metrics", timeout=30, trust_env=False).raise_for_status().text
