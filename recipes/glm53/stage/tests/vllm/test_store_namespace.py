from types import SimpleNamespace

import pytest
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.namespace.errors import KeyRefused
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.worker import namespaced

CONFIG = {
    "num_hidden_layers": 1,
    "kv_lora_rank": 512,
    "index_topk": 64,
    "model_type": "glm_moe_dsa",
}
PREFIX = "tenant@"


def config(chosen, **changed):
    facts = {"model": "/models/glm", "dtype": "fp8", "block_size": 64, "algorithm": "sha256", "tp": 1, **changed}
    parallel = {f"{name}_parallel_size": 1 for name in ("pipeline", "decode_context", "prefill_context")}
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_connector_extra_config={} if chosen is None else {"key_namespace": chosen}
        ),
        model_config=SimpleNamespace(
            model=facts["model"],
            revision=None,
            dtype=torch.bfloat16,
            quantization=None,
            hf_text_config=SimpleNamespace(to_dict=lambda: CONFIG),
        ),
        cache_config=SimpleNamespace(
            cache_dtype=facts["dtype"], block_size=facts["block_size"], prefix_caching_hash_algo=facts["algorithm"]
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=facts["tp"], **parallel),
        device_config=SimpleNamespace(device_type="cuda"),
        load_config=SimpleNamespace(load_format="auto", download_dir=None),
        speculative_config=None,
        lora_config=None,
    )


def caches(layout="BLHNC", page=64 * 576):
    layers = ["model.layers.0.self_attn.attn", "model.layers.0.self_attn.indexer.k_cache"]
    tensors = [
        SimpleNamespace(layers=[layers[0]], layer_stride=page, block_stride=1 << 20, offset=0),
        SimpleNamespace(layers=[layers[1]], layer_stride=64 * 132, block_stride=1 << 20, offset=page),
    ]
    return SimpleNamespace(
        kv_cache_layout=layout,
        kv_cache_tensors=tensors,
        kv_cache_groups=[SimpleNamespace(layer_names=layers)],
        hisparse_host_num_blocks=None,
    )


NAMED = {"model": "zai-org/GLM-5.3", "revision": "c0ffee", "weights": "one"}


@pytest.fixture(autouse=True)
def seed(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")


def test_keys_stay_as_they_are_unless_a_namespace_is_asked_for():
    assert namespaced(PREFIX, config(None), caches()) == PREFIX
    assert namespaced(PREFIX, config(False), caches()) == PREFIX


def test_everything_that_decides_the_bytes_of_a_block_changes_the_namespace():
    same = namespaced(PREFIX, config(NAMED), caches())
    assert same.startswith(PREFIX + "mt1-")
    assert same == namespaced(PREFIX, config(dict(NAMED)), caches())
    others = [
        namespaced(PREFIX, config({**NAMED, "revision": "decade"}), caches()),
        namespaced(PREFIX, config({**NAMED, "weights": "two"}), caches()),
        namespaced(PREFIX, config({**NAMED, "model": "other/GLM-5.3"}), caches()),
        namespaced(PREFIX, config(NAMED, dtype="nvfp4_ds_mla"), caches()),
        namespaced(PREFIX, config(NAMED, block_size=128), caches()),
        namespaced(PREFIX, config(NAMED, tp=2), caches()),
        namespaced(PREFIX, config(NAMED), caches(layout="BLNHC")),
        namespaced(PREFIX, config(NAMED), caches(page=64 * 352)),
    ]
    assert len({same, *others}) == 9


def test_weights_that_nobody_can_name_are_refused():
    with pytest.raises(KeyRefused, match="key_namespace"):
        namespaced(PREFIX, config(True, model="/no/such/folder"), caches())
