"""All topics, by project. A topic is one file: what it changes, where, and what its reviewers are told."""

from __future__ import annotations

from glm53.stage.topic import Topic
from glm53.stage.topics.dynamo_chat_engine import CHAT_ENGINE
from glm53.stage.topics.dynamo_weight_version import WEIGHT_VERSION
from glm53.stage.topics.flashinfer_decode_lse import DECODE_LSE
from glm53.stage.topics.flashinfer_head_groups import HEAD_GROUPS
from glm53.stage.topics.flashinfer_wave_plan import WAVE_PLAN
from glm53.stage.topics.nixl_progress_delay import PROGRESS_DELAY
from glm53.stage.topics.vllm_block_runs import BLOCK_RUNS
from glm53.stage.topics.vllm_connector_wakeup import CONNECTOR_WAKEUP
from glm53.stage.topics.vllm_context_gather import CONTEXT_GATHER
from glm53.stage.topics.vllm_cpu_data_parallel import CPU_DATA_PARALLEL
from glm53.stage.topics.vllm_cpu_rotary import CPU_ROTARY
from glm53.stage.topics.vllm_cpu_seeds import CPU_SEEDS
from glm53.stage.topics.vllm_cpu_slot_mapping import CPU_SLOT_MAPPING
from glm53.stage.topics.vllm_cpu_sparse_mla import CPU_SPARSE_MLA
from glm53.stage.topics.vllm_draft_pages import DRAFT_PAGES
from glm53.stage.topics.vllm_finish_reason import FINISH_REASON
from glm53.stage.topics.vllm_glm_parser import GLM_PARSER
from glm53.stage.topics.vllm_grammar_warmup import GRAMMAR_WARMUP
from glm53.stage.topics.vllm_latent_fold import LATENT_FOLD
from glm53.stage.topics.vllm_nvfp4_scales import NVFP4_SCALES
from glm53.stage.topics.vllm_nvfp4_sparse_mla import NVFP4_SPARSE_MLA
from glm53.stage.topics.vllm_parser_tokens import PARSER_TOKENS
from glm53.stage.topics.vllm_reasoning_end import REASONING_END
from glm53.stage.topics.vllm_row_pages import ROW_PAGES
from glm53.stage.topics.vllm_spin_wait import SPIN_WAIT
from glm53.stage.topics.vllm_store_events import STORE_EVENTS
from glm53.stage.topics.vllm_store_loads import STORE_LOADS
from glm53.stage.topics.vllm_store_namespace import STORE_NAMESPACE
from glm53.stage.topics.vllm_whole_rows import WHOLE_ROWS

__all__ = ["TOPICS"]

TOPICS: tuple[Topic, ...] = (
    BLOCK_RUNS,
    WHOLE_ROWS,
    DRAFT_PAGES,
    ROW_PAGES,
    CONTEXT_GATHER,
    CPU_DATA_PARALLEL,
    CPU_ROTARY,
    CPU_SEEDS,
    CPU_SLOT_MAPPING,
    CPU_SPARSE_MLA,
    NVFP4_SCALES,
    LATENT_FOLD,
    NVFP4_SPARSE_MLA,
    SPIN_WAIT,
    CONNECTOR_WAKEUP,
    STORE_EVENTS,
    STORE_LOADS,
    STORE_NAMESPACE,
    GLM_PARSER,
    REASONING_END,
    PARSER_TOKENS,
    FINISH_REASON,
    GRAMMAR_WARMUP,
    WAVE_PLAN,
    HEAD_GROUPS,
    DECODE_LSE,
    CHAT_ENGINE,
    WEIGHT_VERSION,
    PROGRESS_DELAY,
)
