import contextlib
import threading
from types import SimpleNamespace

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.v1.engine import EngineCoreRequestType
from vllm.v1.engine.core import EngineCore, EngineCoreProc


class Connector:
    """Something to tell, which one of its threads finds out."""

    found = False

    def bind_wakeup(self, wakeup):
        self.wakeup = wakeup


class Idle(EngineCoreProc):
    """An engine without sockets and without requests."""

    @contextlib.contextmanager
    def _perform_handshakes(self, *args):
        yield SimpleNamespace(
            inputs=[],
            outputs=[],
            coordinator_input=None,
            coordinator_output=None,
            frontend_stats_publish_address=None,
        )

    def _init_data_parallel(self, vllm_config):
        pass

    def process_input_sockets(self, inputs, coordinator, identity, ready_event):
        ready_event.set()

    def process_output_sockets(self, *args):
        pass

    def has_work(self):
        return self.connector is not None and self.connector.found

    def _notify_idle_state_callbacks(self):
        pass


def engine_of(connector, monkeypatch):
    def init(self, *args):
        self.connector = connector
        self.scheduler = SimpleNamespace(get_kv_connector=lambda: connector)
        self.aborts_queue = SimpleNamespace(mutex=contextlib.nullcontext(), queue=set())

    monkeypatch.setattr(EngineCore, "__init__", init)
    parallel = SimpleNamespace(data_parallel_external_lb=False, enable_fault_tolerance=False)
    config = SimpleNamespace(parallel_config=parallel)
    return Idle(config, True, "", None, False)


def test_a_connectors_thread_ends_the_wait_of_an_idle_engine(monkeypatch):
    connector = Connector()
    engine = engine_of(connector, monkeypatch)
    loop = threading.Thread(target=engine._process_input_queue, daemon=True)
    loop.start()
    connector.wakeup()  # nothing found: it goes on waiting
    loop.join(0.2)
    assert loop.is_alive()

    connector.found = True
    connector.wakeup()
    loop.join(20)
    assert not loop.is_alive()
    assert engine.input_queue.empty()


def test_an_engine_without_a_connector_starts(monkeypatch):
    assert engine_of(None, monkeypatch).input_queue.empty()


def test_multi_connector_hands_it_to_each_of_its_connectors():
    several = MultiConnector.__new__(MultiConnector)
    several._connectors = [Connector(), Connector()]
    woken = []
    several.bind_wakeup(lambda: woken.append(EngineCoreRequestType.WAKEUP))
    for one in several._connectors:
        one.wakeup()
    assert len(woken) == 2


def test_connectors_need_not_know_of_it():
    assert KVConnectorBase_V1.bind_wakeup(object(), print) is None
