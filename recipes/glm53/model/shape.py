"""The numbers of a small GLM-5.3-shaped model and the config.json they make.

What decides the caches is GLM-5.3's own and fixed: a latent of 512 and a rotary key of 64 values in every
layer, an index key of 128 values in every layer that runs an indexer, and which layers those are. What only
costs time is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glm53.model.tokens import EOS_IDS, PAD_ID, VOCABULARY

__all__ = ["ARCHITECTURES", "DTYPES", "ModelError", "Shape"]

KV_LORA_RANK = 512
ROPE_DIM = 64
INDEX_DIM = 128
Q_LORA_RANK = 64
NOPE_DIM = 32
VALUE_DIM = 32

#: IndexShare: layer i runs an indexer if max(i - offset + 1, 0) is a multiple of the frequency, that is
#: layers 0, 1, 2, 6, 10, ...; every other layer reuses the positions chosen by the one before it.
INDEX_FREQUENCY = 4
INDEX_OFFSET = 3

DENSE_LAYERS = 1
EXPERTS_PER_TOKEN = 2

#: model_type -> (class name in config.json, number of index heads)
ARCHITECTURES = {
    "glm_moe_dsa": ("GlmMoeDsaForCausalLM", 32),
    "deepseek_v32": ("DeepseekV32ForCausalLM", 64),
}
DTYPES = ("float32", "bfloat16")


class ModelError(ValueError):
    """A model that cannot be made, or a folder that is not the model it should be."""


@dataclass(frozen=True)
class Shape:
    """What is chosen when a model is made; everything else follows.

    layers: hidden layers. Four is the least with a layer that shares another's index.
    seed: selects the random weights.
    architecture: ``glm_moe_dsa`` or ``deepseek_v32`` (an indexer in every layer).
    hidden: width of the hidden states. heads: attention heads. experts: routed experts a layer.
    index_topk: cached positions that a token attends to.
    index_heads: heads of the indexer; None takes the architecture's own number.
    context: max_position_embeddings, in tokens.
    mtp: add one multi-token-prediction layer after the hidden ones.
    dtype: of the weights, ``float32`` or ``bfloat16``.

    Raises `ModelError` for a combination that cannot run, or that would run without testing anything.
    """

    layers: int = 4
    seed: int = 0
    architecture: str = "glm_moe_dsa"
    hidden: int = 128
    heads: int = 4
    experts: int = 8
    index_topk: int = 128
    index_heads: int | None = None
    context: int = 32768
    mtp: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        self._one_of("architecture", tuple(ARCHITECTURES))
        self._one_of("dtype", DTYPES)
        self._at_least("layers", 1, "a model without layers computes nothing")
        self._at_least("seed", 0, "seeds are not negative")
        self._at_least("heads", 1, "attention needs a head")
        self._at_least("experts", EXPERTS_PER_TOKEN, f"each token goes to {EXPERTS_PER_TOKEN} experts")
        self._multiple_of(64, "hidden", "experts are half as wide, and matrix kernels want vectors of 32")
        self._multiple_of(32, "index_topk", "sparse attention kernels read the chosen positions 32 at a time")
        if self.index_heads is not None:
            self._at_least(
                "index_heads",
                32,
                "an index score is a sum of ReLUs over heads, and with few heads many positions score "
                "exactly 0; which of these ties is chosen then differs between correct implementations",
            )
        if self.context <= self.index_topk:
            raise ModelError(
                f"context={self.context} with index_topk={self.index_topk}: every position would always be "
                f"chosen and the attention would never be sparse; allowed is a context above index_topk. "
                f"Raise --context or lower --index-topk."
            )

    @property
    def indexed(self) -> tuple[bool, ...]:
        """For each hidden layer whether it runs an indexer of its own."""
        if self.architecture == "deepseek_v32":
            return (True,) * self.layers
        return tuple(max(i - INDEX_OFFSET + 1, 0) % INDEX_FREQUENCY == 0 for i in range(self.layers))

    @property
    def index_head_count(self) -> int:
        return self.index_heads or ARCHITECTURES[self.architecture][1]

    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        values: dict[str, Any] = {
            "architectures": [ARCHITECTURES[self.architecture][0]],
            "model_type": self.architecture,
            "dtype": self.dtype,
            "vocab_size": len(VOCABULARY),
            "bos_token_id": None,
            "eos_token_id": list(EOS_IDS),
            "pad_token_id": PAD_ID,
            "tie_word_embeddings": False,
            "max_position_embeddings": self.context,
            "hidden_size": self.hidden,
            "hidden_act": "silu",
            "num_hidden_layers": self.layers,
            "num_nextn_predict_layers": int(self.mtp),
            "rms_norm_eps": 1e-5,
            "initializer_range": 0.02,
            "use_cache": True,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "q_lora_rank": Q_LORA_RANK,
            "kv_lora_rank": KV_LORA_RANK,
            "qk_nope_head_dim": NOPE_DIM,
            "qk_rope_head_dim": ROPE_DIM,
            "qk_head_dim": NOPE_DIM + ROPE_DIM,
            "v_head_dim": VALUE_DIM,
            "rope_interleave": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
            "index_topk": self.index_topk,
            "index_head_dim": INDEX_DIM,
            "index_n_heads": self.index_head_count,
            "first_k_dense_replace": min(DENSE_LAYERS, self.layers),
            "intermediate_size": 2 * self.hidden,
            "moe_intermediate_size": self.hidden // 2,
            "moe_layer_freq": 1,
            "n_routed_experts": self.experts,
            "n_shared_experts": 1,
            "num_experts_per_tok": EXPERTS_PER_TOKEN,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
        }
        if self.architecture == "glm_moe_dsa":
            # vLLM reads the frequency and offset, transformers the list; both are written as in GLM-5.3.
            values["index_topk_freq"] = INDEX_FREQUENCY
            values["index_skip_topk_offset"] = INDEX_OFFSET
            values["indexer_types"] = ["full" if own else "shared" for own in self.indexed]
            values["indexer_rope_interleave"] = True
        return values

    def _one_of(self, field: str, allowed: tuple[str, ...]) -> None:
        if getattr(self, field) not in allowed:
            raise ModelError(
                f"{field}={getattr(self, field)!r} is not known; allowed are {', '.join(allowed)}. "
                f"Choose one with --{field}."
            )

    def _at_least(self, field: str, least: int, why: str) -> None:
        if getattr(self, field) < least:
            raise ModelError(
                f"{field}={getattr(self, field)}: {why}; allowed is {least} or more. "
                f"Give --{field.replace('_', '-')} {least}."
            )

    def _multiple_of(self, step: int, field: str, why: str) -> None:
        value = getattr(self, field)
        if value < step or value % step:
            raise ModelError(
                f"{field}={value}: {why}; allowed are multiples of {step}. "
                f"Give --{field.replace('_', '-')} {max(step, -(-value // step) * step)}."
            )
