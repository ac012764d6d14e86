"""What the encoding kernel must do on any device; `test_kernels_stock` and `test_kernels_gpu` run it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_calls import KernelRefused, cache_of, cached

from flashinfer_nvfp4.codec import POLICIES, Policy, encode_rows
from flashinfer_nvfp4.rowformat import E2M1_VALUES, E4M3_MAX_CODE

each_policy = pytest.mark.parametrize("policy", POLICIES)
FILLER = 0xA5
SCALES = torch.arange(1, E4M3_MAX_CODE + 1, dtype=torch.uint8).view(torch.float8_e4m3fn).float()


def _written(kernels: Any, latent: Any, rope: Any, policy: str = "rtn") -> Any:
    """The rows that the kernel writes for these tokens."""
    empty = torch.zeros(-(-len(latent) // 64), 64, 352, dtype=torch.uint8)
    return kernels.encode(latent, rope, empty, torch.arange(len(latent)), policy).view(-1, 352)[: len(latent)]


def _latents(blocks: Any) -> Any:
    """Latents [n, 512] of these blocks [m, 16], filled up with zeros."""
    latent = torch.zeros(-(-len(blocks) // 32) * 32, 16)
    latent[: len(blocks)] = blocks
    return latent.view(-1, 512)


class EncodeChecks:
    @each_policy
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
    def test_rows_are_the_codecs_byte_for_byte(self, kernels: Any, policy: Policy, dtype: Any) -> None:
        """Sizes from underflow to saturation, even and heavy-tailed values, and values on quarters of a code."""
        torch.manual_seed(0)
        latent = torch.randn(192, 512) * torch.exp2(torch.randint(-14, 12, (192, 1)).float())
        latent[64:128] = torch.distributions.StudentT(2.0).sample((64, 512))
        latent[128:] = (latent[128:] * 4).round() / 4
        rope = torch.randn(192, 64) * torch.exp2(torch.randint(-14, 9, (192, 1)).float())
        latent, rope = latent.to(dtype), rope.to(dtype)

        assert torch.equal(_written(kernels, latent, rope, policy), encode_rows(latent, rope, policy))

    @each_policy
    def test_every_bfloat16_value_is_encoded_as_by_the_codec(self, kernels: Any, policy: Policy) -> None:
        """All 65,280 finite ones, each as the maximum of a block and as a RoPE element."""
        magnitudes = torch.arange(0x7F80, dtype=torch.int16).view(torch.bfloat16)
        values = torch.cat((magnitudes, -magnitudes))
        if policy != "rtn":
            values = values[::5]
        blocks = torch.zeros(len(values), 16)
        blocks[:, 5] = values.float()
        blocks[:, 11] = values.float() * 0.3
        latent = _latents(blocks).bfloat16()
        rope = torch.zeros(len(latent) * 64, dtype=torch.bfloat16)
        rope[: len(values)] = values
        rope = rope.view(-1, 64)

        assert torch.equal(_written(kernels, latent, rope, policy), encode_rows(latent, rope, policy))

    @each_policy
    @pytest.mark.parametrize("neighbour", [-1, 0, 1])
    def test_elements_at_and_beside_every_tie_round_as_in_the_codec(
        self, kernels: Any, policy: Policy, neighbour: int
    ) -> None:
        """The 7 midpoints under each of the 126 scales and the float32 values next to them; RoPE midpoints too."""
        codes = torch.tensor(E2M1_VALUES)
        blocks = torch.zeros(len(SCALES), 16)
        blocks[:, 0] = 6 * SCALES
        blocks[:, 1:8] = SCALES[:, None] * (codes[1:] + codes[:-1]) / 2
        rope = torch.zeros(len(_latents(blocks)), 64)
        rope.view(-1)[:125] = (SCALES[1:] + SCALES[:-1]) / 2
        if neighbour:
            towards = torch.tensor(neighbour * float("inf"))
            blocks[:, 1:8] = torch.nextafter(blocks[:, 1:8], towards)
            rope = torch.nextafter(rope, towards).clamp(min=0)
        blocks[:, 8:15] = -blocks[:, 1:8]
        latent = _latents(blocks)

        assert torch.equal(_written(kernels, latent, rope, policy), encode_rows(latent, rope, policy))

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.sampled_from(POLICIES),
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=16, max_size=80),
    )
    def test_any_finite_values_are_encoded_as_by_the_codec(self, kernels: Any, policy: Policy, values: Any) -> None:
        given = torch.tensor(values)
        latent = given.repeat(512 // len(values) + 1)[:512].view(1, 512)
        rope = latent[:, 100:164].contiguous()

        assert torch.equal(_written(kernels, latent, rope, policy), encode_rows(latent, rope, policy))

    @each_policy
    def test_zeros_and_signs_are_stored_as_by_the_codec(self, kernels: Any, policy: Policy) -> None:
        latent = torch.zeros(4, 512)
        latent[1] = -0.0
        latent[2] = -1e-4
        latent[3] = -1e-42
        rope = torch.tensor([0.0, -0.0]).repeat(4, 32)
        rows = _written(kernels, latent, rope, policy)

        assert rows[0].tolist() == [0] * 256 + [0, 0x80] * 32 + [1] * 32
        assert rows[2].tolist() == [0x88] * 256 + [0, 0x80] * 32 + [1] * 32
        assert torch.equal(rows, encode_rows(latent, rope, policy))

    @each_policy
    def test_what_the_codec_refuses_is_stored_to_be_seen_or_saturated(self, kernels: Any, policy: Policy) -> None:
        latent, rope = torch.ones(1, 512), torch.ones(1, 64)
        latent[0, 16], latent[0, 32] = float("nan"), -float("inf")
        rope[0, :3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
        row = _written(kernels, latent, rope, policy)[0].tolist()
        scales = [row[320 + 8 * (b % 4) + b // 4] for b in range(32)]

        assert scales[1] == 0x7F
        assert scales[2] == 0x7E
        assert [scale for b, scale in enumerate(scales) if b not in (1, 2)] == [scales[0]] * 30
        assert row[16] & 15 == 0xF  # -6 times 448
        assert [code & 0x7F for code in row[256:259]] == [0x7F, 0x7E, 0x7E]
        assert row[258] == 0xFE
        assert row[259:320] == [0x38] * 61

    @pytest.mark.parametrize("kind", [torch.int64, torch.int32], ids=str)
    @pytest.mark.parametrize("apart", [0, 64 * 352 + 4096], ids=["back-to-back", "block-rows"])
    def test_only_the_rows_in_slots_of_the_cache_are_written(self, kernels: Any, kind: Any, apart: int) -> None:
        """Empty, negative and too large slots skip their token; nothing between or beside rows changes."""
        torch.manual_seed(1)
        latent, rope = torch.randn(9, 512).bfloat16(), torch.randn(9, 64).bfloat16()
        slots = torch.tensor([7, -1, 190, 64, -2, 192, 2**31 - 1, 63, -(2**31)], dtype=kind)
        before = cache_of(torch.full((192, 352), FILLER, dtype=torch.uint8), apart=apart, filler=FILLER)
        after = kernels.encode(latent, rope, before.clone() if not apart else before, slots)
        tokens = torch.tensor([0, 2, 3, 7])
        right = encode_rows(latent, rope)
        storage = torch.empty(0, dtype=torch.uint8).set_(after.untyped_storage())

        assert torch.equal(cached(after, slots[tokens].long()), right[tokens])
        changed = (storage != FILLER).sum()
        assert changed == (right[tokens] != FILLER).sum()

    def test_tokens_may_lie_apart(self, kernels: Any) -> None:
        """Slices of one wider projection, as vLLM's are."""
        torch.manual_seed(2)
        wide = torch.randn(70, 2048 + 512 + 64 + 128).bfloat16()
        latent, rope = wide[:, 2048:2560], wide[:, 2560:2624]

        assert torch.equal(_written(kernels, latent, rope), encode_rows(latent, rope))

    def test_slots_may_lie_apart_and_blocks_have_any_size(self, kernels: Any) -> None:
        torch.manual_seed(3)
        latent, rope = torch.randn(5, 512), torch.randn(5, 64)
        slots = torch.tensor([[11, 0], [4, 0], [-1, 0], [0, 0], [5, 0]])[:, 0]
        after = kernels.encode(latent, rope, torch.zeros(4, 3, 352, dtype=torch.uint8), slots)

        assert torch.equal(cached(after, slots[[0, 1, 3, 4]]), encode_rows(latent, rope)[[0, 1, 3, 4]])

    def test_no_tokens_write_nothing(self, kernels: Any) -> None:
        cache = torch.full((1, 64, 352), FILLER, dtype=torch.uint8)
        after = kernels.encode(torch.zeros(0, 512), torch.zeros(0, 64), cache, torch.zeros(0, dtype=torch.int64))

        assert after.unique().tolist() == [FILLER]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"policy": "ceil"}, r"policy='ceil'.*allowed: rtn, four_over_six, search"),
            ({"latent": torch.zeros(2, 448)}, r"latent float32 \[2, 448\].*\[any, 512\].*other model geometries"),
            ({"latent": torch.zeros(2, 512).double()}, r"latent float64.*bfloat16 or float16 or float32"),
            ({"rope": torch.zeros(3, 64)}, r"rope float32 \[3, 64\].*\[2, 64\]"),
            ({"slots": torch.zeros(2)}, r"slots float32 \[2\].*int64 or int32 \[2\]"),
            ({"slots": torch.zeros(1, dtype=torch.int64)}, r"slots int64 \[1\]"),
            ({"cache": torch.zeros(2, 64, 656, dtype=torch.uint8)}, r"cache uint8 \[2, 64, 656\].*block size, 352\]"),
            ({"cache": torch.zeros(2, 64, 352, dtype=torch.int8)}, r"cache int8"),
            ({"cache": torch.zeros(64, 352, dtype=torch.uint8)}, r"cache uint8 \[64, 352\].*unsqueeze\(1\)"),
            (
                {"cache": torch.zeros(64, 2, 352, dtype=torch.uint8).transpose(0, 1)},
                r"strides \[352, 704, 1\].*\[22528 or more, 352, 1\]",
            ),
            ({"cache": torch.zeros(1, 64, 352, dtype=torch.uint8).expand(2, -1, -1)}, r"strides \[0, 352, 1\]"),
            (
                {"cache": torch.zeros(2 * 22536, dtype=torch.uint8).as_strided((2, 64, 352), (22536, 352, 1))},
                r"blocks 22536 bytes apart.*multiples of 16 bytes",
            ),
            (
                {"cache": torch.zeros(22536, dtype=torch.uint8)[8:].view(1, 64, 352)},
                r"cache at address 0x[0-9a-f]+8 .*multiples of 16",
            ),
            ({"latent": torch.zeros(512, 2).T}, r"latent with strides \[1, 2\].*latent\.contiguous\(\)"),
            ({"latent": torch.zeros(2, 513)[:, 1:]}, r"latent at address.*strides \[513, 1\] of 4 bytes"),
            ({"rope": torch.zeros(2, 66)[:, :64]}, r"rope at address.*strides \[66, 1\] of 4 bytes"),
            ({"slots": torch.zeros(2, dtype=torch.int64, device="meta")}, r"slots on meta.*all tensors on one device"),
        ],
    )
    def test_what_the_kernel_cannot_take_is_refused(self, kernels: Any, change: Any, message: str) -> None:
        arguments = {
            "latent": torch.zeros(2, 512),
            "rope": torch.zeros(2, 64),
            "cache": torch.zeros(2, 64, 352, dtype=torch.uint8),
            "slots": torch.arange(2),
            **change,
        }

        with pytest.raises(KernelRefused, match=message):
            kernels.encode(**arguments)
