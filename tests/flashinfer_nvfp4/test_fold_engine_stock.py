"""The fold in a real vLLM engine: GLM-5.3's geometry in bfloat16 with an unquantized cache, on the CPU.

The GPU backend's own hooks fold, inside vLLM's loader and its reload. Its layers do not run here, so those of the CPU
stand for them. The models have no experts, whose weights vLLM garbles when it reloads them on the CPU, folded or not.
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
from flashinfer_nvfp4.fold import fold_model, process_folds
from vllm_cpu_dsa.mla_backend import CpuSparseMLAImpl

fold_loaded, seen, found = folding.fold_loaded, {}, {"refusals": []}


def seeing(model):
    if layers := folding.row_layers(model):
        found["limited"] = folding._limited(model, folding._wanted(model), layers[0])
    seen["model"], seen["exponents"] = model, fold_loaded(model)


folding.fold_loaded = seeing
folding.activate()
folding.activate()
first, other = sys.argv[1:]
prompts = [{"prompt_token_ids": [(i * 37 + s) % 251 for i in range(n)]} for s, n in ((1, 150), (2, 40))]
wanted = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=5, prompt_logprobs=3)


def refusal(call):
    try:
        call()
    except FoldRefused as error:
        found["refusals"].append(str(error))


for fold in (False, True):
    CpuSparseMLAImpl.keeps_nvfp4_rows = fold
    llm = LLM(model=first, dtype="bfloat16", max_model_len=512, kv_cache_memory_bytes=32 << 20, max_num_seqs=4,
              enforce_eager=True, seed=0)

    def logprobs():
        llm.reset_prefix_cache()
        outputs = llm.generate(prompts, wanted, use_tqdm=False)
        return [
            [{token: p.logprob for token, p in step.items()} for step in o.prompt_logprobs[1:] + o.outputs[0].logprobs]
            for o in outputs
        ]

    def reload(**how):
        llm.collective_rpc("reload_weights", kwargs=how)

    runs = [logprobs()]
    for folder in (first, other, first):
        reload(weights_path=folder)
        runs.append(logprobs())
    if fold:
        name = "model.layers.0.self_attn.kv_a_layernorm.weight"
        weight = seen["model"].get_parameter(name).detach() + 1
        refusal(lambda: reload(weights_iterator=[(name, weight)], is_checkpoint_format=False))
        runs.append(logprobs())
    found[str(fold)] = runs
    found["folds"] = process_folds()
    llm.llm_engine.engine_core.shutdown()
found["exponents"] = seen["exponents"]
refusal(lambda: fold_model(seen["model"]))
print(json.dumps(found))
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models of two layers, one of which has small latents and the other large ones, in either order."""
    from safetensors.torch import load_file, save_file

    from glm53.model import make

    folders = []
    for seed, sizes in enumerate(((0.003, 7.0), (0.5, 0.04))):
        folder = tmp_path_factory.mktemp("fold") / "model"
        make(folder, layers=2, dtype="bfloat16", seed=seed)
        [file] = folder.glob("*.safetensors")
        tensors: dict[str, Any] = load_file(file)
        for layer, size in enumerate(sizes):
            prefix = f"model.layers.{layer}.self_attn."
            tensors[f"{prefix}kv_a_layernorm.weight"] *= size
            tensors[f"{prefix}kv_b_proj.weight"] /= size
        for name in [name for name in tensors if name.startswith("model.layers.1.mlp.")]:
            del tensors[name]
        for name in [name for name in tensors if name.startswith("model.layers.0.mlp.")]:
            tensors[name.replace("layers.0", "layers.1")] = tensors[name] * 0.5
        save_file(tensors, file, metadata={"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"first_k_dense_replace": 2}))
        folders.append(folder)
    return folders


def test_a_vllm_engine_gives_the_same_logprobs_to_the_bit_and_again_after_every_reload(models: list[Path]) -> None:
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
        [sys.executable, "-c", ENGINES, *map(str, models)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    (loaded, again, other, back), folded = found["False"], found["True"]

    assert found["exponents"] == {"model.layers.0.self_attn": 8, "model.layers.1.self_attn": -3}
    # Queries of GLM's geometry in vLLM's own modules allow this, or less.
    assert (
        {layer: k * found["exponents"][layer] >= 0 for layer, k in found["limited"].items()}
        == {layer: abs(k) >= abs(found["limited"][layer]) for layer, k in found["exponents"].items()}
        == dict.fromkeys(found["exponents"], True)
    )
    assert len(loaded[0]) == 149 + 6
    assert loaded == again == back != other
    # The second model's own folds would be others; those of the first are kept, and as exact.
    assert found["folds"] == found["exponents"]
    # At last weights in kernel format, of which none was copied.
    assert folded == [loaded, loaded, other, loaded, loaded]
    assert "kernel format (is_checkpoint_format=False)" in found["refusals"][0]
    # Once vLLM has split the projection, a fold would miss its copies.
    assert "these copies of kv_b_proj would stay unfolded" in found["refusals"][1]
