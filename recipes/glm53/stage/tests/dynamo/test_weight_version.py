import asyncio
from types import SimpleNamespace

import pytest
from dynamo.vllm.handlers import BaseWorkerHandler

pytestmark = [pytest.mark.unit, pytest.mark.gpu_0, pytest.mark.pre_merge, pytest.mark.vllm]

METHODS = ("get_weight_version", "set_weight_version", "update_weights_from_disk", "update_weights_from_distributed")


class Worker:
    """A worker's weights, and an engine that notes what it is told."""

    _paused = True
    _told_to_engine = BaseWorkerHandler._told_to_engine

    def __init__(self, **engine):
        self.calls = []
        self._pause_lock = asyncio.Lock()
        self._weight_version = "first"
        self.engine_client = SimpleNamespace(collective_rpc=self.done, reset_prefix_cache=self.done, **engine)

    async def done(self, *args, **fields):
        self.calls.append("weights")

    async def version(self, new):
        self.calls.append(new)

    async def refused(self, new):
        raise RuntimeError("engine is gone")


for method in METHODS:
    setattr(Worker, method, getattr(BaseWorkerHandler, method))


def worker(take="version"):
    made = Worker()
    made.engine_client.update_weight_version = getattr(made, take)
    return made


def test_the_engine_is_told_a_version_that_is_declared():
    made = worker()
    answer = asyncio.run(made.set_weight_version({"weight_version": 7}))
    assert answer == {"status": "ok", "version": 7}
    assert made.calls == ["7"]
    assert asyncio.run(made.get_weight_version({}))["version"] == 7


def test_the_engine_is_told_the_version_of_weights_that_it_has_loaded():
    made = worker()
    body = {"model_path": "weights", "weight_version": "step-2"}
    answer = asyncio.run(made.update_weights_from_disk(body))
    assert (answer["status"], answer["version_declared"]) == ("ok", True)
    assert made.calls == ["weights", "weights", "step-2"]
    made.calls.clear()
    asyncio.run(made.update_weights_from_disk({"model_path": "weights"}))
    assert made.calls == ["weights", "weights"]
    assert made._weight_version == "step-2"


def test_a_version_that_the_engine_does_not_take_is_not_the_workers():
    made = worker("refused")
    with pytest.raises(RuntimeError, match="engine is gone"):
        asyncio.run(made.set_weight_version({"weight_version": "2"}))
    assert made._weight_version == "first"


def test_an_engine_without_versions_is_not_asked():
    made = Worker()
    assert asyncio.run(made.set_weight_version({"weight_version": "2"}))["status"] == "ok"
    assert made._weight_version == "2"
