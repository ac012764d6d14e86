"""What the CUDA entries refuse before a launch; every refusal with what it saw and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch

from flashinfer_nvfp4.cuda_arch import ARCHITECTURES
from flashinfer_nvfp4.cuda_arguments import cache_view
from flashinfer_nvfp4.cuda_decode import check_ctas, decode, plan_ctas
from flashinfer_nvfp4.cuda_encode import encode
from flashinfer_nvfp4.errors import LaunchRefused
from flashinfer_nvfp4.plan import plan_splits

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


def _decode(**changes: Any) -> Any:
    arguments = {
        "query": torch.zeros(2, 16, 576, dtype=BF16),
        "cache": torch.zeros(4, 64, 352, dtype=torch.uint8),
        "indices": torch.zeros(2, 64, dtype=torch.int32),
        "scale": 0.1,
    }
    return decode(**{**arguments, **changes})


def _encode(**changes: Any) -> None:
    arguments = {
        "latent": torch.zeros(2, 512, dtype=BF16),
        "rope": torch.zeros(2, 64, dtype=BF16),
        "cache": torch.zeros(4, 64, 352, dtype=torch.uint8),
        "slots": torch.zeros(2, dtype=torch.int64),
    }
    encode(**{**arguments, **changes})


def _shifted(shape: tuple[int, ...], by: int, dtype: Any) -> Any:
    """Zeros that begin ``by`` elements behind an aligned address."""
    return torch.zeros(torch.Size(shape).numel() + by, dtype=dtype)[by:].view(shape)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"query": torch.zeros(2, 16, 576)}, r"query float32 \[2, 16, 576\].*allowed: float8_e4m3fn or bfloat16"),
        ({"query": torch.zeros(2, 16, 512, dtype=BF16)}, r"\[2, 16, 512\].*\[any, any, 576\].*other model geometries"),
        ({"query": torch.zeros(32, 576, dtype=BF16)}, r"query bfloat16 \[32, 576\]"),
        ({"query": torch.zeros(2, 129, 576, dtype=BF16)}, "heads=129.*1 to 128 heads"),
        ({"query": torch.zeros(2, 0, 576, dtype=BF16)}, "heads=0"),
        ({"query": torch.zeros(2, 576, 16, dtype=BF16).mT}, r"query with strides .*a last stride of 1.*contiguous"),
        ({"query": _shifted((2, 16, 576), 1, BF16)}, "query at address .*multiples of 16 bytes"),
        ({"query": torch.zeros(2, 16, 580, dtype=FP8)[..., :576]}, "query at address .*multiples of 16 bytes"),
        ({"indices": torch.zeros(2, 64, dtype=torch.int64)}, r"indices int64.*allowed: int32 \[2, any\]"),
        ({"indices": torch.zeros(3, 64, dtype=torch.int32)}, r"indices int32 \[3, 64\]"),
        ({"indices": torch.zeros(2, 48, dtype=torch.int32)}, "topk=48.*multiple of 32 keys.*Pad the indices"),
        ({"indices": torch.zeros(2, 0, dtype=torch.int32)}, "topk=0"),
        ({"indices": torch.zeros(64, 2, dtype=torch.int32).T}, "indices with strides"),
        ({"scale": float("nan")}, "scale=nan.*finite scales"),
        ({"out_scale": float("inf")}, "out_scale=inf.*finite scales"),
        ({"out": torch.zeros(2, 16, 512)}, r"out float32.*allowed: bfloat16 \[2, 16, 512\]"),
        ({"out": torch.zeros(2, 8, 512, dtype=BF16)}, r"out bfloat16 \[2, 8, 512\]"),
        ({"out": torch.zeros(2, 16, 576, dtype=BF16)[..., :512]}, "out with strides .*a contiguous tensor"),
        ({"out": _shifted((2, 16, 512), 1, BF16)}, "out at address .*multiples of 16 bytes"),
        ({"out": torch.zeros(2, 16, 512, dtype=BF16, device="meta")}, "out on meta"),
        ({"num_ctas": 17}, "num_ctas=17.*1 to 8 thread blocks a token, without clusters to 16"),
        ({"num_ctas": 0}, "num_ctas=0"),
        ({"cache": torch.zeros(4, 64, 352)}, r"cache float32.*allowed: uint8 \[blocks, block size, 352\]"),
        ({"cache": torch.zeros(4, 64, 304, dtype=torch.uint8)}, "cut off what pads a block"),
        ({"cache": torch.zeros(4, 0, 352, dtype=torch.uint8)}, r"cache uint8 \[4, 0, 352\]"),
        ({"cache": torch.zeros(4, 64, 368, dtype=torch.uint8)[..., :352]}, "rows must follow each other in a block"),
        ({"cache": torch.zeros(64, 352, dtype=torch.uint8).expand(4, 64, 352)}, "blocks must not overlap"),
        ({"cache": _shifted((4, 64, 352), 8, torch.uint8)}, "cache at address .*multiples of 16 bytes"),
        ({"cache": torch.zeros(4, 22536, dtype=torch.uint8)[:, :22528].unflatten(1, (64, 352))}, "22536 bytes apart"),
        ({"cache": torch.zeros(2**31, 1, 352, dtype=torch.uint8, device="meta")}, "2147483648 rows"),
        ({}, "query on cpu, cache on cpu, indices on cpu.*all tensors on one cuda device.*codec"),
        ({"cache": torch.zeros(4, 64, 352, dtype=torch.uint8, device="meta")}, "cache on meta"),
    ],
)
def test_decode_refuses(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(LaunchRefused, match=words):
        _decode(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy": "nearest"}, "policy='nearest'.*rtn, four_over_six, search"),
        ({"latent": torch.zeros(2, 512, dtype=torch.float16)}, "latent float16.*bfloat16 or float32"),
        ({"rope": torch.zeros(2, 64)}, r"rope float32.*allowed: bfloat16 \[2, 64\]"),
        ({"rope": torch.zeros(3, 64, dtype=BF16)}, r"rope bfloat16 \[3, 64\]"),
        ({"slots": torch.zeros(2, dtype=torch.int32)}, r"slots int32.*allowed: int64 \[2\]"),
        ({"slots": torch.zeros(4, dtype=torch.int64)[::2]}, "slots with strides"),
        ({"latent": torch.zeros(512, 2, dtype=BF16).T}, "latent with strides"),
        ({"cache": torch.zeros(4, 64, 576, dtype=torch.uint8)}, "it holds no rows of this format"),
        ({}, "all tensors on one cuda device"),
    ],
)
def test_encode_refuses(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(LaunchRefused, match=words):
        _encode(**changes)


def test_a_flat_view_of_rows_is_a_cache_of_blocks_of_one_row() -> None:
    rows = torch.zeros(10, 352, dtype=torch.uint8)

    view = cache_view(rows)

    assert (view.data_ptr(), view.shape, view.stride()[:2]) == (rows.data_ptr(), (10, 1, 352), (352, 352))


def test_a_cache_keeps_its_blocks_apart() -> None:
    memory = torch.zeros(4 * 30_000, dtype=torch.uint8)
    cache = memory.as_strided((3, 64, 352), (30_000, 352, 1), 48 * 352)

    assert cache_view(cache) is cache


def test_launches_are_planned_over_clusters_of_16_heads() -> None:
    """Capacities of a GB200 by size (docs/nvfp4.md); a token with less than three stages has one block."""
    at_once = {1: 152, 2: 76, 3: 46, 4: 36, 5: 28, 6: 22, 7: 20, 8: 16}

    arch = ARCHITECTURES["sm_100a"]
    assert plan_ctas(1, 2048, at_once, arch) == 8
    assert plan_ctas(47, 2048, at_once, arch) == 5
    assert plan_ctas(152, 2048, at_once, arch) == 1
    assert plan_ctas(1, 32, at_once, arch) == plan_ctas(0, 64, at_once, arch) == 1


def test_without_clusters_launches_are_planned_as_splits_with_a_merge() -> None:
    arch = ARCHITECTURES["sm_120a"]
    assert plan_ctas(1, 2048, {1: 188}, arch) == plan_splits(1, 2048, 188) == 16
    assert plan_ctas(188, 2048, {1: 188}, arch) == 1


def test_a_cluster_has_eight_blocks_at_most() -> None:
    check_ctas(16, ARCHITECTURES["sm_120a"])
    check_ctas(None, ARCHITECTURES["sm_90a"])
    with pytest.raises(LaunchRefused, match="num_ctas=9 on sm_100a.*allowed: 1 to 8"):
        check_ctas(9, ARCHITECTURES["sm_100a"])
