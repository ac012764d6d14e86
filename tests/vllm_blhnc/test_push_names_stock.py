"""Whose blocks prefill writes where: by the name decode gives, and as stock does for a decode that gives none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conftest import Call


def _worker() -> tuple[Any, list[tuple[str, str]]]:
    """A push worker's matching without its agent; what it starts to write is (prefill's id, decode's id)."""
    from vllm_blhnc.connector import NixlPushConnector

    started: list[tuple[str, str]] = []
    worker: Any = object.__new__(NixlPushConnector._worker_class)
    worker._pending_d_registrations, worker._push_finished_blocks = {}, {}
    worker._do_start_push_kv = lambda prefill, blocks, registration: started.append(
        (prefill, registration["request_id"])
    )
    return worker, started


def _register(worker: Any, decode: str, prefill: str | None) -> None:
    import msgspec
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import PUSH_REG_NOTIF_PREFIX

    registration = {"request_id": decode} | ({"blhnc_prefill_request": prefill} if prefill else {})
    worker._handle_push_reg_notif(PUSH_REG_NOTIF_PREFIX + msgspec.msgpack.encode(registration))


def _finish(worker: Any, prefill: str) -> None:
    """As stock's writer loop does with a finished request."""
    registration = worker._pop_matching_registration(prefill)
    if registration is None:
        worker._push_finished_blocks[prefill] = ([1],)
    else:
        worker._do_start_push_kv(prefill, ([1],), registration)


def _meet(name: bool) -> list[Any]:
    """Two requests under one client id, finished before they are registered, and two after."""
    worker, started = _worker()
    for prefill in ("same-aaaaaaaa", "same-bbbbbbbb"):
        _finish(worker, prefill)
    _register(worker, "same-22222222", "same-bbbbbbbb" if name else None)
    _register(worker, "same-11111111", "same-aaaaaaaa" if name else None)
    _register(worker, "same-44444444", "same-dddddddd" if name else None)
    _register(worker, "same-33333333", "same-cccccccc" if name else None)
    for prefill in ("same-cccccccc", "same-dddddddd"):
        _finish(worker, prefill)
    return [started, len(worker._pending_d_registrations), len(worker._push_finished_blocks)]


def test_named_registrations_get_what_they_name(call: Call) -> None:
    started, waiting, unclaimed = call(_meet, True)

    assert started == [
        ("same-bbbbbbbb", "same-22222222"),
        ("same-aaaaaaaa", "same-11111111"),
        ("same-cccccccc", "same-33333333"),
        ("same-dddddddd", "same-44444444"),
    ]
    assert (waiting, unclaimed) == (0, 0)


def test_stock_gives_the_oldest_that_looks_alike(call: Call) -> None:
    """Every one of these four would decode with another request's KV; the names are needed as long as this holds."""
    started, _, _ = call(_meet, False)

    assert started == [
        ("same-aaaaaaaa", "same-22222222"),
        ("same-bbbbbbbb", "same-11111111"),
        ("same-cccccccc", "same-44444444"),
        ("same-dddddddd", "same-33333333"),
    ]


def _of_two_decodes() -> list[Any]:
    worker, started = _worker()
    _register(worker, "same-11111111", "same-aaaaaaaa")
    _register(worker, "same-22222222", None)
    _finish(worker, "same-bbbbbbbb")  # not the one that the first names
    _finish(worker, "same-aaaaaaaa")
    worker._handle_push_reg_notif(b"PUSH_REG:\xc1")  # not MessagePack
    worker._handle_push_reg_notif(b"PUSH_REG:\x01")  # not an object
    return [started, worker._pending_d_registrations]


def test_a_decode_without_the_plugin_is_served_as_stock_does(call: Call) -> None:
    started, pending = call(_of_two_decodes)

    assert started == [("same-bbbbbbbb", "same-22222222"), ("same-aaaaaaaa", "same-11111111")]
    assert pending == {}


def _waiting_after(prefills: list[str], evicted: str | None) -> list[str]:
    from vllm_blhnc import push

    push._WAITING = 3
    worker, _ = _worker()
    for i, prefill in enumerate(prefills):
        _register(worker, f"d{i}", prefill)
    worker._pending_d_registrations.pop(evicted, None)  # as stock's writer does
    return list(worker._pending_d_registrations)


def test_a_registration_goes_when_prefills_request_does(call: Call) -> None:
    assert call(_waiting_after, ["a", "b"], "a") == ["b"]


def test_registrations_for_nobody_do_not_pile_up(call: Call) -> None:
    assert call(_waiting_after, list("abcde"), None) == ["c", "d", "e"]
