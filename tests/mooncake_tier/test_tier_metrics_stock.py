"""What Prometheus reads: every figure at 0 from the start, and what a client really did."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tier_fake import FakeStore
from tier_fields import NAMESPACE
from tier_memory import Memory

from mooncake_tier.client import xxh3
from mooncake_tier.client.figures import FIGURES
from mooncake_tier.client.integrity import TRAILER_BYTES
from mooncake_tier.client.master import STATS, Master
from mooncake_tier.client.operation import Block, Outcome
from mooncake_tier.client.tier_client import TierClient
from mooncake_tier.keys import block_key

prometheus = pytest.importorskip("prometheus_client", reason="prometheus_client comes with vLLM: make env")
if xxh3.library_path() is None:
    pytest.skip("needs an xxHash library: make env, or the system's libxxhash0", allow_module_level=True)

from mooncake_tier.client.metrics import ClientCollector, PoolCollector  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mooncake_tier.md"


def _shown(registry: object) -> dict[str, float]:
    text = prometheus.generate_latest(registry).decode()
    return {name: float(value) for name, value in re.findall(r"^([a-z]\S+) (\S+)$", text, re.MULTILINE)}


def test_hits_misses_bytes_and_damage_are_shown_by_client() -> None:
    store, memory = FakeStore(), Memory(10_000)
    client = TierClient(store, NAMESPACE)
    registry = prometheus.CollectorRegistry()
    registry.register(ClientCollector({"prefill-0": client.snapshot}))
    keys = [block_key(NAMESPACE, bytes([n]) * 32) for n in range(3)]
    blocks = [Block.at(key, *memory.part(n * 1000, 1000)) for n, key in enumerate(keys)]
    before = _shown(registry)

    assert client.store(blocks[:2], 20).wait() == [Outcome.OK] * 2
    store.objects[keys[1]] = bytes(1000 + TRAILER_BYTES)
    assert client.lookup(keys, 20) == [True, True, False]
    assert client.load(blocks, 20).wait() == [Outcome.OK, Outcome.CORRUPT, Outcome.ABSENT]
    after = _shown(registry)
    assert client.close(30)

    assert set(before.values()) == {0.0}
    assert set(after) == set(before)
    changed = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    seconds = {name for name in changed if "_seconds_" in name}
    mine = 'client="prefill-0"'
    assert {name: value for name, value in changed.items() if name not in seconds} == {
        f'mooncake_tier_stores_total{{{mine},outcome="ok"}}': 2,
        f"mooncake_tier_stored_bytes_total{{{mine}}}": 2000,
        f'mooncake_tier_lookups_total{{{mine},outcome="ok"}}': 2,
        f'mooncake_tier_lookups_total{{{mine},outcome="absent"}}': 1,
        f'mooncake_tier_loads_total{{{mine},outcome="ok"}}': 1,
        f'mooncake_tier_loads_total{{{mine},outcome="corrupt"}}': 1,
        f'mooncake_tier_loads_total{{{mine},outcome="absent"}}': 1,
        f"mooncake_tier_loaded_bytes_total{{{mine}}}": 1000,
        f'mooncake_tier_corrupt_total{{{mine},fault="form"}}': 1,
        f"mooncake_tier_evicted_total{{{mine}}}": 1,
        f"mooncake_tier_remembered_keys{{{mine}}}": 1,
    }
    assert len(seconds) == 3


def test_a_pool_is_shown_as_its_master_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    said = '# TYPE x gauge\nmaster_total_capacity_bytes 67108864\nmaster_evicted_key_count 5\nmaster_x{a="b"} 3\n'
    monkeypatch.setattr(Master, "_read", lambda self, path: said)
    registry = prometheus.CollectorRegistry()
    registry.register(PoolCollector(Master("127.0.0.1", 1)))

    assert _shown(registry) == {
        "mooncake_tier_pool_capacity_bytes": 67_108_864,
        "mooncake_tier_pool_evicted_keys_total": 5,
    }


def test_a_master_that_does_not_answer_shows_nothing() -> None:
    registry = prometheus.CollectorRegistry()
    registry.register(PoolCollector(Master("127.0.0.1", 1, timeout_s=0.2)))

    assert _shown(registry) == {}


def test_the_page_lists_every_figure() -> None:
    rows = re.findall(r"^\| `(mooncake_tier_\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    shown = [figure.name + ("_total" if figure.kind == "counter" else "") for figure in FIGURES]
    assert rows == shown
    assert all(f"`{name}`" in PAGE.read_text(encoding="utf-8") for name in STATS)
