import time

from vllm.distributed.device_communicators import shm_broadcast


def test_a_reader_that_polls_sleeps(monkeypatch):
    naps = []
    monkeypatch.setattr(time, "sleep", naps.append)
    condition = shm_broadcast.SpinCondition.__new__(shm_broadcast.SpinCondition)
    condition.__dict__.update(is_reader=True, busy_loop_s=1.0, last_read=time.monotonic())
    condition.wait(timeout_ms=None)
    assert naps == [shm_broadcast.SPIN_NAP_S] == [50e-6]


def test_nothing_yields_in_a_loop():
    used = [shm_broadcast.SpinCondition.wait, shm_broadcast.MessageQueue.acquire_write]
    assert not [one for one in used if "sched_yield" in one.__code__.co_names]


def test_a_message_still_arrives():
    queue = shm_broadcast.MessageQueue(n_reader=1, n_local_reader=1)
    reader = shm_broadcast.MessageQueue.create_from_handle(queue.export_handle(), 0)
    queue.enqueue({"step": 1}, timeout=10)
    assert reader.dequeue(timeout=10) == {"step": 1}
