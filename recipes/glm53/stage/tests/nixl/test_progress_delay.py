import pytest

api = pytest.importorskip("nixl._api")


def test_the_delay_is_nothing_unless_it_is_set():
    assert api.nixl_agent_config().progress_thread_delay_us == 0
    assert api.nixl_agent_config(progress_thread_delay_us=250).progress_thread_delay_us == 250


def test_a_negative_delay_is_refused():
    with pytest.raises(ValueError, match="got -1"):
        api.nixl_agent_config(progress_thread_delay_us=-1)


def test_the_agent_is_made_with_the_delay(monkeypatch):
    seen = []
    agent = api.nixlBind.nixlAgent

    def recorded(name, config):
        seen.append(config.pthrDelay)
        return agent(name, config)

    monkeypatch.setattr(api.nixlBind, "nixlAgent", recorded)
    api.nixl_agent("with", api.nixl_agent_config(backends=[], progress_thread_delay_us=700))
    api.nixl_agent("without", api.nixl_agent_config(backends=[]))
    assert seen == [700, 0]
