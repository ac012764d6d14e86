"""The plan of GLM-5.3's transfers against published and measured figures, and what can be said of any plan."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_blhnc.plan import (
    BACKENDS,
    DTYPES,
    RELEASES,
    Caches,
    PlanError,
    Transfer,
    default_backend,
    plan_transfer,
)

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "blhnc.md").read_text(encoding="utf-8")

# What of GLM-5.3's config.json decides its caches; IndexShare: layers 0, 1, 2, 6, 10, ..., 74 run an indexer.
GLM53: dict[str, Any] = {
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 78,
    "num_nextn_predict_layers": 1,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "index_head_dim": 128,
    "index_topk": 2048,
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
}
# DeepSeek-V3.2 has no schedule: every layer runs an indexer.
DEEPSEEK_V32 = {k: v for k, v in GLM53.items() if "_freq" not in k and "offset" not in k} | {"num_hidden_layers": 61}


def _plan(*, mtp: int | None = None, **options: Any) -> Transfer:
    return plan_transfer(Caches.of(GLM53, mtp), **{"tokens": 200_000, "run_length": 10} | options)


def test_glm53_has_the_published_caches() -> None:
    caches = Caches.of(GLM53)

    assert (caches.mla, caches.indexers, caches.mtp, caches.count) == (79, 22, 1, 101)
    assert caches.index_row_bytes == 132
    assert {dtype: caches.row_bytes(dtype) for dtype in DTYPES} == {
        "float32": 2304,
        "bf16": 1152,
        "fp8": 576,
        "fp8_ds_mla": 656,
        "nvfp4_ds_mla": 352,
    }


@pytest.mark.parametrize(
    ("config", "mtp", "mla", "indexers"),
    [
        pytest.param({}, 0, 78, 21, id="without-mtp"),
        pytest.param({"num_nextn_predict_layers": 3}, 3, 81, 24, id="three-mtp-layers"),
        pytest.param({"num_nextn_predict_layers": 3}, 1, 79, 22, id="one-of-three-mtp-layers"),
        pytest.param({"num_nextn_predict_layers": None}, 2, 80, 23, id="model-that-does-not-say"),
        pytest.param({"num_nextn_predict_layers": 0}, None, 78, 21, id="model-without-mtp"),
        pytest.param({"index_topk_freq": 1}, 0, 78, 78, id="every-layer"),
        # A pattern goes before the frequency, and a layer beyond its end has an indexer.
        pytest.param({"index_topk_pattern": "FSS" * 26}, 0, 78, 26, id="pattern"),
        pytest.param({"index_topk_pattern": ["F", "S"]}, 0, 78, 77, id="short-pattern"),
        # An MTP layer has an indexer whatever its letter says.
        pytest.param({"index_topk_pattern": "FSS" * 26 + "S"}, 1, 79, 27, id="pattern-with-mtp"),
        pytest.param({"indexer_types": (["full"] * 3 + ["shared"] * 3 + (["full"] + ["shared"] * 3) * 18)}, 1, 79, 22),
    ],
)
def test_layers_have_the_indexers_that_the_schedule_gives_them(
    config: dict[str, Any], mtp: int | None, mla: int, indexers: int
) -> None:
    caches = Caches.of(GLM53 | config, mtp)

    assert (caches.mla, caches.indexers) == (mla, indexers)


def test_a_model_without_a_schedule_has_an_indexer_in_every_layer() -> None:
    caches = Caches.of(DEEPSEEK_V32)

    assert (caches.mla, caches.indexers, caches.count) == (62, 62, 124)


@pytest.mark.parametrize(
    ("release", "options", "payload", "stride"),
    [
        ("0.31", {}, 3_098_112, 3_098_304),
        *[
            (release, options, payload, stride)
            for release in ("0.32", "0.33")
            for options, payload, stride in [
                ({}, 3_098_112, 3_115_008),
                ({"dtype": "bf16"}, 6_010_368, 6_045_696),
                ({"dtype": "nvfp4_ds_mla"}, 1_965_568, 1_965_568),
                ({"mtp": 0}, 3_052_800, 3_059_712),
                ({"row_alignment": 64}, 3_098_112, 3_133_440),
            ]
        ],
        ("0.31", {"dtype": "nvfp4_ds_mla"}, 1_965_568, 1_965_568),
        ("0.31", {"row_alignment": 32}, 3_098_112, 3_115_008),
        ("0.31", {"row_alignment": 64}, 3_098_112, 3_133_440),
    ],
)
def test_rows_have_the_sizes_that_vllms_planner_gave(
    release: str, options: dict[str, Any], payload: int, stride: int
) -> None:
    plan = _plan(release=release, **options)

    assert (plan.row.payload, plan.row.nbytes) == (payload, stride)


@pytest.mark.parametrize(
    ("tokens", "run_length", "lbnhc", "strided", "rows"),
    [
        (200_000, 1, 315_625, 315_625, 3_125),
        (200_000, 10, 31_613, 315_625, 313),
        (200_000, None, 101, 315_625, 1),
        (131_072, 1, 206_848, 206_848, 2_048),
        (131_072, 10, 20_705, 206_848, 205),
        (131_072, None, 101, 206_848, 1),
    ],
)
@pytest.mark.parametrize("release", RELEASES)
def test_descriptors_are_those_of_the_published_table(
    release: str, tokens: int, run_length: int | None, lbnhc: int, strided: int, rows: int
) -> None:
    """Raw, at ten blocks a run and contiguous; from 0.33 on stock registers rows by itself."""
    plan = _plan(release=release, tokens=tokens, run_length=run_length)

    stock = rows if release == "0.33" else strided
    assert (plan.lbnhc.descriptors, plan.blhnc_stock.descriptors, plan.blhnc.descriptors) == (lbnhc, stock, rows)
    assert (plan.lbnhc.regions, plan.blhnc.regions) == (101, 1)
    assert plan.blhnc_stock.regions == (1 if release == "0.33" else 101)


def test_nixl_merges_as_measured() -> None:
    """NIXL 1.5.1 on 101 regions, 40 blocks in 4 runs: 404 by layer, 4,040 strided, 4 as rows."""
    plan = _plan(release="0.32", tokens=40 * 64)

    measured = (plan.lbnhc.descriptors, plan.blhnc_stock.descriptors, plan.blhnc.descriptors)
    assert (measured, plan.runs) == ((404, 4_040, 4), 4)


def test_the_padding_that_travels_is_the_published_share() -> None:
    plan = _plan()

    assert plan.lbnhc.nbytes == 3_125 * 3_098_112
    assert plan.blhnc.nbytes == 3_125 * 3_115_008
    assert round(100 * plan.blhnc.overhead, 3) == 0.545
    assert round(100 * _plan(dtype="bf16").blhnc.overhead, 3) == 0.588
    assert round(100 * _plan(mtp=0).blhnc.overhead, 3) == 0.226
    assert plan.row.nbytes / 64 == 48_672


def test_a_long_prompt_costs_few_descriptors_at_the_published_fragmentation() -> None:
    for release in RELEASES:
        assert _plan(release=release).blhnc.descriptors <= 320


def test_the_page_about_alignment_has_the_planned_rows() -> None:
    table = re.findall(r"^\| (\w+), `(\w+)` \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+)", PAGE, flags=re.MULTILINE)

    assert [(dtype, backend) for dtype, backend, *_ in table] == [
        ("fp8", "FLASHINFER_MLA_SPARSE"),
        ("bf16", "FLASHINFER_MLA_SPARSE"),
        ("bf16", "FLASHMLA_SPARSE"),
        ("fp8_ds_mla", "FLASHMLA_SPARSE"),
        ("nvfp4_ds_mla", "FLASHMLA_SPARSE"),
    ]
    for dtype, backend, *numbers in table:
        before, since, aligned = (
            _plan(release=release, dtype=dtype, backend=backend, row_alignment=rows).row.nbytes
            for release, rows in (("0.31", None), ("0.33", None), ("0.33", 64))
        )
        assert _plan(release="0.32", dtype=dtype, backend=backend).row.nbytes == since
        assert [int(number.replace(",", "")) for number in numbers] == [before, since, aligned, aligned - since]


@pytest.mark.parametrize(
    ("release", "options", "page"),
    [
        ("0.32", {}, 32),
        ("0.33", {}, 32),
        ("0.33", {"row_alignment": 64}, 64),
        ("0.33", {"dtype": "bf16"}, 64),
        ("0.31", {}, None),
        ("0.33", {"dtype": "fp8_ds_mla"}, None),
    ],
)
def test_the_kernel_reads_the_largest_page_that_divides_the_stride(
    release: str, options: dict[str, Any], page: int | None
) -> None:
    assert _plan(release=release, **options).kernel_page_rows == page


_plans = st.builds(
    lambda layers, mtp, freq, dtype, release, tokens, run, align: plan_transfer(
        Caches.of(GLM53 | {"num_hidden_layers": layers, "index_topk_freq": freq, "num_nextn_predict_layers": 3}, mtp),
        tokens=tokens,
        run_length=run,
        release=release,
        dtype=dtype,
        row_alignment=align,
    ),
    st.integers(1, 100),
    st.integers(0, 3),
    st.integers(1, 8),
    st.sampled_from(DTYPES),
    st.sampled_from(RELEASES),
    st.integers(1, 1_000_000),
    st.integers(1, 20_000) | st.none(),
    st.sampled_from([1, 2, 4, 8, 16, 32, 64]) | st.none(),
)


@settings(deadline=None)  # a busy machine is no fault
@given(_plans)
def test_a_row_holds_every_page_and_less_than_one_alignment_of_padding(plan: Transfer) -> None:
    row = plan.row

    assert row.payload == 64 * (plan.caches.mla * plan.mla_row_bytes + plan.caches.indexers * 132)
    assert 0 <= row.padding < row.alignment
    assert row.nbytes % row.alignment == 0
    assert row.alignment % (plan.mla_row_bytes * (plan.row_alignment or 1)) == 0
    assert row.nbytes >= plan.stock_row.nbytes
    if plan.row_alignment is None:
        assert row == plan.stock_row


@settings(deadline=None)  # a busy machine is no fault
@given(_plans)
def test_descriptors_are_regions_times_what_cannot_be_merged(plan: Transfer) -> None:
    assert math.ceil(plan.tokens / 64) == plan.blocks
    assert (
        (plan.runs - 1) * (plan.run_length or plan.blocks) < plan.blocks <= plan.runs * (plan.run_length or plan.blocks)
    )
    for layout in (plan.lbnhc, plan.blhnc, plan.blhnc_stock):
        parts = plan.runs if layout.dense else plan.blocks
        assert layout.descriptors == layout.regions * parts
        assert layout.descriptors_contiguous <= layout.descriptors <= layout.descriptors_raw
        assert layout.descriptors_raw == layout.regions * plan.blocks
        assert layout.nbytes == pytest.approx(plan.blocks * plan.row.payload * (1 + layout.overhead), rel=1e-12)
    assert plan.lbnhc.descriptors == plan.caches.count * plan.blhnc.descriptors


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_has_a_backend_that_takes_it(dtype: str) -> None:
    assert dtype in BACKENDS[default_backend(dtype)].dtypes


@pytest.mark.parametrize(
    ("config", "seen"),
    [
        ({"kv_lora_rank": None, "model_type": "llama"}, "kv_lora_rank is missing, so this model (llama) has no MLA"),
        ({"index_topk": None}, "index_topk is missing, so this model (glm_moe_dsa) has no sparse attention"),
        ({"num_hidden_layers": None}, "num_hidden_layers=None"),
        ({"qk_rope_head_dim": 0}, "qk_rope_head_dim=0"),
        ({"index_head_dim": "128"}, "index_head_dim='128'"),
        ({"kv_lora_rank": True}, "kv_lora_rank=True"),
        ({"num_nextn_predict_layers": -1}, "num_nextn_predict_layers=-1"),
        ({"index_topk_freq": 0}, "index_topk_freq=0"),
        ({"index_topk_pattern": "FX"}, "index_topk_pattern='FX' cannot be read"),
        ({"index_topk_pattern": 4}, "index_topk_pattern=4 cannot be read"),
        ({"index_topk_pattern": [["F"]]}, "index_topk_pattern=[['F']] cannot be read"),
        ({"index_topk_pattern": [{}]}, "index_topk_pattern=[{}] cannot be read"),
        ({"index_topk_pattern": "F" * 80}, "has 80 letters, but there are 78 hidden and 1 prediction layers"),
        ({"index_topk_pattern": "F" * 500}, "index_topk_pattern has 500 letters"),
        ({"indexer_types": 5}, "indexer_types=5 cannot be read; it is a list with full or shared"),
        ({"indexer_types": [["full"]] * 78}, "indexer_types=[['full'], "),
        ({"indexer_types": "full"}, "indexer_types='full' cannot be read"),
        ({"num_hidden_layers": 10_001}, "num_hidden_layers=10001: the caches follow from it. It must be"),
        ({"num_hidden_layers": 10**11}, "It must be a whole number from 1 to 10,000"),
        ({"num_nextn_predict_layers": 10**9}, "num_nextn_predict_layers=1000000000: the caches follow"),
        ({"index_topk": 0}, "index_topk=0"),
        ({"index_topk": False}, "index_topk=False"),
        ({"index_topk": "x"}, "index_topk='x'"),
        ({"index_head_dim": 100}, "index_head_dim=100: vLLM stores an index key with one scale for each 128 values"),
        ({"index_head_dim": 192}, "It must be a multiple of 128"),
        ({"kv_lora_rank": 10**300}, "It must be a whole number from 1 to 1,048,576"),
        ({"kv_lora_rank": None, "text_config": GLM53 | {"kv_lora_rank": None}}, "kv_lora_rank is missing"),
        ({"kv_lora_rank": None, "text_config": "glm"}, "kv_lora_rank is missing"),
        ({"indexer_types": ["full"] * 78}, "indexer_types has 78 full of 78 layers, but index_topk_freq=4 gives 21"),
    ],
)
def test_a_config_that_decides_no_caches_is_refused_by_field(config: dict[str, Any], seen: str) -> None:
    with pytest.raises(PlanError, match=re.escape(seen)):
        Caches.of(GLM53 | config)


@pytest.mark.parametrize("field", ["num_hidden_layers", "qk_rope_head_dim", "index_head_dim", "kv_lora_rank"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(PlanError, match=f"{field} is missing"):
        Caches.of({key: value for key, value in GLM53.items() if key != field})


def test_a_model_that_does_not_say_its_mtp_layers_can_be_told() -> None:
    silent = {key: value for key, value in GLM53.items() if key != "num_nextn_predict_layers"}

    with pytest.raises(PlanError, match=r"num_nextn_predict_layers is missing.*or say --mtp N \(0 for none\)"):
        Caches.of(silent)
    assert Caches.of(silent, 0).count == 99
    with pytest.raises(PlanError, match="mtp=10001: .* no model has more than 10,000"):
        Caches.of(silent, 10_001)


def test_the_text_config_of_a_multimodal_model_is_read() -> None:
    nested = {"model_type": "kimi_k25", "vision_config": {}, "text_config": GLM53}

    assert Caches.of(nested) == Caches.of(GLM53)
    # What the top level says itself goes before.
    assert Caches.of(GLM53 | {"text_config": DEEPSEEK_V32}) == Caches.of(GLM53)


@pytest.mark.parametrize(
    ("options", "seen", "allowed"),
    [
        ({"tokens": 0}, "tokens=0", "from 1 to 1,000,000,000"),
        ({"tokens": 10**9 + 1}, "tokens=1000000001", "from 1 to 1,000,000,000"),
        ({"tokens": 10**500}, "tokens=1000", "from 1 to 1,000,000,000"),
        ({"release": ""}, "release=''", "one of 0.31, 0.32, 0.33"),
        ({"backend": ""}, "backend=''", "FLASHMLA_SPARSE"),
        ({"run_length": 0}, "run_length=0", "at least 1 block"),
        ({"release": "0.34"}, "release='0.34'", "one of 0.31, 0.32, 0.33"),
        ({"backend": "TRITON"}, "backend='TRITON'", "one of FLASHINFER_MLA_SPARSE, FLASHMLA_SPARSE, CPU_MLA_SPARSE"),
        ({"dtype": "int4"}, "dtype='int4' is not known", "float32"),
        ({"backend": "FLASHMLA_SPARSE"}, "dtype='fp8' is not what FLASHMLA_SPARSE caches", "fp8_ds_mla"),
        ({"block_size": 128}, "block_size=128", "Allowed is 64"),
        ({"row_alignment": 0}, "row_alignment=0", "divides the block size, such as 32 or 64"),
        ({"row_alignment": 48}, "row_alignment=48", "divides the block size, such as 32 or 64"),
        ({"row_alignment": 128}, "row_alignment=128", "divides the block size, such as 32 or 64"),
        ({"mtp": -1}, "mtp=-1", "Give 0 to 1"),
        ({"mtp": 500}, "mtp=500: it counts", "the model has num_nextn_predict_layers=1. Give 0 to 1"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_what_can(options: dict[str, Any], seen: str, allowed: str) -> None:
    with pytest.raises(PlanError, match=re.escape(seen)) as refused:
        _plan(**options)

    assert allowed in str(refused.value)


def test_packed_rows_exist_for_deepseeks_dimensions_only() -> None:
    wide = Caches.of(GLM53 | {"kv_lora_rank": 1024})

    assert wide.row_bytes("fp8") == 1088
    assert wide.dtypes == ("float32", "bf16", "fp8")
    with pytest.raises(PlanError, match="kv_lora_rank=1024 and qk_rope_head_dim=64"):
        wide.row_bytes("nvfp4_ds_mla")
    with pytest.raises(PlanError, match="dtype='int4' is not known"):
        wide.row_bytes("int4")
