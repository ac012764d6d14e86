"""The CUDA sources' row conversion, compiled for the host, against the codec and the element formats' tables."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch
from exact_rows import E2M1, E4M3
from host_tile import HostTile, build

from flashinfer_nvfp4.codec import POLICIES, Policy, decode_rows, encode_rows


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> HostTile:
    return build(tmp_path_factory.mktemp("host"))


def _in_rows(blocks: Any) -> Any:
    """Blocks [n, 16] as latents [m, 512], the last one filled up with zeros."""
    latent = torch.zeros(-(-len(blocks) // 32), 512)
    latent.view(-1, 16)[: len(blocks)] = blocks
    return latent


def _same(host: HostTile, latent: Any, policy: Policy, rope: Any = None) -> bool:
    rope = torch.zeros(len(latent), 64) if rope is None else rope
    return torch.equal(host.encode(latent, rope, policy), encode_rows(latent, rope, policy))


def test_every_e4m3_and_e2m1_code_has_the_value_of_its_table(host: HostTile) -> None:
    values = [host.element("e4m3_value", code) for code in range(256)]

    assert values[:0x7F] == [float(value) for value in E4M3]
    assert values[0x80:0xFF] == [-float(value) for value in E4M3]
    assert [values[code] != values[code] for code in (0x7F, 0xFF)] == [True, True]
    assert [host.element("e2m1_value", code) for code in range(16)] == [
        *(float(value) for value in E2M1),
        *(-float(value) for value in E2M1),
    ]


def test_every_float16_and_each_midpoint_rounds_as_torch_rounds(host: HostTile) -> None:
    halves = torch.arange(0x7C01, dtype=torch.int16).view(torch.float16)
    values = halves.float()
    between = (values[:-2] + values[1:-1]) / 2
    assert [host.element("half_value", code) for code in range(0x7C01)] == values.tolist()
    for floats in (values, between, between.nextafter(torch.tensor(0.0)), between.nextafter(torch.tensor(1e9))):
        for sign in (1, -1):
            signed = floats * sign
            codes = signed.half().view(torch.int16).int() & 0xFFFF
            assert [host.element("half_code", value) for value in signed.tolist()] == codes.tolist()


def test_output_values_round_as_torch_rounds_to_bfloat16(host: HostTile) -> None:
    torch.manual_seed(3)
    bits = torch.randint(0, 0x7F800000, (20000,), dtype=torch.int32)
    bits = torch.cat((bits, (bits & -0x10000) | 0x8000))  # ties
    values = bits.view(torch.float32)
    codes = values.bfloat16().view(torch.int16).int() & 0xFFFF

    assert [host.element("bfloat16_code", value) for value in values.tolist()] == codes.tolist()


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_of_every_scale_with_every_element_code_are_the_codecs(host: HostTile, policy: Policy) -> None:
    blocks = torch.tensor([[float(s * v * sign) for v in (*E2M1, *E2M1[::-1])] for s in E4M3[1:] for sign in (1, -1)])

    assert _same(host, _in_rows(blocks), policy)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("neighbour", [-1, 0, 1])
def test_rows_of_every_tie_and_its_neighbours_are_the_codecs(host: HostTile, neighbour: int, policy: Policy) -> None:
    ties = [(low + high) / 2 for low, high in pairwise(E2M1)]
    blocks = torch.tensor([[6 * float(s), *(float(s * t) for t in ties), *[0.0] * 8] for s in E4M3[1:]])
    if neighbour:
        blocks[:, 1:8] = blocks[:, 1:8].nextafter(torch.tensor(neighbour * float("inf")))
    blocks[:, 8:15] = -blocks[:, 1:8]

    assert _same(host, _in_rows(blocks), policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_bfloat16_as_the_largest_of_a_block_gives_the_codecs_row(host: HostTile, policy: Policy) -> None:
    values = torch.arange(0x7F80, dtype=torch.int16).view(torch.bfloat16)
    blocks = torch.zeros(len(values), 16)
    blocks[:, 5], blocks[:, 11] = values.float(), -0.4 * values.float()

    assert _same(host, _in_rows(blocks), policy)


def test_every_bfloat16_rope_value_is_coded_as_by_the_codec(host: HostTile) -> None:
    values = torch.arange(0x7F80, dtype=torch.int16).view(torch.bfloat16)
    rope = torch.cat((values, -values)).view(-1, 64)

    assert _same(host, torch.zeros(len(rope), 512), "rtn", rope)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("size", [1.0, 0.002, 700.0])
def test_random_rows_are_the_codecs(host: HostTile, size: float, policy: Policy) -> None:
    torch.manual_seed(4)
    latent = torch.randn(1000, 512) * torch.randn(1000, 512).exp() * size
    rope = torch.randn(1000, 64) * torch.randn(1000, 64).exp() * 30

    assert _same(host, latent, policy, rope)
    assert _same(host, latent.bfloat16(), policy, rope.bfloat16())


@pytest.mark.parametrize("policy", POLICIES)
def test_a_nan_becomes_the_scale_of_its_block_and_infinity_saturates(host: HostTile, policy: Policy) -> None:
    latent = torch.ones(1, 512)
    latent[0, 20], latent[0, 40] = float("nan"), float("inf")
    rope = torch.zeros(1, 64)
    rope[0, :2] = torch.tensor([float("nan"), float("-inf")])
    decoded, rotated = decode_rows(host.encode(latent, rope, policy))

    blocks = decoded.view(32, 16)
    assert blocks.isnan().any(1).tolist() == [block == 1 for block in range(32)]
    assert float(blocks[2].max()) >= 1792.0  # the scale is 448 at most, and 4 or 6 its largest multiple
    assert rotated[0, :3].nan_to_num(7e7).tolist() == [7e7, -448.0, 0.0]


def test_every_code_byte_under_every_scale_unpacks_exactly(host: HostTile) -> None:
    """65,536 pairs of a code byte and a scale, in rows whose 32 blocks have 32 different scales."""
    rows = torch.zeros(256 * 8, 352, dtype=torch.uint8)
    rows.view(256, 8, 352)[:, :, :256] = torch.arange(256, dtype=torch.uint8)[:, None, None]
    rows.view(256, 8, 352)[:, :, 320:] = torch.arange(256, dtype=torch.uint8).view(8, 32)
    rows[:, 256:320] = torch.arange(64, dtype=torch.uint8) + 64 * (torch.arange(256 * 8)[:, None] % 4).to(torch.uint8)
    right = torch.cat(decode_rows(rows), -1)

    assert torch.equal(host.unpack(rows).float().nan_to_num(7e7), right.nan_to_num(7e7))


def test_row_offsets_beyond_two_gigabytes_are_exact(host: HostTile) -> None:
    offset = host.library.nvfp4_host_row_offset
    most = 2**31 - 1

    assert offset(most, most, 0) == 0
    assert offset(most - 1, most, 0) == (most - 1) * 352
    assert offset(most, 1, 352) == most * 352
    assert offset(64 * 40_000 + 63, 64, 1_965_568) == 40_000 * 1_965_568 + 63 * 352
