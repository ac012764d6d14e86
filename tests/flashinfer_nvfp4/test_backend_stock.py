"""What vLLM finds under the names of its sparse MLA backends: its own selection code, under a fake capability.

Stock's CUDA platform cannot be imported on a CPU wheel without the extension it loads, and dense backends want a GPU at
import: `_FakeCuda` stands for both. Everything that chooses, validates and answers is stock's.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs the pinned stock environment: make test")

import torch
from refused_rows import says
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.selector import AttentionSelectorConfig
from vllm.v1.kv_cache_interface import MLAAttentionSpec

from flashinfer_nvfp4 import backend, installed, kernel_choice, plugin
from flashinfer_nvfp4.dispatch import Installed
from flashinfer_nvfp4.errors import BuildRefused, SettingRefused
from flashinfer_nvfp4.settings import BACKEND
from flashinfer_nvfp4.stock import NAMES, NATIVE_PROBE, native_reader, stock_backend
from stockpatch.versions import UnsupportedVersion

ROWS = "nvfp4_ds_mla"
OTHERS = ("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_ds_mla")
CAPABILITIES = ((9, 0), (10, 0), (10, 3), (12, 0))


def _config(heads: int = 16, rope: int = 64, **changes: Any) -> Any:
    """As much of a vLLM configuration as the selection reads, of GLM-5.3 on four GPUs."""
    text = SimpleNamespace(kv_lora_rank=512, qk_rope_head_dim=rope, qk_nope_head_dim=192, index_topk=2048)
    values = {"hisparse": None, "skipped": [], "pcp": 1, "dcp": 1} | changes
    return SimpleNamespace(
        model_config=SimpleNamespace(
            hf_text_config=text, enforce_eager=False, get_num_attention_heads=lambda parallel: heads
        ),
        attention_config=SimpleNamespace(hisparse_config=values["hisparse"]),
        cache_config=SimpleNamespace(kv_cache_dtype_skip_layers=values["skipped"]),
        parallel_config=SimpleNamespace(
            prefill_context_parallel_size=values["pcp"], decode_context_parallel_size=values["dcp"]
        ),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=8192),
    )


class _FakeCuda:
    """Stock's selection for a device of some compute capability, on a machine without one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        patch.setitem(sys.modules, "vllm._C_stable_libtorch", ModuleType("vllm._C_stable_libtorch"))
        import vllm.platforms.cuda as cuda

        self.platform = cuda.CudaPlatformBase
        patch.setattr(cuda, "_get_attn_backend_class", self._sparse_only)
        self.configure(_config())

    @staticmethod
    def _sparse_only(name: Any) -> Any:
        if "SPARSE" not in name.name:
            raise ImportError("a dense backend")
        return name.get_class()

    def configure(self, config: Any) -> None:
        self.patch.setattr("vllm.config.get_current_vllm_config", lambda: config)

    def asked(
        self,
        capability: tuple[int, int],
        cache: str,
        head_size: int = 576,
        dtype: Any = torch.bfloat16,
        **more: Any,
    ) -> Any:
        """Names of the valid backends, in order, and the reasons against the other sparse ones."""
        wanted = AttentionSelectorConfig(head_size, dtype, cache, 64, use_mla=True, use_sparse=True, **more)
        valid, invalid = self.platform.get_valid_backends(DeviceCapability(*capability), wanted, num_heads=16)
        reasons = {name.name: tuple(why) for name, (_, why) in invalid.items() if name.name in NAMES}
        return [each.backend.name for each in valid if each.backend.name in NAMES], reasons


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[_FakeCuda]:
    monkeypatch.delenv(BACKEND, raising=False)
    fake = _FakeCuda(monkeypatch)
    monkeypatch.setattr(installed, "facts", lambda capability: Installed(cuda="not built", flashinfer="no sources"))
    # The reasons of stock that change once something was imported are told once before.
    for capability in CAPABILITIES:
        for dtype in OTHERS:
            fake.asked(capability, dtype)
    yield fake
    for name in NAMES:
        AttentionBackendEnum[name].clear_override()
    backend._built.cache_clear()


@pytest.fixture
def registered(cuda: _FakeCuda, monkeypatch: pytest.MonkeyPatch) -> _FakeCuda:
    from vllm.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_cuda", lambda self: True)
    plugin.register()
    plugin.register()
    return cuda


