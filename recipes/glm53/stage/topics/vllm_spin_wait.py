"""vLLM: waiting for another process without giving up slices of run time."""

from __future__ import annotations

from glm53.stage.edits import Call, Insert
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["SPIN_WAIT"]

_FILE = "distributed/device_communicators/shm_broadcast.py"


def _solved(tree: Tree) -> str | None:
    source = tree.source(_FILE)
    return None if source.calls("SpinCondition.wait", "sched_yield") else f"{source.file}: SpinCondition.wait"


SPIN_WAIT = Topic(
    id="spin-wait",
    project=PROJECTS["vllm"],
    title="[Core] Sleep between polls of a message queue instead of yielding",
    releases=">=0.31,<0.34",
    how="Both loops of the shared-memory queue, the reader's and the writer's, sleep for 50 microseconds a turn. That "
    "gives the core away as sched_yield() does, and costs no virtual run time.",
    risks="A message that arrives during a nap is noticed up to 50 microseconds (and the timer's slack) later.",
    near=_FILE,
    solved=_solved,
    edits=(
        Insert(
            file=_FILE,
            anchor="SpinCondition",
            where="before",
            code="""\
            # Between polls: short against a step of the engine, long enough to give the core away. Linux 6.18 charges
            # sched_yield() a slice of virtual run time, and a loop of it is then not run for seconds.
            SPIN_NAP_S = 50e-6
            """,
            blank=2,
        ),
        Call(file=_FILE, scope="", call="sched_yield", code="time.sleep(SPIN_NAP_S)", times=2),
    ),
    tests=(Place("recipes/glm53/stage/tests/vllm/test_spin_wait.py", "tests/distributed/test_spin_wait.py"),),
    evidence=(
        Evidence(
            "virtual run time a CPU second on Linux 6.18: 2,229 to 2,402 s of a loop of sched_yield(), 1.0 s of naps",
            "python benchmarks/spin_wait.py",
        ),
    ),
    why="Engine and workers wait for each other's messages in a loop of sched_yield(). Since Linux 6.18 every call "
    "gives up a slice of virtual run time; a loop collects hundreds of seconds of it, and as soon as something "
    "else wants the core the waiting process is runnable but not run, for 10 to 35 seconds at a time (its "
    "run-queue wait in /proc/PID/schedstat grows by exactly the stall).",
    records=("vllm_cpu_dsa:spin-wait-sleeps",),
)
