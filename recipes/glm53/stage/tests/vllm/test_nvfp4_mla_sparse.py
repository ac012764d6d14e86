import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backends.mla.nvfp4_mla_sparse import Nvfp4MLASparseBackend
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.ops.nvfp4_mla import writer
from vllm.v1.attention.ops.nvfp4_mla.staging import plan_staging
from vllm.v1.attention.ops.nvfp4_mla.workspace import chosen_workspace
from vllm.v1.attention.selector import AttentionSelectorConfig
from vllm.v1.kv_cache_interface import MLAAttentionSpec

NAME, ROWS = "TRITON_MLA_SPARSE_NVFP4", "nvfp4_ds_mla"
SPARSE = ("FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM120", "FLASH_ATTN_MLA_SPARSE", NAME)


def config(heads=16, rope=64, topk=2048, hisparse=None, dcp=1, pcp=1, skipped=()):
    text = SimpleNamespace(kv_lora_rank=512, qk_rope_head_dim=rope, qk_nope_head_dim=192, index_topk=topk)
    return SimpleNamespace(
        model_config=SimpleNamespace(hf_text_config=text, get_num_attention_heads=lambda parallel: heads),
        attention_config=SimpleNamespace(hisparse_config=hisparse),
        cache_config=SimpleNamespace(kv_cache_dtype_skip_layers=skipped),
        parallel_config=SimpleNamespace(decode_context_parallel_size=dcp, prefill_context_parallel_size=pcp),
    )


@pytest.fixture
def cuda(monkeypatch):
    """The CUDA platform's choice, also on machines without CUDA."""
    try:
        import vllm._C_stable_libtorch  # noqa: F401
    except ImportError:
        monkeypatch.setitem(sys.modules, "vllm._C_stable_libtorch", ModuleType("vllm._C_stable_libtorch"))
    from vllm.platforms import cuda

    def only_sparse(backend):
        if "SPARSE" not in backend.name:
            raise ImportError("dense backends may want a GPU")
        return backend.get_class()

    monkeypatch.setattr(cuda, "_get_attn_backend_class", only_sparse)
    monkeypatch.setattr("vllm.config.get_current_vllm_config", config)

    def asked(capability, cache=ROWS, dtype=torch.bfloat16, **more):
        wanted = AttentionSelectorConfig(576, dtype, cache, 64, use_mla=True, use_sparse=True, **more)
        valid, invalid = cuda.CudaPlatformBase.get_valid_backends(DeviceCapability(*capability), wanted, num_heads=16)
        reasons = {backend.name: " ".join(why) for backend, (_, why) in invalid.items()}
        return [each.backend.name for each in valid if each.backend.name in SPARSE], reasons

    return asked


@pytest.mark.parametrize("capability", [(9, 0), (12, 0)])
def test_rows_that_no_other_backend_reads_are_read_by_triton(cuda, capability):
    assert cuda(capability)[0] == [NAME]
    assert cuda(capability, use_dcp=True)[0] == [NAME]


@pytest.mark.parametrize("capability", [(10, 0), (10, 3)])
def test_flashmla_comes_first_where_it_reads_them(cuda, capability):
    assert cuda(capability)[0] == ["FLASHMLA_SPARSE", NAME]


@pytest.mark.parametrize("cache", ["auto", "bfloat16", "fp8", "fp8_ds_mla"])
@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (12, 0)])
def test_it_is_not_asked_for_other_caches(cuda, capability, cache):
    chosen, reasons = cuda(capability, cache)
    assert NAME not in chosen
    assert NAME not in reasons


@pytest.mark.parametrize("cache", [None, "auto", "fp8_ds_mla"])
def test_it_refuses_other_caches_when_it_is_named(cache):
    assert not Nvfp4MLASparseBackend.supports_kv_cache_dtype(cache)
    assert AttentionBackendEnum[NAME].get_class() is Nvfp4MLASparseBackend
    assert Nvfp4MLASparseBackend.get_name() == NAME


@pytest.mark.parametrize(
    ("changes", "asked", "words"),
    [
        ({"rope": 0}, {}, "qk_rope_head_dim=0"),
        ({"rope": 128}, {}, "allowed: 512 and 64"),
        ({"topk": None}, {}, "no index_topk"),
        ({"topk": 2000}, {}, "a top-k of 2000 is no multiple of 32"),
        ({"heads": 96, "dcp": 2}, {}, "192 heads are outside 1 to 128"),
        ({"hisparse": object()}, {}, "hisparse_config is set"),
        ({"pcp": 2}, {}, "prefill_context_parallel_size=2"),
        ({"skipped": ["3"]}, {}, "kv_cache_dtype_skip_layers"),
        ({}, {"dtype": torch.float16}, "dtype"),
        ({}, {"has_sink": True}, "attention sinks"),
    ],
)
def test_what_it_cannot_serve_is_among_the_reasons(cuda, monkeypatch, changes, asked, words):
    monkeypatch.setattr("vllm.config.get_current_vllm_config", lambda: config(**changes))
    chosen, reasons = cuda((9, 0), **asked)
    assert chosen == []
    assert words in reasons[NAME]


def test_older_devices_are_refused(cuda):
    chosen, reasons = cuda((8, 0))
    assert chosen == []
    assert "compute capability not supported" in reasons[NAME]


def test_blocks_are_whole_rows_apart():
    spec = MLAAttentionSpec(
        block_size=64,
        num_kv_heads=1,
        head_size=576,
        dtype=torch.uint8,
        cache_dtype_str=ROWS,
        state_content_bytes=352,
    )
    found = Nvfp4MLASparseBackend.customize_spec(spec)
    assert found.page_size_bytes == 64 * 352
    assert found.block_stride_alignment == 352


def test_decode_graphs_are_offered_without_a_workspace_of_other_kernels():
    builder = Nvfp4MLASparseBackend.get_builder_cls()
    assert builder.get_cudagraph_support(None, None).name == "UNIFORM_BATCH"


@pytest.mark.parametrize(
    ("capability", "shards", "mib", "why"),
    [
        ((9, 0), 1, "144", "needs compute capability 10.x, not 9.0"),
        ((10, 0), 2, "144", "2 workers share each context"),
        ((10, 0), 1, "0", "VLLM_NVFP4_MLA_PREFILL_MIB=0"),
    ],
)
def test_prefill_is_direct_where_nothing_can_be_staged(monkeypatch, capability, shards, mib, why):
    monkeypatch.setenv("VLLM_NVFP4_MLA_PREFILL_MIB", mib)
    assert chosen_workspace() == int(mib) << 20
    layout, told = plan_staging(capability, 16, 2048, shards)
    assert layout is None
    assert why in told


@pytest.mark.parametrize(("family", "writes"), [(90, True), (100, False), (120, True)])
def test_triton_writes_the_rows_off_10(monkeypatch, family, writes):
    platform = SimpleNamespace(is_cuda=lambda: True, is_device_capability_family=lambda wanted: wanted == family)
    monkeypatch.setattr("vllm.platforms.current_platform", platform)
    assert writer.writes() is writes
