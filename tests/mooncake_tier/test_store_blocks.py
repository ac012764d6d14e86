"""Where a block's pages lie: ranges in the order of the object, as few as there can be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mooncake_tier.errors import SettingRefused
from mooncake_tier.store.blocks import BlockMemory, Pages, pages_of

BLOCKS = 8


def test_pages_side_by_side_are_one_range_and_others_keep_their_order() -> None:
    row = 100 + 50 + 10  # the last 10 bytes of a row are padding
    memory = BlockMemory([Pages(1000, row, 100), Pages(1100, row, 50), Pages(9000, 70, 70)])

    assert memory.nbytes == 220
    assert memory.parts(0) == ((1000, 150), (9000, 70))
    assert memory.parts(3) == ((1000 + 3 * row, 150), (9210, 70))


def test_pages_that_touch_only_in_one_block_are_two_ranges() -> None:
    assert len(BlockMemory([Pages(0, 100, 100), Pages(100, 300, 50)]).runs) == 2


def test_a_block_has_pages() -> None:
    with pytest.raises(ValueError, match="at least one page"):
        BlockMemory([])


class Tensor:
    """As much of torch's as is asked for: bytes, (blocks, values)."""

    def __init__(self, at: int, stride: int, blocks: int = BLOCKS) -> None:
        self.shape, self._at, self._stride = (blocks, 5), at, stride

    def data_ptr(self) -> int:
        return 1 << 30 | self._at

    def untyped_storage(self) -> Any:
        return SimpleNamespace(data_ptr=lambda: 1 << 30)

    def stride(self, *axis: int) -> Any:
        return self._stride if axis else (self._stride, 1)

    def element_size(self) -> int:
        return 1


def _group(layers: list[str], offset: int, layer_stride: int, block_stride: int) -> Any:
    return SimpleNamespace(layers=layers, offset=offset, layer_stride=layer_stride, block_stride=block_stride)


#: One allocation: eight blocks of an indexer's 12 bytes, then of two MLA caches' 20.
CONFIG = SimpleNamespace(
    num_blocks=BLOCKS, kv_cache_tensors=[_group(["i"], 0, 96, 12), _group(["a", "b"], 96, 160, 20)]
)
CACHES = [
    {"name": "a", "nbytes": 20, "offset": 0},
    {"name": "i", "nbytes": 12, "offset": 20},
    {"name": "b", "nbytes": 20, "offset": 32},
]


def _tensors(**changed: Any) -> dict[str, Any]:
    return {"i": Tensor(0, 12), "a": Tensor(96, 20), "b": Tensor(256, 20)} | changed


def test_caches_are_taken_in_the_order_of_the_object_and_not_of_the_allocation() -> None:
    base = 1 << 30

    assert pages_of(CONFIG, CACHES, _tensors()) == [
        Pages(base + 96, 20, 20),
        Pages(base, 12, 12),
        Pages(base + 256, 20, 20),
    ]


def test_a_backend_may_cut_blocks_into_its_own() -> None:
    assert pages_of(CONFIG, CACHES, _tensors(a=Tensor(96, 10, 2 * BLOCKS)))[0] == Pages((1 << 30) + 96, 20, 20)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        pytest.param({"i": None}, "cache 'i': it was not registered", id="missing"),
        pytest.param({"b": Tensor(260, 20)}, "cache 'b': it lies 260 bytes into its memory and not 256", id="moved"),
        pytest.param({"a": Tensor(96, 24)}, "do not give 8 blocks of 20 bytes", id="another-stride"),
        pytest.param({"a": Tensor(96, 20, 9)}, "do not give 8 blocks of 20 bytes", id="another-count"),
    ],
)
def test_a_cache_that_is_missing_or_lies_elsewhere_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingRefused, match=why):
        pages_of(CONFIG, CACHES, _tensors(**changed))
