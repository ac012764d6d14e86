"""The namespace of a vLLM configuration: what is told apart, and what is refused.

The configurations are fakes with the fields of vLLM's; a real engine's is in test_tier_offload_stock.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mooncake_tier.errors import KeyRefused
from mooncake_tier.identity import deployment, row_facts
from mooncake_tier.identity.deployment import Identity, namespace_fields
from mooncake_tier.identity.model_layers import LayerCounts, is_indexer, is_prediction
from mooncake_tier.keys import namespace

#: The parts of GLM-5.3's config.json that decide its caches.
GLM = {
    "kv_lora_rank": 512,
    "index_topk": 2048,
    "num_hidden_layers": 78,
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
}
SMALL = GLM | {"num_hidden_layers": 4}
LAYERS = [0, 1, 2, 3, 4]
INDEXERS = [0, 1, 2, 4]


@dataclass
class Tensor:
    """vLLM's KVCacheTensor: where the pages of some caches lie."""

    layers: list[str]
    layer_stride: int
    block_stride: int
    offset: int


def _names() -> list[str]:
    """In the order in which vLLM's model registers them; layer 4 predicts."""
    return [
        name
        for layer in LAYERS
        for name in (
            *([f"model.layers.{layer}.self_attn.indexer.k_cache"] if layer in INDEXERS else []),
            f"model.layers.{layer}.self_attn.attn",
        )
    ]


def _caches(layout: str = "LBHNC", names: list[str] | None = None) -> Any:
    """100 blocks with pages of 8,448 bytes for indexers and 36,864 for MLA."""
    all_names = names or _names()
    tensors, offset = [], 0
    row = sum(8448 if ".indexer." in name else 36_864 for name in all_names)
    for page, group in (
        (8448, [name for name in all_names if ".indexer." in name]),
        (36_864, [name for name in all_names if ".indexer." not in name]),
    ):
        packed = layout.startswith("B")
        tensors.append(Tensor(group, page if packed else page * 100, row if packed else page, offset))
        offset += page * len(group) * (1 if packed else 100)
    return SimpleNamespace(
        kv_cache_layout=layout,
        kv_cache_tensors=tensors,
        kv_cache_groups=[SimpleNamespace(layer_names=all_names)],
        hisparse_host_num_blocks=None,
    )


