"""Bytes of GLM-5.3's weights follow from its published dimensions, matrix by matrix."""

from __future__ import annotations

import pytest

from glm53.deployment.facts import DENSE_BYTES, WEIGHT_BYTES

HIDDEN, VOCABULARY, LAYERS, MOE_LAYERS, INDEXED = 6144, 154_880, 78, 75, 21
EXPERT = 3 * HIDDEN * 2048  # gate, up and down of a routed expert, and of the shared one
EXPERTS = 256 * EXPERT
ROUTER = 256 * HIDDEN
ATTENTION = (
    HIDDEN * 2048  # queries, down
    + 2048 * 64 * (192 + 64)  # and up: 64 heads
    + HIDDEN * (512 + 64)  # latent and rotary key
    + 512 * 64 * (192 + 256)  # keys and values of all heads from the latent
    + 64 * 256 * HIDDEN  # output
)
INDEXER = 2048 * 32 * 128 + HIDDEN * 128 + HIDDEN * 32
#: Outside the routed experts: embedding and head, attention, 3 dense layers, shared experts, routers, indexers.
MODEL = (
    2 * VOCABULARY * HIDDEN
    + LAYERS * ATTENTION
    + 3 * 3 * HIDDEN * 12_288
    + MOE_LAYERS * (EXPERT + ROUTER)
    + INDEXED * INDEXER
)
#: The prediction layer's, without its routed experts.
DRAFT = ATTENTION + EXPERT + ROUTER + 2 * HIDDEN * HIDDEN + INDEXER
GB = 10**9


def test_the_dimensions_give_the_published_parameters() -> None:
    """Published: 743 billion without the prediction layer, 753 with it."""
    assert round((MODEL + MOE_LAYERS * EXPERTS) / GB) == 743
    assert round((MODEL + DRAFT + (MOE_LAYERS + 1) * EXPERTS) / GB) == 753


def test_whole_checkpoints_are_these_parameters() -> None:
    parameters = MODEL + DRAFT + (MOE_LAYERS + 1) * EXPERTS

    assert WEIGHT_BYTES["bf16"] == pytest.approx(2 * parameters, abs=GB)
    assert WEIGHT_BYTES["fp8"] == pytest.approx(parameters, abs=GB)
    # 4 bits and a scale of 8 bits for 16 values in the experts of 75 layers; the prediction layer stays in 16 bits.
    nvfp4 = MOE_LAYERS * EXPERTS * 9 / 16 + 2 * (MODEL + DRAFT + EXPERTS)
    assert WEIGHT_BYTES["nvfp4"] == pytest.approx(nvfp4, abs=GB)


def test_what_expert_parallelism_does_not_divide_is_all_but_routed_experts_the_prediction_layers_included() -> None:
    assert DENSE_BYTES["bf16"] == DENSE_BYTES["nvfp4"] == pytest.approx(2 * (MODEL + DRAFT), abs=GB)
    assert DENSE_BYTES["fp8"] == pytest.approx(MODEL + DRAFT, abs=GB)
