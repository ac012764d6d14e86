"""A fake of a Dynamo worker, on the real Dynamo runtime: it answers with the tokens that the prompt itself asks for.

The last ``@@{...}@@`` in a prompt is the script: ``text`` (``repeat`` times, between ``before`` and ``after``) or
``tokens`` (ids), ``step`` tokens a message (0: all at once), ``finish`` reason, and for failures ``die`` (the process),
``raise`` (an ``error``) or ``stop`` (the stream ends) after that many messages; ``wait`` seconds before each message;
``fields`` to add to each. Every request is written to the file REQUESTS, and ``stopped`` once the client has gone.

``--parsers=a,b`` serves more models, each by the name of Dynamo's parser of tool calls that reads it.

Usage: ``python scripted_worker.py MODEL_FOLDER NAME REQUESTS [--parsers] [--no-tags] [--parsers=a,b]``
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncGenerator
from typing import Any

import uvloop
from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
from dynamo.llm.exceptions import EngineShutdown, HttpError, InvalidArgument
from dynamo.runtime import DistributedRuntime
from tokenizers import Tokenizer

_ERRORS: dict[str, Exception] = {
    "broken": RuntimeError("the scripted engine broke"),
    "value": ValueError("the scripted engine wants another value"),
    "http": HttpError(422, "the scripted engine wants another field"),
    "invalid": InvalidArgument("the scripted engine wants another argument"),
    "shutdown": EngineShutdown("the scripted engine goes"),
}
_SCRIPT = re.compile(r"@@(\{(?:(?!@@).)*\})@@", re.DOTALL)


async def main(folder: str, name: str, requests: str, *options: str) -> None:
    """Register the model and serve until ended."""
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")

    def note(line: Any) -> None:
        with open(requests, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    async def generate(request: dict[str, Any], context: Any) -> AsyncGenerator[dict[str, Any], None]:
        found = _SCRIPT.findall(tokenizer.decode(request["token_ids"], skip_special_tokens=False))
        script: dict[str, Any] = json.loads(found[-1]) if found else {"text": "Yes.</think>Hello."}
        note({"request": request, "worker": os.getpid()})
        text = script.get("before", "") + script.get("text", "") * script.get("repeat", 1) + script.get("after", "")
        ids = script.get("tokens") or tokenizer.encode(text, add_special_tokens=False).ids
        step = script.get("step") or len(ids) or 1
        parts = [ids[start : start + step] for start in range(0, len(ids), step)] or [[]]
        for index in range(request["sampling_options"].get("n") or 1):
            for number, part in enumerate(parts):
                if script.get("wait"):
                    await asyncio.sleep(script["wait"])
                if context.is_stopped():
                    note("stopped")
                    return
                if number == script.get("die"):
                    os._exit(1)
                if number == script.get("raise"):
                    raise _ERRORS[script.get("error", "broken")]
                if number == script.get("stop"):
                    return
                last = number == len(parts) - 1
                reason = {"finish_reason": script.get("finish", "stop")} if last else {}
                yield {"token_ids": part, "index": index, **reason, **script.get("fields", {})}

    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")

    async def serve(model: str, component: str, *parsers: str) -> None:
        endpoint = runtime.endpoint(f"dynamo.{component}.generate")
        config = ModelRuntimeConfig()
        if parsers:
            config.tool_call_parser = parsers[0]
        if parsers[1:]:
            config.reasoning_parser = parsers[1]
        config.set_structural_tag(None if "--no-tags" in options else {"scope": "always", "schema": "auto"})
        await register_model(
            ModelInput.Tokens,
            ModelType.Chat | ModelType.Completions,
            endpoint,
            folder,
            model,
            worker_type=WorkerType.Aggregated,
            kv_cache_block_size=16,
            runtime_config=config,
        )
        await endpoint.serve_endpoint(generate)

    more = [word.partition("=")[2].split(",") for word in options if word.startswith("--parsers=")]
    await asyncio.gather(
        serve(name, "backend", *(("glm47", "glm45") if "--parsers" in options else ())),
        *(serve(parser, f"backend_{parser}", parser) for parsers in more for parser in parsers),
    )


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
