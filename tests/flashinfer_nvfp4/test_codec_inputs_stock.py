"""Shapes, strides, sizes and refusals of the codec."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flashinfer_nvfp4 import codec
from flashinfer_nvfp4.codec import POLICIES, Policy, decode_rows, encode_rows
from flashinfer_nvfp4.errors import RowsRefused


def _parts(*lead: int, dtype: Any = torch.bfloat16) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return torch.randn(*lead, 512).to(dtype), torch.randn(*lead, 64).to(dtype)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_row_depends_on_nothing_but_its_own_token(policy: Policy) -> None:
    """Alone, in a batch of several chunks, transposed, or cut out of something wider: the same bytes."""
    latent, rope = _parts(3 * codec.CHUNK // 2, 2)
    rows = encode_rows(latent, rope, policy)
    wide = torch.full((*latent.shape[:-1], 700), float("nan"), dtype=latent.dtype)
    wide[..., 50:562], wide[..., 600:664] = latent, rope

    assert torch.equal(encode_rows(wide[..., 50:562], wide[..., 600:664], policy), rows)
    assert torch.equal(encode_rows(latent.transpose(0, 1), rope.transpose(0, 1), policy), rows.transpose(0, 1))
    assert torch.equal(encode_rows(latent[-1, 1], rope[-1, 1], policy), rows[-1, 1])
    assert torch.equal(encode_rows(latent.float(), rope.float(), policy), rows)


def test_rows_are_decoded_where_they_lie_in_a_block_outermost_cache() -> None:
    """Two layers' pages side by side in each block, as BLHNC has them: a strided view, read without a copy first."""
    latent, rope = _parts(5, 64)
    rows = encode_rows(latent, rope)
    cache = torch.full((5, 2, 64 * 352 + 96), 0xFF, dtype=torch.uint8)
    page = cache[:, 1, : 64 * 352].unflatten(-1, (64, 352))
    page.copy_(rows)

    assert not page.is_contiguous()
    for mine, right in zip(decode_rows(page), decode_rows(rows), strict=True):
        assert torch.equal(mine, right)


@pytest.mark.parametrize("lead", [(0,), (0, 64), (2, 0)])
def test_no_tokens_make_no_rows(lead: tuple[int, ...]) -> None:
    for policy in POLICIES:
        rows = encode_rows(*_parts(*lead), policy)
        latent, rope = decode_rows(rows)

        assert (rows.shape, latent.shape, rope.shape) == ((*lead, 352), (*lead, 512), (*lead, 64))


def test_weights_that_want_gradients_are_encoded_without() -> None:
    latent, rope = _parts(2, dtype=torch.float32)
    rows = encode_rows(latent.clone().requires_grad_(), rope)

    assert not rows.requires_grad
    assert torch.equal(rows, encode_rows(latent, rope))


def test_the_inputs_are_left_as_they_were() -> None:
    latent, rope = _parts(4, dtype=torch.float32)
    before = latent.clone(), rope.clone()
    for policy in POLICIES:
        encode_rows(latent, rope, policy)

    assert torch.equal(latent, before[0])
    assert torch.equal(rope, before[1])


def test_temporaries_do_not_grow_with_the_batch() -> None:
    """The only tensor larger than a chunk in float32 is the result, however many rows there are."""
    large = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.untyped_storage().nbytes() > codec.CHUNK * 512 * 4:
                large.add(out.untyped_storage().data_ptr())
            return out

    latent, rope = _parts(8 * codec.CHUNK)
    with Watch():
        rows = encode_rows(latent, rope, "search")

    assert large == {tensor.untyped_storage().data_ptr() for tensor in (latent, rows)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"latent": torch.zeros(2, 448)}, r"latent float32 \[2, 448\] on cpu.*\[\.\.\., 512\].*another model geometry"),
        ({"latent": torch.zeros(2, 512).double()}, r"latent float64 \[2, 512\].*bfloat16, float16 or float32.*Convert"),
        ({"latent": torch.zeros(2, 512).int()}, r"latent int32"),
        ({"latent": torch.tensor(1.0)}, r"latent float32 \[\] on cpu"),
        ({"rope": torch.zeros(2, 0)}, r"rope float32 \[2, 0\] on cpu.*64 rope values.*another model geometry"),
        ({"rope": torch.zeros(1, 64)}, r"latent float32 \[2, 512\] on cpu and rope float32 \[1, 64\].*same tokens"),
        ({"rope": torch.zeros(2, 64, device="meta")}, r"rope float32 \[2, 64\] on meta.*one device"),
        ({"policy": "ceil"}, r"policy='ceil'.*allowed: rtn, four_over_six, search"),
    ],
)
def test_what_is_no_pair_of_parts_is_refused(change: dict[str, Any], message: str) -> None:
    arguments = {"latent": torch.zeros(2, 512), "rope": torch.zeros(2, 64), "policy": "rtn", **change}

    with pytest.raises(RowsRefused, match=message):
        encode_rows(**arguments)


@pytest.mark.parametrize("part", ["latent", "rope"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_refused(part: str, bad: float) -> None:
    parts = dict(zip(("latent", "rope"), _parts(3), strict=True))
    parts[part][2, 7] = bad
    name = "inf" if part == "latent" and bad < 0 else str(bad)

    with pytest.raises(RowsRefused, match=rf"{part} holds {name}: a row cannot store it; allowed: finite values"):
        encode_rows(**parts)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.zeros(2, 656, dtype=torch.uint8), r"rows uint8 \[2, 656\] on cpu.*allowed: uint8 \[\.\.\., 352\]"),
        (torch.zeros(2, 352, dtype=torch.int8), r"rows int8 \[2, 352\]"),
        (torch.tensor(1, dtype=torch.uint8), r"rows uint8 \[\]"),
    ],
)
def test_what_is_no_row_is_refused(rows: Any, message: str) -> None:
    with pytest.raises(RowsRefused, match=message):
        decode_rows(rows)
