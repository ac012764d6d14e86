"""Reads command lines with the installed Dynamo's and vLLM's own parsers, in a process of its own: vLLM settles its
platform once a process.

Standard input: a JSON list of {kind, argv, env}. Standard output: a JSON list of what was read, or {error}.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from types import SimpleNamespace
from typing import Any


def engine(argv: list[str]) -> dict[str, Any]:
    """What a worker takes from its arguments, Dynamo's checks across both parsers included; nothing is fetched."""
    from dynamo.vllm.args import parse_args
    from dynamo.vllm.kv_connector_protocols import make_kv_connector_protocol

    config = parse_args(argv)
    args = config.engine_args
    protocol = make_kv_connector_protocol(SimpleNamespace(kv_transfer_config=args.kv_transfer_config))
    return {
        "mode": config.disaggregation_mode.value,
        "parsers": [config.dyn_tool_call_parser, config.dyn_reasoning_parser],
        "schema": (config.structural_tag or {}).get("schema"),
        "publishes_events": config.use_kv_events,
        "protocol": type(protocol).__name__,
        "block_size": args.block_size,
        "cache_dtype": args.kv_cache_dtype,
        "backend": str(getattr(args.attention_backend, "name", args.attention_backend)),
        "max_model_len": args.max_model_len,
        "max_batched_tokens": args.max_num_batched_tokens,
        "tensor": args.tensor_parallel_size,
        "data": args.data_parallel_size,
        "local": args.data_parallel_size_local,
        "start_rank": args.data_parallel_start_rank,
        "experts": args.enable_expert_parallel,
        "all2all": args.all2all_backend,
        "speculation": args.speculative_config,
        "hash": args.prefix_caching_hash_algo,
        "caching": args.enable_prefix_caching,
        "policy": getattr(args.kv_transfer_config, "kv_load_failure_policy", None),
        "lora": [args.enable_lora, args.max_lora_rank],
    }


def frontend(argv: list[str]) -> dict[str, Any]:
    """What a frontend takes from its arguments."""
    from dynamo.frontend.main import parse_args

    sys.argv = ["dynamo.frontend", *argv]
    config, *_ = parse_args()
    return {
        "router": config.router_mode,
        "events": config.use_kv_events,
        "sync": config.router_replica_sync,
        "port": config.http_port,
        "session": config.session_affinity_ttl_secs,
        "retries": config.migration_limit,
        "busy": config.active_decode_blocks_threshold,
        "busy_prefill": config.active_prefill_tokens_threshold,
    }


def main() -> None:
    """Answer every command; an argument that a parser refuses is an answer, too."""
    logging.disable(logging.CRITICAL)
    answers = []
    for command in json.load(sys.stdin):
        before = dict(os.environ)
        os.environ.update(command["env"])
        try:
            answers.append({"engine": engine, "frontend": frontend}[command["kind"]](command["argv"]))
        except (SystemExit, Exception) as error:
            answers.append({"error": f"{type(error).__name__}: {error}"})
        os.environ.clear()
        os.environ.update(before)
    sys.stdout.write("\n" + json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # vLLM's threads have nothing to finish