def test_stock_reads_these_rows_only_on_10_and_starts_nowhere_else(cuda: _FakeCuda) -> None:
    """What the plugin is for; once this fails, a release has changed it."""
    chosen = {capability: cuda.asked(capability, ROWS)[0] for capability in CAPABILITIES}

    assert chosen == {(9, 0): [], (10, 0): ["FLASHMLA_SPARSE"], (10, 3): ["FLASHMLA_SPARSE"], (12, 0): []}


@pytest.mark.parametrize(
    ("capability", "first"),
    [
        ((9, 0), "FLASHMLA_SPARSE"),
        ((10, 0), "FLASHINFER_MLA_SPARSE"),
        ((10, 3), "FLASHINFER_MLA_SPARSE"),
        ((12, 0), "FLASHINFER_MLA_SPARSE_SM120"),
    ],
)
def test_each_architecture_reads_the_rows_through_the_name_that_stock_prefers(
    registered: _FakeCuda, capability: tuple[int, int], first: str
) -> None:
    chosen, _ = registered.asked(capability, ROWS)
    found = AttentionBackendEnum[first].get_class()

    assert chosen[0] == first
    assert found.get_name() == first
    assert found.reads(ROWS, capability[0])
    assert ".".join(found.full_cls_name()) == f"flashinfer_nvfp4.backend.{first}"


def test_for_every_other_cache_dtype_the_selection_is_stocks(cuda: _FakeCuda, request: Any) -> None:
    cases = [(capability, dtype) for capability in CAPABILITIES for dtype in OTHERS]
    before = [cuda.asked(*case) for case in cases]
    request.getfixturevalue("registered")

    assert [cuda.asked(*case) for case in cases] == before


@pytest.mark.parametrize("name", NAMES)
def test_for_every_other_cache_dtype_a_backend_answers_as_stock(registered: _FakeCuda, name: str) -> None:
    ours, stock = AttentionBackendEnum[name].get_class(), stock_backend(name)
    specs = [None, *(_spec(dtype) for dtype in OTHERS)]

    def answers(cls: Any) -> list[Any]:
        return [
            cls.get_name(),
            cls.supported_dtypes,
            [cls.supports_kv_cache_dtype(dtype) for dtype in (None, *OTHERS)],
            [cls.supports_compute_capability(DeviceCapability(*each)) for each in CAPABILITIES],
            [cls.supports_block_size(size) for size in (1, 16, 32, 64, 128, 256)],
            [str(cls.get_supported_kernel_block_sizes(spec)) for spec in specs],
            [cls.get_preferred_block_size(size) for size in (16, 64, 128)],
            cls.get_supported_head_sizes(),
            [cls.is_mla(), cls.is_sparse(), cls.supports_dcp(), cls.supports_pcp(), cls.supports_sink()],
            [cls.customize_spec(spec) for spec in specs[1:]],
            [cls.get_builder_cls().get_cudagraph_support(None, spec) for spec in specs[1:]],
            cls.get_impl_cls().__name__,
            {key: getattr(cls.get_impl_cls(), key) for key in ("can_return_lse_for_decode", "lse_base_on_e")},
        ]

    assert issubclass(ours, stock)
    assert answers(ours) == answers(stock)


