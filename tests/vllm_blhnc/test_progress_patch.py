"""When the patch of NIXL's progress delay is to be deleted; what it does is tested on the real wheel."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from vllm_blhnc.patches import REGISTER


def _takes_no_delay(enable_prog_thread: bool = True, num_threads: int = 0) -> None: ...
def _takes_a_delay(enable_prog_thread: bool = True, prog_thread_delay_us: int = 0) -> None: ...


@pytest.mark.parametrize(("config", "obsolete"), [(_takes_no_delay, ()), (_takes_a_delay, ("nixl-progress-delay",))])
def test_the_patch_is_obsolete_once_nixl_takes_the_delay(
    monkeypatch: pytest.MonkeyPatch, config: Any, obsolete: tuple[str, ...]
) -> None:
    api = ModuleType("nixl._api")
    monkeypatch.setattr(api, "nixl_agent_config", config, raising=False)
    monkeypatch.setitem(sys.modules, "nixl._api", api)

    assert REGISTER.obsolete() == obsolete
