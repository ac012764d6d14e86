"""Every guard, tripped by one setting changed in a configuration that is otherwise served."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_cpu_dsa import rows
from vllm_cpu_dsa.errors import Unsupported
from vllm_cpu_dsa.guards import check, is_served
from vllm_cpu_dsa.rows import PlainRows


@pytest.fixture(autouse=True)
def plain_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = PlainRows()
    serving = dict.fromkeys(plain.cache_dtypes, plain)
    monkeypatch.setattr(rows, "row_formats", lambda: serving)
    monkeypatch.delenv("VLLM_KV_CACHE_LAYOUT", raising=False)


def _config(**changed: Any) -> SimpleNamespace:
    """The parts of vLLM's configuration that the guards read; ``part__field=value`` changes one."""
    parts: dict[str, dict[str, Any]] = {
        "model": {
            "num_hidden_layers": 8,
            "index_topk": 2048,
            "index_head_dim": 128,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
        },
        "cache": {"cache_dtype": "auto", "block_size": 64, "kv_cache_dtype_skip_layers": []},
        "parallel": {
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 1,
            "decode_context_parallel_size": 1,
            "prefill_context_parallel_size": 1,
            "data_parallel_size": 1,
            "enable_expert_parallel": False,
            "all2all_backend": "allgather_reducescatter",
        },
        "compilation": {"mode": 0, "custom_ops": ["none"]},
        "attention": {"backend": None, "indexer_kv_dtype": "auto"},
        "engine": {"use_v2_model_runner": False, "speculative_config": None},
        "weights": {"quantization": None},
    }
    for key, value in changed.items():
        part, field = key.split("__")
        parts[part][field] = value
    made = {name: SimpleNamespace(**fields) for name, fields in parts.items()}
    return SimpleNamespace(
        model_config=SimpleNamespace(hf_text_config=made["model"], **parts["weights"]),
        cache_config=made["cache"],
        parallel_config=made["parallel"],
        compilation_config=made["compilation"],
        attention_config=made["attention"],
        **parts["engine"],
    )


SHARING = {"model__index_topk_freq": 4, "model__index_skip_topk_offset": 3}
GLM_TYPES = ["full", "full", "full", "shared", "shared", "shared", "full", "shared"]


@pytest.mark.parametrize(
    "served",
    [
        {},
        {"cache__block_size": 128},
        {"cache__cache_dtype": "bfloat16"},
        {"attention__indexer_kv_dtype": "fp8"},
        {"engine__speculative_config": SimpleNamespace(method="mtp", kv_cache_dtype=None)},
        {"engine__speculative_config": SimpleNamespace(method="mtp", kv_cache_dtype="auto")},
        {**SHARING, "model__indexer_types": GLM_TYPES},
        {"model__index_topk_pattern": "FFFSSSFS", "model__indexer_types": GLM_TYPES},
        {"model__index_topk_pattern": "FFFSSSFS"},
        {"parallel__data_parallel_size": 2, "parallel__enable_expert_parallel": True},
        {"parallel__data_parallel_size": 2, "weights__quantization": "fp8"},
        {"parallel__all2all_backend": "deepep_low_latency"},  # nothing uses it
    ],
)
def test_what_is_served_passes(served: dict[str, Any]) -> None:
    check(_config(**served))


