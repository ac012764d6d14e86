"""A Dynamo worker without an engine: appends the token ids of every prompt it is given to a file.

Run as ``python prompt_recorder.py MODEL_DIR RECORD``; needs Dynamo's runtime.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime


async def main(model: str, record: Path) -> None:
    async def generate(request: dict[str, Any], context: object) -> AsyncIterator[dict[str, Any]]:
        with record.open("a") as file:
            file.write(json.dumps(request["token_ids"]) + "\n")
        yield {"token_ids": [ord("x")], "finish_reason": "stop"}

    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    endpoint = runtime.endpoint("dynamo.backend.generate")
    await register_model(
        ModelInput.Tokens,
        ModelType.Chat,
        endpoint,
        model,
        "glm",
        worker_type=WorkerType.Aggregated,
        kv_cache_block_size=64,
        runtime_config=ModelRuntimeConfig(),
    )
    await endpoint.serve_endpoint(generate)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
