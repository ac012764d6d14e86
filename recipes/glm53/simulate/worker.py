"""One replay on Dynamo's simulator. A script for the interpreter that has Dynamo: it needs nothing of this project.

Usage: ``python worker.py JOB RESULT``, both JSON files. The simulator is Dynamo's: vLLM's scheduler and prefix cache as
its mocker has them, with data-parallel ranks in step, its KV router, and a virtual clock.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

#: What of a request's record is reported, in this order.
FIELDS = (
    *("session_id", "turn_index", "arrival_time_ms", "prefill_admit_ms", "first_token_ms", "last_token_ms", "ttft_ms"),
    *("itl_ms", "input_length", "output_length", "reused_input_tokens", "first_admission_host_reused_input_tokens"),
    *("source_held_ms", "decode_admit_ms"),
)


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Replay what `glm53.simulate.scenario` describes, and return its records."""
    from dynamo.llm import KvRouterConfig
    from dynamo.mocker.config import normalize_mocker_config
    from dynamo.replay import run_trace_replay

    report = run_trace_replay(
        job["trace"],
        trace_block_size=job["trace_block"],
        prefill_engine_args=normalize_mocker_config(job["prefill"]),
        decode_engine_args=normalize_mocker_config(job["decode"]),
        num_prefill_workers=job["prefill_groups"],
        num_decode_workers=job["decode_groups"],
        router_mode=job["router"],
        router_config=KvRouterConfig() if job["router"] == "kv_router" else None,
        capture_per_request=True,
    )
    return {
        "dynamo": version("ai-dynamo"),
        "requests": report.summary["num_requests"],
        "completed": report.summary["completed_requests"],
        "duration_ms": report.summary["duration_ms"],
        "wall_ms": report.summary["wall_time_ms"],
        "fields": FIELDS,
        "records": [[one.get(field) for field in FIELDS] for one in report.per_request],
    }


if __name__ == "__main__":
    source, result = map(Path, sys.argv[1:3])
    result.write_text(json.dumps(main(json.loads(source.read_text()))))
