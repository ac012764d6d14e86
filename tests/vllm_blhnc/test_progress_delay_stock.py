"""The patch of NIXL's progress delay on the real wheel."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from vllm_blhnc import patches

if TYPE_CHECKING:
    from conftest import Call


def _idle_seconds(delay_us: int | None) -> float:
    """CPU seconds that a process with one idle NIXL agent burns in two seconds."""
    if delay_us is not None:
        patches.set_progress_delay(10 * delay_us + 1)
        patches.set_progress_delay(delay_us)  # the last word counts
    from nixl._api import nixl_agent, nixl_agent_config

    agent = nixl_agent("idle", nixl_agent_config())
    started = time.process_time()
    time.sleep(2)
    burnt = time.process_time() - started
    assert agent.get_plugin_list()
    return burnt


def test_an_idle_agent_sleeps_where_stock_burns_a_core(call: Call) -> None:
    spinning, sleeping = call(_idle_seconds, None), call(_idle_seconds, 5000)

    assert sleeping < spinning / 2
