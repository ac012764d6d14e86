"""The fold in a real vLLM engine: GLM-5.3's geometry in bfloat16 with an unquantized cache, on the CPU.

The GPU backend's own hook folds, inside vLLM's loader. Its layers do not run here, so those of the CPU stand for them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: make test")
pytest.importorskip("safetensors", reason="needs the demo extra: make test")
if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs the pinned stock environment: make test", allow_module_level=True)

ENGINES = """
import json, os, sys

from vllm import LLM, SamplingParams

from flashinfer_nvfp4 import folding
from flashinfer_nvfp4.errors import FoldRefused
from flashinfer_nvfp4.fold import fold_model
from vllm_cpu_dsa.mla_backend import CpuSparseMLAImpl

fold_loaded, seen = folding.fold_loaded, {}


def seeing(model):
    seen["model"], seen["exponents"] = model, fold_loaded(model)


folding.fold_loaded = seeing
folding.activate()
folding.activate()
prompts = [{"prompt_token_ids": [(i * 37 + s) % 251 for i in range(n)]} for s, n in ((1, 150), (2, 40))]
found = {}
for fold in (False, True):
    CpuSparseMLAImpl.keeps_nvfp4_rows = fold
    llm = LLM(model=sys.argv[1], dtype="bfloat16", max_model_len=512, kv_cache_memory_bytes=32 << 20, max_num_seqs=4,
              enforce_eager=True, seed=0)
    wanted = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=5, prompt_logprobs=3)
    outputs = llm.generate(prompts, wanted, use_tqdm=False)
    found[str(fold)] = [
        [{token: p.logprob for token, p in step.items()} for step in o.prompt_logprobs[1:] + o.outputs[0].logprobs]
        for o in outputs
    ]
    llm.llm_engine.engine_core.shutdown()
found["exponents"] = seen["exponents"]
found["refusals"] = []
for late in (fold_model, lambda model: folding.refuse_reload()):
    try:
        late(seen["model"])
    except FoldRefused as error:
        found["refusals"].append(str(error))
print(json.dumps(found))
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture(scope="module")
def small_latents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer model whose latents are small in one layer and large in the other."""
    from safetensors.torch import load_file, save_file

    from glm53.model import make

    folder = tmp_path_factory.mktemp("fold") / "model"
    make(folder, layers=2, dtype="bfloat16")
    [file] = folder.glob("*.safetensors")
    tensors: dict[str, Any] = load_file(file)
    for layer, size in ((0, 0.003), (1, 7.0)):
        prefix = f"model.layers.{layer}.self_attn."
        tensors[f"{prefix}kv_a_layernorm.weight"] *= size
        tensors[f"{prefix}kv_b_proj.weight"] /= size
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def test_a_vllm_engine_gives_the_same_logprobs_to_the_bit(small_latents: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")} | {
        "VLLM_CPU_DSA": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", ENGINES, str(small_latents)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])

    assert found["exponents"] == {"model.layers.0.self_attn": 8, "model.layers.1.self_attn": -3}
    assert len(found["False"][0]) == 149 + 6
    assert found["True"] == found["False"]
    # Once vLLM has split the projection, a fold would miss its copies.
    assert "these copies of kv_b_proj would stay unfolded" in found["refusals"][0]
    assert "weights loaded again into a running engine" in found["refusals"][1]
