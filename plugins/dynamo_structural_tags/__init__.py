"""Tool calls that cannot come out wrong: what the grammar allows, the parser reads back, and the schema accepts.

Installed but idle until ``DYNAMO_STRUCTURAL_TAGS=enforce`` (or ``report``) is set, except that ``vllm serve`` knows the
tool parser ``glm47_safe`` by name.
"""

from __future__ import annotations

import logging

__all__ = ["register"]

_log = logging.getLogger(__name__)


def register() -> None:
    """Entry point ``vllm.general_plugins``: the hook for tags and the tool parser, in this process.

    Harmless when repeated. In engine processes, where no tag is made, it only has the grammar compiler prepared.
    Raises ValueError for a bad setting, and `stockpatch.PatchError` if a tested vLLM is not as it was when tested; with
    another one it only reports, or, if even that does not fit, warns and does nothing.
    """
    from dynamo_structural_tags.settings import Mode, Settings

    settings = Settings.read()
    from dynamo_structural_tags import stock

    engine = stock.in_engine_process()
    for reason in stock.untested():
        if settings.mode is Mode.ENFORCE and not engine:
            _log.warning("mode report instead of enforce: %s", reason)
        settings = settings.reporting()
    if engine and settings.mode is not Mode.ENFORCE:
        return

    from dynamo_structural_tags import vllm_plugin

    (vllm_plugin.start_engine if engine else vllm_plugin.start)(settings)