def _config(folder: Path, **changed: Any) -> Any:
    """A served model with one prediction layer; changed: ``part__field``, or a part as a whole."""
    text = SMALL | changed.pop("config", {})
    parts: dict[str, Any] = {
        "model_config": SimpleNamespace(
            model=str(folder),
            revision=None,
            dtype="torch.bfloat16",
            quantization=None,
            model_weights="",
            hf_text_config=SimpleNamespace(to_dict=lambda: {"_name_or_path": "x", **text}),
        ),
        "cache_config": SimpleNamespace(cache_dtype="fp8", block_size=64, prefix_caching_hash_algo="sha256"),
        "parallel_config": SimpleNamespace(
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
        ),
        "load_config": SimpleNamespace(load_format="auto", download_dir=None),
        "device_config": SimpleNamespace(device_type="cuda"),
        "lora_config": None,
        "speculative_config": SimpleNamespace(
            kv_cache_dtype=None,
            draft_model_config=SimpleNamespace(
                model=str(folder), hf_config=SimpleNamespace(num_nextn_predict_layers=1)
            ),
        ),
    }
    for name, value in changed.items():
        part, _, field = name.partition("__")
        if field:
            setattr(parts[part], field, value)
        else:
            parts[part] = value
    return SimpleNamespace(**parts)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of one tensor, and a vLLM of a known release and seed."""
    monkeypatch.setattr(deployment, "series", lambda: "0.31")
    monkeypatch.setattr(deployment, "hash_seed", lambda algorithm: "vllm-none-hash")
    monkeypatch.setattr(row_facts, "entry_points", lambda group: [])
    return _checkpoint(tmp_path / "glm", b"\x01\x02")


def _checkpoint(folder: Path, values: bytes) -> Path:
    header = b'{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}'
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + values)
    return folder


def _namespace(config: Any, caches: Any = None, **given: Any) -> str:
    return namespace(**namespace_fields(config, caches or _caches(), way="offload", **given))


def test_glm_5_3_has_79_mla_and_22_indexer_caches() -> None:
    """21 of its 78 layers run an indexer, and its prediction layer has one."""
    assert LayerCounts.of(GLM, mtp=1) == LayerCounts(79, 22, 1)
    assert LayerCounts.of(GLM, mtp=0) == LayerCounts(78, 21, 0)


def test_a_pattern_tells_which_layers_run_an_indexer() -> None:
    assert LayerCounts.of(SMALL | {"index_topk_pattern": "FSSF"}, mtp=1) == LayerCounts(5, 3, 1)


def test_dense_mla_has_no_indexers_and_other_attention_is_refused() -> None:
    assert LayerCounts.of({"kv_lora_rank": 512, "num_hidden_layers": 3}, mtp=0) == LayerCounts(3, 0, 0)
    with pytest.raises(KeyRefused, match="model_type='llama' without kv_lora_rank"):
        LayerCounts.of({"model_type": "llama", "num_hidden_layers": 3}, mtp=0)


def test_names_tell_indexers_and_prediction_layers() -> None:
    assert is_indexer("model.layers.0.self_attn.indexer.k_cache")
    assert not is_indexer("model.layers.0.self_attn.attn")
    assert is_prediction("model.layers.4.self_attn.attn", 4)
    assert not is_prediction("model.layers.3.self_attn.attn", 4)
    with pytest.raises(KeyRefused, match="no layer number"):
        is_prediction("draft.attn", 4)


def test_every_cache_has_its_page_and_its_place_in_the_chunk(folder: Path) -> None:
    caches = namespace_fields(_config(folder), _caches(), way="offload", chunk_blocks=4)["caches"]

    assert [cache["name"] for cache in caches] == _names()
    assert [cache["nbytes"] for cache in caches] == [8448, 36_864] * 3 + [36_864, 8448, 36_864]
    assert [cache["offset"] for cache in caches] == [
        sum(cache["nbytes"] for cache in caches[:at]) for at in range(len(caches))
    ]
    assert [cache["mtp"] for cache in caches] == [False] * 7 + [True] * 2


def test_in_a_block_outermost_layout_the_place_is_that_in_the_block(folder: Path) -> None:
    caches = namespace_fields(_config(folder), _caches("BLHNC"), way="store")["caches"]

    at = {cache["name"]: cache["offset"] for cache in caches}
    assert at["model.layers.1.self_attn.indexer.k_cache"] == 8448
    assert at["model.layers.0.self_attn.attn"] == 4 * 8448
    assert at["model.layers.4.self_attn.attn"] == 4 * 8448 + 4 * 36_864
    assert {cache["nbytes"] for cache in caches} == {8448, 36_864}


@pytest.mark.parametrize(
    "changed",
    [
        {"cache_config__cache_dtype": "auto"},
        {"cache_config__block_size": 128},
        {"cache_config__prefix_caching_hash_algo": "sha256_cbor"},
        {"model_config__dtype": "torch.float16"},
        {"model_config__quantization": "fp8"},
        {"model_config__revision": "0a1b"},
        {"config": {"rope_theta": 5}},
        {"parallel_config__tensor_parallel_size": 2},
        {"device_config__device_type": "cpu"},
    ],
    ids=str,
)
def test_whatever_changes_a_blocks_bytes_changes_the_namespace(folder: Path, changed: dict[str, Any]) -> None:
    assert _namespace(_config(folder)) == _namespace(_config(folder))
    assert _namespace(_config(folder, **changed)) != _namespace(_config(folder))


def test_layout_way_chunk_adapter_and_weights_change_the_namespace(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = _checkpoint(tmp_path / "other" / "glm", b"\x01\x03")
    config = _config(folder)
    named = Identity(model="zai-org/GLM-5.3")

    found = [
        _namespace(config),
        _namespace(config, _caches("BLHNC")),
        _namespace(config, chunk_blocks=4),
        namespace(**namespace_fields(config, _caches(), way="store")),
        _namespace(config, identity=Identity(adapter="tools@1")),
        _namespace(config, identity=named),
        _namespace(_config(other), identity=named),
    ]

    assert len(set(found)) == len(found)


def test_one_checkpoint_in_two_folders_is_one_deployment_under_one_name(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    copy = _checkpoint(tmp_path / "copy" / "glm", b"\x01\x02")
    named = Identity(model="zai-org/GLM-5.3")

    assert _namespace(_config(folder), identity=named) == _namespace(_config(copy), identity=named)
    assert _namespace(_config(folder)) != _namespace(_config(copy))


def test_a_snapshot_of_the_hubs_cache_tells_its_commit(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "snapshots").mkdir()
    snapshot = _checkpoint(tmp_path / "snapshots" / "8f3a", b"\x01\x02")

    assert namespace_fields(_config(snapshot), _caches(), way="offload")["revision"] == "8f3a"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"parallel_config__pipeline_parallel_size": 2}, "pipeline_parallel_size=2"),
        ({"lora_config": "adapters"}, "adapter is empty"),
        ({"load_config__load_format": "dummy"}, "load_format='dummy'"),
        ({"model_config__model_weights": "s3://bucket"}, "no weight files on this machine"),
        ({"cache_config__prefix_caching_hash_algo": "xxhash"}, "hash_algorithm='xxhash'"),
        ({"speculative_config": None}, "mtp_layers=0, and caches holds 1|mla_layers=4, and caches holds 5"),
        ({"config": {"index_topk_freq": 1}}, "indexer_layers=5, and caches holds 4"),
    ],
    ids=str,
)
def test_a_deployment_whose_blocks_could_be_mistaken_is_refused(
    folder: Path, changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(KeyRefused, match=said):
        _namespace(_config(folder, **changed))


def test_weights_that_are_not_here_can_be_named(folder: Path) -> None:
    config = _config(folder, load_config__load_format="dummy")

    one, two = (_namespace(config, identity=Identity(weights=text)) for text in ("step 1", "step 2"))

    assert one != two


def test_caches_in_host_memory_are_refused(folder: Path) -> None:
    caches = _caches()
    caches.hisparse_host_num_blocks = 5

    with pytest.raises(KeyRefused, match="hisparse_config"):
        _namespace(_config(folder), caches)


def test_a_block_without_a_cache_of_the_model_is_refused(folder: Path) -> None:
    names = [name for name in _names() if name != "model.layers.1.self_attn.indexer.k_cache"]

    with pytest.raises(KeyRefused, match="indexer_layers=4, and caches holds 3"):
        _namespace(_config(folder), _caches(names=names))


class Entry:
    """An entry point of another package."""

    def __init__(self, name: str, tell: Callable[[Any], Any]) -> None:
        self.name, self.value = name, "package.module:Fact"
        self._tell = tell

    def load(self) -> Any:
        return lambda: SimpleNamespace(setting="x", value=self._tell)


def test_facts_of_the_rows_change_the_namespace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for value in (None, "nvfp4/search/unfolded", "nvfp4/search/3-77"):
        entries = [Entry("nvfp4_rows", functools.partial(_tells, value))]
        monkeypatch.setattr(row_facts, "entry_points", functools.partial(_tells, entries))
        found.append(_namespace(_config(folder)))

    assert len(set(found)) == 3


def _tells(value: Any, _: Any = None, **__: Any) -> Any:
    return value


def _fails(config: Any) -> str:
    raise RuntimeError("two folds")


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([Entry("a", lambda config: 5)], "its value is 5"),
        ([Entry("a", _fails)], "two folds"),
        ([Entry("a", lambda config: "x"), Entry("a", lambda config: "y")], "two packages tell it"),
    ],
    ids=["number", "error", "twice"],
)
def test_a_fact_that_cannot_be_told_is_refused(
    monkeypatch: pytest.MonkeyPatch, entries: list[Entry], said: str
) -> None:
    monkeypatch.setattr(row_facts, "entry_points", lambda group: entries)

    with pytest.raises(KeyRefused, match=said):
        row_facts.row_facts(None)
