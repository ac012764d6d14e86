"""What is wrong or missing in the stock release, so that the day it is cured a test says what to delete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the pinned stock environment: make test")

import torch
from dsa_engine import engine, generate, prompt, runner

HEADS, DIM = 4, 64


def rotated_by_stock(q: list[list[float]], shape: tuple[int, ...]) -> list[list[float]]:
    """vLLM's compiled CPU rotary op on ``q`` [tokens, heads * DIM], passed in the given shape."""
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    query = torch.tensor(q).view(*shape).contiguous()
    key = torch.zeros(len(q), *((1, DIM) if len(shape) == 3 else (DIM,)))
    angle = torch.arange(32)[:, None] / 10000.0 ** (torch.arange(0, DIM, 2) / DIM)
    table = torch.cat((angle.cos(), angle.sin()), dim=-1)
    torch.ops._C.rotary_embedding(torch.arange(len(q)), query, key, DIM, table, False)
    return query.view(len(q), -1).tolist()


def _rotated(q: torch.Tensor) -> torch.Tensor:
    """The definition in float64: neighbouring elements are the two coordinates of one rotated point."""
    tokens = q.shape[0]
    points = torch.view_as_complex(q.double().view(tokens, HEADS, DIM // 2, 2))
    angle = torch.arange(tokens, dtype=torch.float64)[:, None] / 10000.0 ** (
        torch.arange(0, DIM, 2, dtype=torch.float64) / DIM
    )
    turned = points * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.view_as_real(turned).reshape(tokens, -1)


def test_the_compiled_rotary_op_is_right_on_two_dimensions_and_wrong_on_the_three_that_mla_passes(
    run: Callable[..., Any],
) -> None:
    """Once this fails for three dimensions, delete ROTARY_OFF in vllm_cpu_dsa/settle.py and this test."""
    q = torch.randn(6, HEADS * DIM, generator=torch.Generator().manual_seed(0))

    flat = torch.tensor(run(rotated_by_stock, q.tolist(), (6, HEADS * DIM)))
    by_head = torch.tensor(run(rotated_by_stock, q.tolist(), (6, HEADS, DIM)))

    assert (flat - _rotated(q)).abs().max() < 1e-5
    # In three dimensions it takes each row of DIM elements for a token, so only some rows are rotated at all.
    wrong = (by_head - _rotated(q)).abs().view(6, HEADS, DIM).amax((0, 2))
    assert (wrong > 0.5).all(), "stock rotates three dimensions rightly now: its op can be used again"


def sampled(model: Path, **options: Any) -> list[list[int]]:
    """Sampled tokens of a short and of a long prompt, each with a seed of its own."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": prompt(length, length)} for length in (40, 300)]
    settings = [SamplingParams(seed=seed, temperature=1.0, max_tokens=8, ignore_eos=True) for seed in (5, 6)]
    with engine(model, **options) as llm:
        return [list(done.outputs[0].token_ids) for done in llm.generate(prompts, settings, use_tqdm=False)]


def test_a_seeded_prompt_in_chunks_samples_what_it_samples_in_one_step(
    run: Callable[..., Any], folder: Callable[..., Path]
) -> None:
    """Stock turns the generator back by the draws of unfinished prompts, which a CPU generator refuses."""
    with pytest.raises(RuntimeError, match="CPU Generator does not use offset"):
        torch.Generator().get_offset()

    model = folder(layers=1)
    assert run(sampled, model, max_num_batched_tokens=64) == run(sampled, model, max_num_batched_tokens=512)


def rotary_of(model: Path) -> tuple[bool, list[str]]:
    """Whether the compiled op is switched on for any rotary layer of a running engine; and custom_ops."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    with engine(model) as llm:
        layers = [m for m in runner(llm).model.modules() if isinstance(m, RotaryEmbedding)]
        assert layers
        compiled = any(m._forward_method.__name__ == "forward_cpu" for m in layers)
        with set_current_vllm_config(runner(llm).vllm_config):
            return compiled, list(runner(llm).compilation_config.custom_ops)


def test_an_engine_runs_the_torch_version_of_the_rotary_op_without_being_told(
    run: Callable[..., Any], folder: Any
) -> None:
    compiled, ops = run(rotary_of, folder())

    assert compiled is False
    assert "-rotary_embedding" in ops


def sparse_attention_of_stock() -> str:
    from vllm.platforms.cpu import CpuPlatform

    asked = SimpleNamespace(use_sparse=True, use_mla=True, kv_cache_dtype="auto")
    try:
        return CpuPlatform.get_attn_backend_cls(None, asked)
    except NotImplementedError as refusal:
        return f"refused: {refusal}"


def test_stock_still_refuses_sparse_attention_on_the_cpu(run: Callable[..., Any]) -> None:
    """Once this fails, compare stock's backend with this plugin's; the plugin may have done its duty."""
    assert run(sparse_attention_of_stock) == "refused: Sparse Attention is not supported on CPU."


def obsolete_patches() -> list[str]:
    from vllm_cpu_dsa.patches import REGISTER, VLLM

    version = VLLM.require()
    return [
        patch.id
        for patch in REGISTER.patches
        if patch.window.contains(version) and patch.obsolete is not None and patch.obsolete()
    ]


def test_no_patch_is_obsolete_on_this_release(run: Callable[..., Any]) -> None:
    """Each record's remove_when, evaluated. A patch named here is to be deleted from vllm_cpu_dsa/patches.py."""
    found = run(obsolete_patches)

    assert found == []


def test_every_patch_says_how_to_know_that_it_is_obsolete() -> None:
    from vllm_cpu_dsa.patches import REGISTER

    assert [patch.id for patch in REGISTER.patches if patch.obsolete is None] == []


def registered_twice() -> tuple[list[tuple[str, str]], list[str]]:
    import vllm_cpu_dsa
    from vllm_cpu_dsa.patches import REGISTER

    vllm_cpu_dsa.register()
    vllm_cpu_dsa.register()
    from vllm.platforms import current_platform

    current_platform.register_triton_kernel_overrides()
    current_platform.register_triton_kernel_overrides()
    return [(row.id, row.status) for row in REGISTER.report().rows], [type(current_platform).__name__]


def test_registering_twice_is_harmless_and_reported_once(run: Callable[..., Any], folder: Any) -> None:
    rows, platform = run(registered_twice)

    assert platform == ["CpuDsaPlatform"]
    assert {status for name, status in rows if name != "cpu-slot-mapping"} == {"applied"}
    assert run(generate, folder(), [prompt(20)], tokens=2).tokens