def test_another_cache_dtype_gets_stocks_own_implementation(
    registered: _FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparse = "vllm.model_executor.layers.attention.sparse_mla_attention"
    monkeypatch.setattr(f"{sparse}.get_tensor_model_parallel_world_size", lambda: 1)
    found = AttentionBackendEnum.FLASHINFER_MLA_SPARSE.get_class()
    dims = {"qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "qk_head_dim": 256, "v_head_dim": 256}
    impl = found.get_impl_cls()(
        16,
        576,
        0.0625,
        1,
        None,
        None,
        "fp8",
        None,
        "decoder",
        None,
        q_lora_rank=1,
        kv_lora_rank=512,
        kv_b_proj=None,
        **dims,
    )

    assert type(impl) is stock_backend("FLASHINFER_MLA_SPARSE").get_impl_cls()


def _spec(dtype: str) -> Any:
    rows = {"nvfp4_ds_mla": 352, "fp8_ds_mla": 656}.get(dtype)
    plain = torch.bfloat16 if dtype in ("auto", "bfloat16") else torch.uint8
    return MLAAttentionSpec(
        block_size=64, num_kv_heads=1, head_size=576, dtype=plain, cache_dtype_str=dtype, state_content_bytes=rows
    )


@pytest.mark.parametrize(("name", "major"), [(name, majors[0]) for name, majors in NAMES.items()])
def test_a_page_is_whole_rows_of_352_bytes_and_decode_graphs_are_offered(
    registered: _FakeCuda, monkeypatch: pytest.MonkeyPatch, name: str, major: int
) -> None:
    monkeypatch.setattr(backend, "capability", lambda: (major, 0))
    found = AttentionBackendEnum[name].get_class()
    spec = found.customize_spec(_spec(ROWS))
    from flashinfer_nvfp4.builder import RowsMetadataBuilder

    assert spec.page_size_bytes == 64 * 352
    assert spec.block_stride_alignment == 352
    assert found.get_builder_cls().get_cudagraph_support(None, spec).name == "UNIFORM_BATCH"
    assert RowsMetadataBuilder.metadata_cls is stock_backend("FLASHINFER_MLA_SPARSE").get_builder_cls().metadata_cls


def test_on_10_flashmla_still_reads_the_rows_as_stock_does(
    registered: _FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "capability", lambda: (10, 0))
    found, stock = AttentionBackendEnum.FLASHMLA_SPARSE.get_class(), stock_backend("FLASHMLA_SPARSE")

    assert found.customize_spec(_spec(ROWS)) == stock.customize_spec(_spec(ROWS))
    assert not found.reads(ROWS)


@pytest.mark.parametrize(
    ("config", "asked", "words"),
    [
        ({"rope": 0}, {"head_size": 512}, "GLM-5.3-Flash"),
        ({"hisparse": object()}, {}, "hisparse_config is set"),
        ({"skipped": ["3"]}, {}, "kv_cache_dtype_skip_layers"),
        ({"pcp": 2}, {}, "prefill_context_parallel_size=2"),
        ({"heads": 96, "dcp": 2}, {}, "192 heads are outside 1 to 128"),
        ({}, {"dtype": torch.float16}, "dtype"),
        ({}, {"has_sink": True}, "attention sinks: no kernel"),
    ],
)
@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (12, 0)])
def test_what_the_rows_cannot_serve_is_among_vllms_reasons(
    registered: _FakeCuda, config: Any, asked: Any, words: str, capability: tuple[int, int]
) -> None:
    registered.configure(_config(**config))
    _, reasons = registered.asked(capability, ROWS, **asked)
    ours = next(name for name, majors in NAMES.items() if capability[0] in majors)

    assert words in " ".join(reasons[ours])
    if "heads" in config:
        says("nvfp4-heads", " ".join(reasons[ours]))


@pytest.mark.parametrize(
    ("capability", "why"), [((9, 0), None), ((10, 0), None), ((10, 3), None), ((12, 0), "DCP not supported")]
)
def test_decode_context_parallelism_is_served_but_on_12(
    registered: _FakeCuda, capability: tuple[int, int], why: str | None
) -> None:
    registered.configure(_config(dcp=2))
    chosen, reasons = registered.asked(capability, ROWS, use_dcp=True)
    [ours] = [name for name, majors in NAMES.items() if capability[0] in majors]

    assert (ours in chosen) is (why is None)
    if why is not None:
        assert why in reasons[ours]
        says("nvfp4-decode-parallel", " ".join(reasons[ours]))


def test_hisparse_reads_wrong_bytes_of_these_rows_so_flashmla_refuses_them_too(registered: _FakeCuda) -> None:
    registered.configure(_config(hisparse=object()))

    chosen, reasons = registered.asked((10, 0), ROWS)
    assert chosen == []
    assert "gathers them as fp8_ds_mla" in reasons["FLASHMLA_SPARSE"][0]


