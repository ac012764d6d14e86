"""Staged prefill through the backend's attention class, in the process that `attention_calls.start` prepares."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import torch

__all__ = ["prefill"]


def prefill(request: bytes) -> bytes:
    """Output of ``forward_mqa`` for a batch of decoding and prefilling requests, and the stages of its plan.

    The metadata are vLLM's own classes, and so is the scratch memory. TRTLLM-gen, which needs a GPU, is the fake
    kernel of `prefill_checks`.
    """
    import attention_calls
    from kernel_calls import read, written
    from prefill_checks import FloatKernel

    from flashinfer_nvfp4.staging import Staging

    case = read(request)
    batch, decodes = case["batch"], case["decodes"]
    sparse = importlib.import_module("vllm.model_executor.layers.attention.sparse_mla_attention")
    scratch = importlib.import_module("vllm.v1.worker.workspace")
    mla = importlib.import_module("vllm.model_executor.layers.attention.mla_attention")
    torch.accelerator.empty_cache = lambda: None  # refuses without a GPU
    scratch.init_workspace_manager(torch.device("cpu"))
    impl = attention_calls.implementation(case["query"].shape[1], batch["positions"])
    layer = SimpleNamespace(_q_scale_float=1.0)
    impl._decoder(layer, torch.device("cpu"))
    impl.staging = Staging(case["layout"], FloatKernel(torch.float8_e4m3fn, 1.0, True))
    impl.staging.warm_up(64, torch.bfloat16, torch.device("cpu"))
    scratch.lock_workspace()  # what warming up did not allocate, prefill cannot
    owners = batch["owners"]
    starts = torch.bincount(owners, minlength=len(batch["table"])).cumsum(0, dtype=torch.int32)
    starts = torch.cat((starts.new_zeros(1), starts))
    tokens = int(starts[decodes])
    contexts = torch.tensor(case["rows"][decodes:], dtype=torch.int32) - starts.diff()[decodes:]
    chunked = SimpleNamespace(context_lens_list=contexts.tolist()) if case["contexts"] else None
    metadata = sparse.SparseMLACommonMetadata(
        num_reqs=len(batch["table"]),
        max_query_len=int(starts.diff().max()),
        max_seq_len=max(case["rows"]),
        num_actual_tokens=len(owners),
        query_start_loc=starts,
        slot_mapping=torch.zeros(0, dtype=torch.int64),
        block_table=batch["table"],
        req_id_per_token=owners,
        block_size=64,
        num_decodes=decodes,
        num_prefills=len(batch["table"]) - decodes,
        num_decode_tokens=tokens,
        prefill=mla.MLACommonPrefillMetadata(
            block_table=batch["table"][decodes:],
            query_start_loc=starts[decodes:] - tokens,
            max_query_len=int(starts.diff().max()),
            chunked_context=chunked,
            query_lens_cpu=starts.diff()[decodes:],
        ),
    )
    cache = batch["memory"][:, : 64 * 352].unflatten(1, (64, 352))
    out, lse = impl.forward_mqa(case["query"], cache, metadata, layer)
    plan = metadata.nvfp4_prefill.plan
    return written((out, lse, [(stage.part, stage.parts, stage.rows) for stage in plan.stages], plan.launches))
