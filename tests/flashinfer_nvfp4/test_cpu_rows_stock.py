"""The CPU's row format is the codec, and holds no other geometry."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs torch: make test")

import torch

from flashinfer_nvfp4.codec import decode_rows, encode_rows
from flashinfer_nvfp4.cpu_rows import Nvfp4Rows
from flashinfer_nvfp4.errors import RowsRefused
from flashinfer_nvfp4.policy import POLICIES, SETTING, Policy


@pytest.mark.parametrize("policy", POLICIES)
def test_it_writes_and_reads_the_bytes_of_the_codec(monkeypatch: pytest.MonkeyPatch, policy: Policy) -> None:
    monkeypatch.setenv(SETTING, policy)
    generator = torch.Generator().manual_seed(1)
    latent, rope = torch.randn(5, 512, generator=generator), torch.randn(5, 64, generator=generator)

    rows = Nvfp4Rows().encode(latent, rope)

    assert torch.equal(rows, encode_rows(latent, rope, policy))
    for part, expected in zip(Nvfp4Rows().decode(rows), decode_rows(rows), strict=True):
        assert torch.equal(part, expected)


@pytest.mark.parametrize(
    ("latent", "rope", "said"),
    [(512, 0, "rope float32 \\[2, 0\\]"), (256, 64, "latent float32 \\[2, 256\\]"), (512, 32, "rope float32")],
)
def test_another_geometry_is_refused_by_name(latent: int, rope: int, said: str) -> None:
    """GLM-5.3-Flash, for one, has no RoPE part."""
    with pytest.raises(RowsRefused, match=f"{said}.*another width is another model geometry"):
        Nvfp4Rows().encode(torch.zeros(2, latent), torch.zeros(2, rope))


def test_a_latent_that_no_row_can_hold_is_refused() -> None:
    latent = torch.zeros(1, 512)
    latent[0, 3] = float("nan")

    with pytest.raises(RowsRefused, match="latent holds nan.*Find the layer that produced it"):
        Nvfp4Rows().encode(latent, torch.zeros(1, 64))
