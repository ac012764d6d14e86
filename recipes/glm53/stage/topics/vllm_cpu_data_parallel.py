"""vLLM: expert layers with data and expert parallelism on the CPU."""

from __future__ import annotations

import ast

from glm53.stage.edits import Import, Insert
from glm53.stage.place import Place
from glm53.stage.topic import Evidence, Topic
from glm53.stage.tree import PROJECTS, Tree

__all__ = ["CPU_DATA_PARALLEL"]

_FOLDER = "distributed/device_communicators"
_FILE = f"{_FOLDER}/cpu_communicator.py"
_EXPERTS = "model_executor/layers/fused_moe/experts/cpu_moe.py"
_SCOPE = "CPUUnquantizedExperts.apply"
_PACKAGE = f"vllm.{_FOLDER}".replace("/", ".")


def _solved(tree: Tree) -> str | None:
    source, experts = tree.source(_FILE), tree.source(_EXPERTS)
    methods = {getattr(node, "name", "") for node in ast.walk(source.scope("CpuCommunicator"))}
    reads = any(isinstance(n, ast.Name) and n.id == "expert_map" for n in ast.walk(experts.scope(_SCOPE)))
    if {"all_gatherv", "reduce_scatterv"} <= methods and reads:
        return f"{source.file} has both collectives, and {_SCOPE} of {experts.file} reads expert_map"
    return None


CPU_DATA_PARALLEL = Topic(
    id="cpu-data-parallel",
    project=PROJECTS["vllm"],
    title="[CPU] Expert layers with data and expert parallelism",
    releases=">=0.31,<0.34",
    how="The CPU's communicator has all_gatherv and reduce_scatterv, which its all-to-all manager calls, over gloo: "
    "rows travel as bytes, and sums are made in the order of the ranks. The unquantized experts give their kernel only "
    "pairs of a token and an expert of this rank.",
    risks="Without data and expert parallelism nothing changes. Gloo is not fast, and ranks of one machine do not use "
    "shared memory. Quantized experts still ignore the map of experts.",
    near=_FILE,
    solved=_solved,
    places=(
        Place(
            "plugins/vllm_cpu_dsa/collectives.py",
            f"{{package}}/{_FOLDER}/cpu_collectives.py",
            f"{_PACKAGE}.cpu_collectives",
        ),
    ),
    edits=(
        Import(file=_FILE, code=f"from {_PACKAGE} import cpu_collectives"),
        Insert(
            file=_FILE,
            anchor="CpuCommunicator",
            where="last",
            code="""\
            all_gatherv = cpu_collectives.all_gatherv
            reduce_scatterv = cpu_collectives.reduce_scatterv
            """,
            blank=1,
        ),
        Insert(
            file=_EXPERTS,
            anchor=_SCOPE,
            where="first",
            code="""\
            if expert_map is not None:
                # The kernel takes every id for one of its experts. It gets the pairs of
                # a token and an expert of this rank, and a token's rows are added up.
                local = expert_map[topk_ids.long()].to(topk_ids.dtype)
                token, choice = (local >= 0).nonzero(as_tuple=True)
                parts = output.new_empty((len(token), output.shape[1]))
                if len(token):
                    self.apply(
                        parts,
                        hidden_states[token],
                        w1,
                        w2,
                        topk_weights[token, choice, None],
                        local[token, choice, None],
                        activation,
                        global_num_experts,
                        None,
                        a1q_scale,
                        a2_scale,
                        workspace13,
                        workspace2,
                        expert_tokens_meta,
                        apply_router_weight_on_input,
                    )
                output.zero_().index_add_(0, token, parts)
                return
            """,
        ),
    ),
    tests=(
        Place(
            "recipes/glm53/stage/tests/vllm/test_cpu_data_parallel.py", "tests/distributed/test_cpu_data_parallel.py"
        ),
    ),
    evidence=(
        Evidence(
            "a model with 8 experts on 2 data-parallel ranks with expert parallelism gives the greedy tokens of one "
            "rank, also while the other one is idle",
            "pytest tests/vllm_cpu_dsa/test_data_parallel_stock.py",
        ),
    ),
    why="With data parallelism the ranks' tokens meet at every expert layer, through the communicator's all_gatherv. "
    "The CPU's communicator makes the manager that calls it, but has only the base class's stub, which raises.",
    records=("vllm_cpu_dsa:cpu-all-gatherv", "vllm_cpu_dsa:cpu-reduce-scatterv", "vllm_cpu_dsa:cpu-expert-map"),
)