@pytest.mark.parametrize(
    ("changed", "seen", "allowed"),
    [
        ({"model__index_topk": None}, "index_topk=None", "positive integer"),
        ({"model__index_topk": 0}, "index_topk=0", "positive integer"),
        ({"model__index_topk": 64.0}, "index_topk=64.0", "positive integer"),
        ({"model__kv_lora_rank": 256}, "kv_lora_rank=256", "kv_lora_rank=512"),
        ({"model__qk_rope_head_dim": 32}, "qk_rope_head_dim=32", "qk_rope_head_dim=64"),
        ({"model__index_head_dim": 64}, "index_head_dim=64", "index_head_dim=128"),
        ({"model__indexer_types": GLM_TYPES}, "indexer_types=", "keys that agree"),
        (
            {"model__index_topk_pattern": ["full", "shared"] * 4, "model__indexer_types": ["full", "shared"] * 4},
            "indexer_types=",
            "keys that agree",
        ),
        ({"model__index_topk_pattern": "SFFFFFFF"}, "a first layer without an indexer", "begins with a full layer"),
        ({"cache__cache_dtype": "fp8"}, "--kv-cache-dtype fp8", "auto (plain)"),
        ({"cache__kv_cache_dtype_skip_layers": ["0", "3"]}, "--kv-cache-dtype-skip-layers 0 3", "no layer skipped"),
        ({"cache__block_size": 16}, "--block-size 16", "multiples of 64"),
        ({"cache__block_size": 96}, "--block-size 96", "multiples of 64"),
        ({"parallel__pipeline_parallel_size": 2}, "--pipeline-parallel-size 2", "--pipeline-parallel-size 1"),
        (
            {"parallel__decode_context_parallel_size": 2},
            "--decode-context-parallel-size 2",
            "--decode-context-parallel-size 1",
        ),
        (
            {"parallel__prefill_context_parallel_size": 4},
            "--prefill-context-parallel-size 4",
            "--prefill-context-parallel-size 1",
        ),
        (
            {"parallel__enable_expert_parallel": True, "weights__quantization": "fp8"},
            "--enable-expert-parallel with quantization fp8",
            "unquantized experts",
        ),
        (
            {"parallel__data_parallel_size": 2, "parallel__all2all_backend": "deepep_low_latency"},
            "--all2all-backend deepep_low_latency",
            "--all2all-backend allgather_reducescatter",
        ),
        (
            {"parallel__enable_expert_parallel": True, "parallel__all2all_backend": "nixl_ep"},
            "--all2all-backend nixl_ep",
            "--all2all-backend allgather_reducescatter",
        ),
        ({"engine__use_v2_model_runner": True}, "VLLM_USE_V2_MODEL_RUNNER=1", "the first model runner"),
        ({"compilation__mode": 3}, "compilation mode 3", "mode NONE"),
        ({"compilation__custom_ops": ["+rotary_embedding"]}, "+rotary_embedding", "torch version"),
        (
            {"attention__backend": SimpleNamespace(name="CPU_MLA")},
            "--attention-backend CPU_MLA",
            "no choice",
        ),
        ({"attention__indexer_kv_dtype": "mxfp4"}, "indexer_kv_dtype=mxfp4", "auto, fp8"),
        (
            {"engine__speculative_config": SimpleNamespace(method="eagle", kv_cache_dtype=None)},
            "speculative method eagle",
            "mtp",
        ),
        (
            {"engine__speculative_config": SimpleNamespace(method="mtp", kv_cache_dtype="bfloat16")},
            "kv_cache_dtype=bfloat16 of the draft beside --kv-cache-dtype auto",
            "the same",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_value_and_the_way_out(
    changed: dict[str, Any], seen: str, allowed: str
) -> None:
    with pytest.raises(Unsupported) as refused:
        check(_config(**changed))

    text = str(refused.value)
    before, _, after = text.partition("; allowed: ")
    assert seen in before
    assert allowed in after
    assert before.count(": ") >= 1
    assert text.endswith(".")
    assert ". " in after, "the next step is missing"


@pytest.mark.parametrize("layout", ["BLHNC", "BLNHC"])
def test_larger_blocks_are_refused_with_a_block_outermost_layout(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", layout)
    check(_config())

    with pytest.raises(Unsupported, match=f"--block-size 128 with VLLM_KV_CACHE_LAYOUT={layout}"):
        check(_config(cache__block_size=128))


@pytest.mark.parametrize(
    ("architecture", "has_indexer", "served"),
    [
        ("GlmMoeDsaForCausalLM", True, True),
        ("GlmMoeDsaForCausalLM", False, True),  # and then refused for its missing index_topk
        ("DeepseekV32ForCausalLM", True, True),
        ("DeepSeekMTPModel", True, True),
        ("DeepSeekMTPModel", False, False),  # the draft of DeepSeek-V3, whose attention is dense
        ("DeepseekV3ForCausalLM", False, False),
        ("Glm5NextForCausalLM", True, False),  # another indexer, with pooled keys
        ("DeepseekV4ForCausalLM", True, False),
        ("LlamaForCausalLM", False, False),
    ],
)
def test_only_models_whose_sparse_attention_is_computed_here_are_served(
    architecture: str, has_indexer: bool, served: bool
) -> None:
    text = SimpleNamespace(index_topk=2048) if has_indexer else SimpleNamespace()

    assert is_served(SimpleNamespace(architectures=[architecture], hf_text_config=text)) is served


def test_a_configuration_without_a_model_is_stocks_business() -> None:
    assert is_served(None) is False