def test_on_10_a_shape_without_a_kernel_is_left_to_flashmla(
    registered: _FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = Installed(cuda="no nvcc", flashinfer="no sources", trtllm="none", triton="no Triton")
    monkeypatch.setattr(installed, "facts", lambda capability: absent)

    chosen, reasons = registered.asked((10, 0), ROWS)
    assert chosen == ["FLASHMLA_SPARSE"]
    assert "not cuda: no nvcc; not flashinfer: no sources; not triton: no Triton" in reasons["FLASHINFER_MLA_SPARSE"][0]


@pytest.mark.parametrize("name", NAMES)
def test_no_released_vllm_reads_the_rows_natively_where_the_plugin_does(name: str) -> None:
    assert native_reader(name) is None


def test_the_plugin_steps_aside_once_vllm_reads_the_rows_natively() -> None:
    """The probe of vllm-project/vllm#59342 and stock's lists, in the shapes they would have."""
    op, no_op = SimpleNamespace(**{NATIVE_PROBE: lambda: True}), SimpleNamespace(**{NATIVE_PROBE: lambda: False})
    unaware = SimpleNamespace()
    lists = SimpleNamespace(supports_kv_cache_dtype=lambda dtype: dtype == ROWS)
    hopper = SimpleNamespace(
        supported_dtypes=[torch.bfloat16],
        supports_combination=lambda *args: None,
        supports_compute_capability=lambda capability: True,
    )

    assert NATIVE_PROBE in (native_reader("FLASHINFER_MLA_SPARSE", op, lists) or "")
    assert native_reader("FLASHINFER_MLA_SPARSE", no_op, lists) is None
    assert native_reader("FLASHINFER_MLA_SPARSE", unaware, lists) == "stock FLASHINFER_MLA_SPARSE takes it"
    assert native_reader("FLASHINFER_MLA_SPARSE_SM120", unaware, lists) == "stock FLASHINFER_MLA_SPARSE_SM120 takes it"
    assert native_reader("FLASHMLA_SPARSE", unaware, hopper) == "stock FLASHMLA_SPARSE takes it"


def test_stepping_aside_leaves_stocks_class_and_says_so(
    registered: _FakeCuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend._built.cache_clear()
    monkeypatch.setattr(backend, "native_reader", lambda name: "vLLM does")
    with caplog.at_level(logging.INFO, "vllm.flashinfer_nvfp4"):
        monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
        found = [AttentionBackendEnum.FLASHINFER_MLA_SPARSE.get_class() for _ in range(2)]

    assert found == [stock_backend("FLASHINFER_MLA_SPARSE")] * 2
    assert caplog.text.count("steps aside for FLASHINFER_MLA_SPARSE: vLLM does") == 1


def test_on_an_untested_vllm_these_rows_do_not_start_and_all_others_do(
    registered: _FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [(capability, dtype) for capability in CAPABILITIES for dtype in OTHERS]
    before = [registered.asked(*case) for case in cases]
    backend._built.cache_clear()
    monkeypatch.setattr(backend, "untested", lambda: UnsupportedVersion("vllm==0.40.0 is installed."))

    assert [registered.asked(*case) for case in cases] == before
    for capability in CAPABILITIES:
        chosen, reasons = registered.asked(capability, ROWS)
        assert chosen == []
        [told] = {why for whys in reasons.values() for why in whys if "vllm==0.40.0" in why}
        says("nvfp4-release", told)


def test_a_choice_is_logged_once_for_a_shape_and_a_named_kernel_that_cannot_run_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernel_choice, "get_current_vllm_config", _config)
    monkeypatch.setattr(kernel_choice, "capability", lambda: (9, 0))
    monkeypatch.setattr(installed, "facts", lambda capability: Installed(cuda="not built"))
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    monkeypatch.setenv(BACKEND, "triton")
    with caplog.at_level(logging.INFO, "vllm.flashinfer_nvfp4"):
        found = [kernel_choice.kernel_for(16, 2048, lse=False) for _ in range(3)]

    assert {choice.kernel for choice in found} == {"triton"}
    assert caplog.text.count("triton decodes NVFP4 rows for 16 heads, top-k 2048 on 9.0") == 1

    monkeypatch.setenv(BACKEND, "flashinfer")
    with pytest.raises(BuildRefused, match="=flashinfer.*built for 10.0 and 10.3, not 9.0") as refused:
        kernel_choice.kernel_for(16, 2048, lse=False)
    says("nvfp4-kernel", str(refused.value))


def test_vllm_finds_the_plugin_by_its_entry_point() -> None:
    (entry,) = entry_points(group="vllm.general_plugins", name="flashinfer_nvfp4")

    assert entry.load() is plugin.register


def test_nothing_is_registered_on_the_cpu_or_when_switched_off(
    cuda: _FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.register()
    assert not any(AttentionBackendEnum[name].is_overridden() for name in NAMES)

    from vllm.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_cuda", lambda self: True)
    monkeypatch.setenv(BACKEND, "off")
    plugin.register()
    assert not any(AttentionBackendEnum[name].is_overridden() for name in NAMES)

    monkeypatch.setenv(BACKEND, "fast")
    with pytest.raises(SettingRefused):
        plugin.register()


def test_a_name_that_another_package_has_taken_stays_its_own(
    cuda: _FakeCuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import register_backend

    monkeypatch.setattr(type(current_platform), "is_cuda", lambda self: True)
    register_backend(AttentionBackendEnum.FLASHMLA_SPARSE, "another.package.Backend")
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    plugin.register()

    assert AttentionBackendEnum.FLASHMLA_SPARSE.get_path() == "another.package.Backend"
    assert "leaves FLASHMLA_SPARSE to another.package.Backend" in caplog.text
