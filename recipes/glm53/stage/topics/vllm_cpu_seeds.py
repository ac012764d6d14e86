"""vLLM: requests with a seed whose prompt takes several steps, on the CPU."""

from __future__ import annotations

from glm53.stage.edits import Insert
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["CPU_SEEDS"]

_FILE = "v1/worker/cpu_model_runner.py"
_RUNNER = "v1/worker/gpu_model_runner.py"


def _solved(tree: Tree) -> str | None:
    source = tree.source(_RUNNER)
    if source.calls("GPUModelRunner._bookkeeping_sync", "gen.get_offset"):
        return None
    return f"{source.file}: _bookkeeping_sync turns no generator back"


CPU_SEEDS = Topic(
    id="cpu-seeds",
    project=PROJECTS["vllm"],
    title="[CPU] Do not draw from the generators of unfinished prompts",
    releases=">=0.31,<0.34",
    how="The CPU's model runner takes the generators of requests whose prompt is not finished out of the batch while "
    "it samples. So they do not draw, nothing has to be turned back, and a request gets the same numbers however its "
    "prompt was cut.",
    risks="Only the CPU's runner changes. The token that an unfinished prompt samples comes from the default generator "
    "for that step; it is thrown away, as before.",
    near=_FILE,
    solved=_solved,
    edits=(
        Insert(
            file=_FILE,
            anchor="CPUModelRunner",
            where="last",
            code="""\
            def sample_tokens(self, grammar_output):
                # A CPU generator cannot be turned back by the draw of a token that is thrown away.
                generators = self.input_batch.generators
                requests = range(self.input_batch.num_reqs)
                unfinished = [i for i in requests if self.discard_request_mask.np[i]]
                kept = {i: generators.pop(i) for i in unfinished if i in generators}
                try:
                    return super().sample_tokens(grammar_output)
                finally:
                    generators.update(kept)
            """,
            blank=1,
        ),
    ),
    tests=(Place("recipes/glm53/stage/tests/vllm/test_cpu_seeds.py", "tests/v1/worker/test_cpu_seeds.py"),),
    evidence=(
        Evidence(
            "a prompt of 300 tokens with a seed ends the engine at 64 tokens a step; with the change it samples what "
            "it samples in one step",
            "pytest tests/vllm_cpu_dsa/test_stock_faults_stock.py -k seeded",
        ),
    ),
    why="While a prompt is not finished its step samples a token that is thrown away, and the runner turns the "
    "generator of a request with a seed back by that draw. A CPU generator cannot be turned back ('CPU Generator "
    "does not use offset'), so one such request ends the engine.",
    records=("vllm_cpu_dsa:cpu-seeded-chunks",),
)
