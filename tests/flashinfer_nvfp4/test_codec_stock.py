"""The codec against rational arithmetic, wherever the domain is finite exhaustively."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch
from exact_rows import (
    E2M1,
    E4M3,
    e2m1_code,
    e4m3_code,
    encode_block,
    float32,
    read_flashinfer,
    read_flashmla,
)

from flashinfer_nvfp4.codec import POLICIES, Policy, decode_rows, encode_rows
from flashinfer_nvfp4.rowformat import ROW_BYTES, SCALE_OFFSET, scale_offset

MIDPOINTS = [(low + high) / 2 for low, high in pairwise(E2M1)]


def _rows(blocks: Any, policy: Policy = "rtn") -> Any:
    """Rows whose first latent blocks are ``blocks`` [n, 16] and whose other values are zero, 32 blocks a row."""
    n = -(-len(blocks) // 32)
    latent = torch.zeros(n * 32, 16)
    latent[: len(blocks)] = blocks
    return encode_rows(latent.view(n, 512), torch.zeros(n, 64), policy)


def _blocks_of(rows: Any, count: int) -> list[tuple[int, list[int]]]:
    """Scale code and element codes of the first `count` blocks, by byte arithmetic on the documented offsets."""
    found = []
    for i in range(count):
        row = bytes(rows[i // 32].tolist())
        block = i % 32
        data = row[8 * block : 8 * block + 8]
        codes = [code for byte in data for code in (byte & 15, byte >> 4)]
        found.append((row[320 + 8 * (block % 4) + block // 4], codes))
    return found


def _exactly(values: Any) -> list[Fraction]:
    return [Fraction(x) for x in values.tolist()]


def test_every_scale_with_every_element_code_survives_the_round_trip() -> None:
    """Two blocks for each of the 126 scales: codes 0 to 7 and 8 to 15 beside a 6 that fixes the scale."""
    blocks = torch.tensor(
        [[float(s * v * sign) for v in (*E2M1, *reversed(E2M1))] for s in E4M3[1:] for sign in (1, -1)]
    )
    rows = _rows(blocks)

    codes = [[*range(8), *range(7, -1, -1)], [0, *range(9, 16), *range(15, 8, -1), 0]]
    assert _blocks_of(rows, len(blocks)) == [(scale, codes[i]) for scale in range(1, 0x7F) for i in (0, 1)]
    assert torch.equal(decode_rows(rows)[0].view(-1, 16)[: len(blocks)], blocks)


def test_every_bfloat16_magnitude_gets_the_scale_of_exact_arithmetic() -> None:
    """32,640 values from zero to the largest: subnormal, ordinary and saturated scales."""
    values = torch.arange(0x7F80, dtype=torch.int16).view(torch.bfloat16)
    blocks = torch.zeros(len(values), 16)
    blocks[:, 5] = values.float()
    rows = _rows(blocks)

    scales = rows[:, SCALE_OFFSET:].view(-1, 4, 8).mT.reshape(-1)[: len(values)].tolist()
    sixth = float32(Fraction(1, 6))
    assert scales == [e4m3_code(max(float32(x * sixth), Fraction(1, 512))) for x in _exactly(values)]
    assert set(scales) == set(range(1, 0x7F))


@pytest.mark.parametrize("neighbour", [-1, 0, 1])
def test_elements_at_and_beside_every_tie_round_as_in_exact_arithmetic(neighbour: int) -> None:
    """The 7 midpoints under each of the 126 scales, and the float32 values next to them."""
    blocks = torch.tensor([[6 * float(s), *(float(s * m) for m in MIDPOINTS), *[0.0] * 8] for s in E4M3[1:]])
    if neighbour:
        blocks[:, 1:8] = torch.nextafter(blocks[:, 1:8], torch.tensor(neighbour * float("inf")))
    blocks[:, 8:15] = -blocks[:, 1:8]

    rows = _rows(blocks)

    assert _blocks_of(rows, 126) == [encode_block(_exactly(block), "rtn")[:2] for block in blocks]


def test_ties_go_to_the_even_code_where_the_reciprocal_of_the_scale_is_exact() -> None:
    blocks = torch.tensor([[6.0, *(float(m) for m in MIDPOINTS), *[0.0] * 8]])

    assert _blocks_of(_rows(blocks), 1)[0] == (0x38, [7, 0, 2, 2, 4, 4, 6, 6, *[0] * 8])


def test_every_bfloat16_rope_value_is_rounded_to_nearest_even_and_saturated() -> None:
    values = torch.arange(0x7F80, dtype=torch.int16).view(torch.bfloat16)
    for sign in (0, 0x80):
        rope = (-values if sign else values).view(-1, 64)
        rows = encode_rows(torch.zeros(len(rope), 512), rope)

        assert rows[:, 256:320].flatten().tolist() == [e4m3_code(x) | sign for x in _exactly(values)]


def test_rope_midpoints_go_to_the_even_code() -> None:
    midpoints = [(low + high) / 2 for low, high in pairwise(E4M3)]
    rope = torch.zeros(2, 64)
    rope.view(-1)[:126] = torch.tensor([float(m) for m in midpoints])

    codes = encode_rows(torch.zeros(2, 512), rope)[:, 256:320].flatten().tolist()

    assert codes[:126] == [code + code % 2 for code in range(126)]


def test_every_byte_decodes_to_the_value_of_its_codes() -> None:
    rows = torch.zeros(256, ROW_BYTES, dtype=torch.uint8)
    rows[:, 0] = rows[:, 255] = rows[:, 256] = torch.arange(256)
    rows[:, SCALE_OFFSET:] = 0x38  # 1.0
    latent, rope = decode_rows(rows)
    rope_by_code = rope[:, 0].tolist()

    signed = [*E2M1, *(-v for v in E2M1)]
    assert latent[:, :2].tolist() == latent[:, 510:].tolist()
    assert latent[:, :2].tolist() == [[float(signed[b & 15]), float(signed[b >> 4])] for b in range(256)]
    assert rope_by_code[:0x7F] == [float(v) for v in E4M3]
    assert rope_by_code[0x80:0xFF] == [-float(v) for v in E4M3]
    assert [rope_by_code[code] != rope_by_code[code] for code in (0x7F, 0xFF)] == [True, True]


def test_every_scale_byte_is_read_at_its_place() -> None:
    """Every byte in every place, alone, on ones: 8,192 rows; a NaN stays inside its block."""
    rows = torch.zeros(256, 32, ROW_BYTES, dtype=torch.uint8)
    rows[..., :256] = 0x22
    expected = torch.zeros(256, 32, 32, 16)
    positive = torch.tensor([*map(float, E4M3), float("nan")])
    for block in range(32):
        rows[:, block, 320 + 8 * (block & 3) + (block >> 2)] = torch.arange(256, dtype=torch.uint8)
        expected[:, block, block] = torch.cat((positive, -positive)).unsqueeze(-1)

    assert torch.equal(decode_rows(rows)[0].nan_to_num(7e7), expected.flatten(-2).nan_to_num(7e7))


def test_the_scale_offsets_are_a_permutation_of_the_last_32_bytes() -> None:
    assert sorted(scale_offset(block) for block in range(32)) == list(range(320, 352))
    assert [scale_offset(b) for b in (0, 1, 2, 3, 4, 31)] == [320, 328, 336, 344, 321, 351]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("size", [1.0, 0.002, 700.0])
def test_rows_are_those_of_exact_arithmetic(policy: Policy, dtype: Any, size: float) -> None:
    """Where two scales leave errors that differ by less than float32 sums resolve, either is right."""
    torch.manual_seed(1)
    latent = (torch.randn(2, 512) * torch.randn(2, 512).exp() * size).clamp(-6e4, 6e4).to(dtype)
    rows = encode_rows(latent, torch.zeros(2, 64), policy)

    for block, (scale, codes) in zip(latent.view(-1, 16), _blocks_of(rows, 64), strict=True):
        values = _exactly(block)
        right_scale, right_codes, least = encode_block(values, policy)
        if scale == right_scale:
            assert codes == right_codes
            continue
        inverse = float32(1 / E4M3[scale])
        assert [c & 7 for c in codes] == [e2m1_code(float32(x * inverse)) for x in values]
        error = sum((E2M1[c & 7] * E4M3[scale] - abs(x)) ** 2 for c, x in zip(codes, values, strict=True))
        assert policy != "rtn"
        assert least <= error <= least * (1 + Fraction(1, 2**19))


@pytest.mark.parametrize("policy", POLICIES)
def test_unmodified_readers_decode_the_rows_to_the_same_values(policy: Policy) -> None:
    """FlashInfer's and FlashMLA's formulas, written out without the plugin."""
    torch.manual_seed(2)
    rows = encode_rows(torch.randn(8, 512) * 3, torch.randn(8, 64) * 30, policy)
    values = torch.cat(decode_rows(rows), -1)

    for row, mine in zip(rows.tolist(), values, strict=True):
        assert read_flashinfer(bytes(row)) == read_flashmla(bytes(row)) == _exactly(mine)


@pytest.mark.parametrize("policy", POLICIES)
def test_zeros_get_the_smallest_scale_and_negative_underflow_keeps_its_sign(policy: Policy) -> None:
    latent = torch.zeros(3, 512)
    latent[1] = -0.0
    latent[2] = -1e-4  # a twentieth of the smallest scale
    rows = encode_rows(latent, torch.tensor([0.0, -0.0]).repeat(3, 32), policy)

    assert rows[0].tolist() == [0] * 256 + [0, 0x80] * 32 + [1] * 32
    assert rows[1].tolist() == rows[0].tolist()
    assert rows[2].tolist() == [0x88] * 256 + [0, 0x80] * 32 + [1] * 32


@pytest.mark.parametrize("policy", POLICIES)
def test_values_beyond_the_range_saturate(policy: Policy) -> None:
    largest = torch.finfo(torch.float32).max
    latent = torch.zeros(1, 512)
    latent[0, ::16] = torch.tensor([2688.0, -2688.0, 2690.0, 1e5, -1e30, largest, -largest, 3000.0]).repeat(4)
    latent[0, 1::16] = 1.0
    rows = encode_rows(latent, torch.tensor([449.0, -largest]).repeat(1, 32), policy)
    decoded, rope = decode_rows(rows)

    assert decoded[0, ::16].tolist() == [2688.0, -2688.0, 2688.0, 2688.0, -2688.0, 2688.0, -2688.0, 2688.0] * 4
    assert decoded[0, 1::16].tolist() == [0.0] * 32
    assert rope[0].tolist() == [448.0, -448.0] * 32


def test_equal_errors_keep_the_stock_scale() -> None:
    """Blocks that amax/6 already holds exactly, zero blocks included, are the same bytes under every policy."""
    torch.manual_seed(3)
    units = torch.tensor([*map(float, E2M1)])[torch.randint(0, 8, (64, 32, 16))]
    units[..., 0] = 6.0
    latent = (units * torch.tensor([*map(float, E4M3[1:])])[torch.randint(0, 126, (64, 32, 1))]).view(64, 512)
    rope = torch.zeros(64, 64)

    assert torch.equal(encode_rows(latent, rope, "search"), encode_rows(latent, rope))
    assert torch.equal(encode_rows(latent, rope, "four_over_six"), encode_rows(latent, rope))
