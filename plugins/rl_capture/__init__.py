"""Requests of the serving path as training records: token ids, log-probabilities, weights, outcomes of tool calls.

Installed but idle until ``RL_CAPTURE=on`` is set.
"""

from __future__ import annotations

__all__ = ["register"]


def register() -> None:
    """Entry point ``vllm.general_plugins``: capture in this process, if the settings ask for it.

    Harmless when repeated, and in engine processes, which see no requests of clients. Raises ValueError for a setting
    that cannot be used, `stockpatch.UnsupportedVersion` on a vLLM that was not tested, and `stockpatch.PatchError` if a
    tested one is not as it was when tested: an operator who asked for records must not serve without them.
    """
    from rl_capture.settings import Settings

    settings = Settings.read()
    if settings is None:
        return
    from rl_capture import stock

    if stock.in_engine_process():
        return
    from rl_capture.patches import install

    install(settings)
