import asyncio
import sys
from types import ModuleType

import pytest
from dynamo.frontend import main as frontend

pytestmark = [pytest.mark.unit, pytest.mark.gpu_0, pytest.mark.pre_merge]


class Reached(Exception):
    """The frontend has its arguments; nothing is served."""


async def engine(instance, card, routed):
    raise NotImplementedError


@pytest.fixture
def arguments(monkeypatch):
    module = ModuleType("my_engine")
    module.make, module.text = engine, "no function"
    monkeypatch.setitem(sys.modules, "my_engine", module)
    seen = {}

    def entry(kind, **given):
        seen.update(given)
        raise Reached

    monkeypatch.setattr(frontend, "EntrypointArgs", entry)
    monkeypatch.setattr(frontend, "DistributedRuntime", lambda *args, **fields: None)

    def started(*options):
        monkeypatch.setattr(sys, "argv", ["dynamo.frontend", "--discovery-backend", "file", *options])
        with pytest.raises(Reached):
            asyncio.run(frontend.async_main())
        return seen

    return started


def test_the_entry_point_gets_the_engine_that_is_named(arguments):
    assert arguments("--dyn-chat-engine", "my_engine:make")["chat_engine_factory"] is engine


def test_a_variable_names_it_too(arguments, monkeypatch):
    monkeypatch.setenv("DYN_CHAT_ENGINE", "my_engine:make")
    assert arguments()["chat_engine_factory"] is engine


def test_without_the_option_there_is_none(arguments):
    assert "chat_engine_factory" not in arguments()


@pytest.mark.parametrize("name", ["my_engine", "my_engine:", "my_engine:gone", "my_engine:text"])
def test_what_is_no_function_ends_the_start(arguments, name):
    with pytest.raises(ValueError, match=f"--dyn-chat-engine={name} must name a function"):
        arguments("--dyn-chat-engine", name)


def test_beside_another_chat_processor_it_is_refused(arguments):
    with pytest.raises(ValueError, match="mutually exclusive"):
        arguments("--dyn-chat-engine", "my_engine:make", "--dyn-chat-processor", "sglang")
