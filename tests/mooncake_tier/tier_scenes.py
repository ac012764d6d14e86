"""What the tests of the tier do with the engine of `tier_engine`, in its process."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import tier_engine as engines


def lookups_of(ids: list[int], peer: dict[str, Any] | None) -> tuple[int, int]:
    """Tokens that the connector offers at once for a request, and its keys that are asked for in the store."""
    engines.forget()
    engines.add("asking", ids, 1, extra_args={"kv_transfer_params": peer} if peer else None)
    [request] = [one for one in engines.scheduler().waiting if one.request_id.startswith("asking")]
    offered, _ = engines.connector().get_num_new_matched_tokens(request, 0)
    getattr(engines.connector().connector_scheduler, "_release_step", lambda: None)()
    asked = len(engines.pool()._lookups)
    if request.kv_transfer_params:
        request.kv_transfer_params["do_remote_prefill"] = False
    engines._engine[0].llm_engine.abort_request(["asking"])
    engines.settle()
    return offered or 0, asked


def memory_file() -> str:
    """Where the engine's host memory has a name."""
    return str(engines.connector().connector_scheduler.manager.primary_tier._mmap_region.mmap_path)


def names(ids: list[int]) -> list[str]:
    """Keys of a prompt's chunks in the store, found by vLLM's own hashing."""
    engines.add("named", ids, 1)
    [request] = [name for name in engines.connector().connector_scheduler._req_status if name.startswith("named")]
    found = engines.connector()._requests.names(request)
    engines._engine[0].llm_engine.abort_request(["named"])
    engines.settle()
    return list(found)


def wait_for_removals(seconds: float = 60.0) -> None:
    """Until the tier has found chunks to be gone."""
    until = time.monotonic() + seconds
    while not engines.pool().evictions.pending:
        time.sleep(0.01)
        assert time.monotonic() < until, "nothing was found to be gone"


def set_prefetch(on: bool) -> None:
    """Turn prefetching on or off for requests that come."""
    engines.connector()._settings = replace(engines.connector()._settings, prefetch=on)


def _wait_for_lookups(until: float) -> None:
    """Until the store has answered what was asked, as it would on a machine with longer steps."""
    lookups = engines.pool()._lookups
    while lookups.waiting and not all(each.settled for each in lookups._under_way):
        assert time.monotonic() < until, "the store does not answer"
        time.sleep(0.001)


def order(running: list[int], waiting: list[int]) -> list[str]:
    """What happens while a request uses every token of several steps and another one waits, step by step.

    ``full``: a step in which the first used all tokens. ``load``, ``loaded``: chunks for the second. ``begun``: its
    first step. Between two steps, loads are waited for, too.
    """
    seen: list[str] = []
    one = engines.pool()
    load, settled = one.load, one.settle

    def loading(*args: Any) -> None:
        seen.append("load")
        load(*args)

    def settling() -> list[Any]:
        finished = settled()
        seen.extend("loaded" for job in finished if job.load)
        return list(finished)

    one.load, one.settle = loading, settling
    budget = engines.scheduler().max_num_scheduled_tokens
    schedule = engines.scheduler().schedule

    def scheduling(*args: Any, **kwargs: Any) -> Any:
        out = schedule(*args, **kwargs)
        if any(new.req_id.startswith("waiting") for new in out.scheduled_new_reqs):
            seen.append("begun")
        if any(name.startswith("running") and n == budget for name, n in out.num_scheduled_tokens.items()):
            seen.append("full")
        return out

    engines.scheduler().schedule = scheduling
    try:
        engines.add("running", running, 1)
        engines.step()
        engines.add("waiting", waiting, 1)
        left = {"running", "waiting"}
        while left:
            left -= {out.request_id for out in engines.step() if out.finished}
            until = time.monotonic() + 30
            _wait_for_lookups(until)
            while one.jobs.loading_bytes and time.monotonic() < until:
                time.sleep(0.001)
    finally:
        one.load, one.settle, engines.scheduler().schedule = load, settled, schedule
    engines.settle()
    return seen


_broken: list[Any] = []


def break_loads() -> None:
    """Every get fails from now on."""
    native = engines.pool().client._native
    calls: list[list[str]] = []
    _broken[:] = [native.get, calls]

    def get(keys: list[str], addresses: Any, sizes: Any) -> list[int]:
        if not any("/probe/" in key for key in keys):
            calls.append(keys)
        return [-800] * len(keys)

    native.get = get


def mend_loads() -> int:
    """They work again; returns how many were tried."""
    client = engines.pool().client
    client._native.get, calls = _broken
    client.failed_loads.forget(list(client.failed_loads._until))
    return len(calls)


def reset() -> bool:
    """As after a weight update."""
    return bool(engines._engine[0].reset_prefix_cache(reset_connector=True))


def abort_while_waiting(running: list[int], waiting: list[int]) -> tuple[int, ...]:
    """Jobs, lookups, held keys and waiting requests that are left."""
    engines.forget()
    engines.add("running", running, 1)
    engines.step()
    engines.add("waiting", waiting, 1)
    while not any(one.loaded for one in engines.connector()._prefetcher._waiting.values()):
        assert engines.scheduler().has_requests(), "its turn came before the store had answered"
        _wait_for_lookups(time.monotonic() + 30)
        engines.step()
    engines._engine[0].llm_engine.abort_request(["waiting"])
    engines.settle()
    one = engines.pool()
    return len(one.jobs), len(one._lookups), len(one.holds), len(engines.connector()._prefetcher)


def decoded(tokens: int) -> int:
    """Step until so many tokens are there."""
    while True:
        for out in engines.step():
            if len(out.outputs[0].token_ids) >= tokens:
                return len(out.outputs[0].token_ids)


def decoded_until(name: str) -> dict[str, Any]:
    """The answer of this request, and how many tokens the one beside it had by then."""
    found: dict[str, Any] = {}
    while name not in found:
        for out in engines.step():
            if out.request_id == name and out.finished:
                found[name] = list(out.outputs[0].token_ids)
            elif out.request_id != name:
                found[out.request_id] = len(out.outputs[0].token_ids)
    return found
