"""NIXL: the progress thread's delay as a parameter."""

from __future__ import annotations

from glm53.stage.edits import Insert, Parameter, Value
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["PROGRESS_DELAY"]

_FILE = "_api.py"
_CONFIG = "nixl_agent_config.__init__"


def _solved(tree: Tree) -> str | None:
    source = tree.source(_FILE)
    named = [name for name in source.parameters(_CONFIG) if "delay" in name.lower()]
    return f"{source.file}: nixl_agent_config takes {named[0]}" if named else None


PROGRESS_DELAY = Topic(
    id="progress-delay",
    project=PROJECTS["nixl"],
    title="Python API: take the progress thread's delay",
    releases=">=1.4,<1.6",
    how="nixl_agent_config gets progress_thread_delay_us, microseconds between two polls of the progress thread; the "
    "agent passes it on. Its default, 0, is what the agent sets today.",
    risks="None for those who do not set it. A delay adds up to that long to the notice of a finished transfer.",
    near=_FILE,
    solved=_solved,
    edits=(
        Parameter(file=_FILE, scope=_CONFIG, code="progress_thread_delay_us: int = 0"),
        Insert(
            file=_FILE,
            anchor=_CONFIG,
            where="last",
            code="""\
            if progress_thread_delay_us < 0:
                raise ValueError(
                    f"progress_thread_delay_us must be 0 or more microseconds (got {progress_thread_delay_us})"
                )
            self.progress_thread_delay_us = progress_thread_delay_us
            """,
        ),
        Value(
            file=_FILE,
            scope="nixl_agent.__init__",
            target="agent_config.pthrDelay",
            code="nixl_conf.progress_thread_delay_us",
        ),
    ),
    tests=(Place("recipes/glm53/stage/tests/nixl/test_progress_delay.py", "test/python/test_progress_delay.py"),),
    evidence=(
        Evidence(
            "an idle agent's progress thread takes one core with a delay of 0, and under 5 % of it with 1,000 us",
            "pytest tests/vllm_blhnc/test_progress_delay_stock.py",
        ),
    ),
    why="The Python agent sets the progress thread's poll delay to 0 and takes no argument for it, so every worker "
    "burns one core; with few cores the engine starves behind it.",
    records=("vllm_blhnc:nixl-progress-delay",),
)
