"""What runs in the processes that the stock tests start; they are forked from one that has vLLM imported.

Importing vLLM takes most of an engine's start, and a forked process ends without interpreter exit, in which
UCX crashes.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["ENVIRONMENT", "HANDOFF", "call", "serve", "serve_http"]


ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "UCX_NET_DEVICES": "lo",
    "UCX_TLS": "tcp",
    "VLLM_CPU_DSA": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
}

#: What `kv_transfer_params` must say so that prefill keeps the blocks for decode.
HANDOFF = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def _settle(log: str, environment: dict[str, str]) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(environment)


def call(
    answers: Connection, log: str, environment: dict[str, str], function: Callable[..., Any], arguments: tuple
) -> None:
    """Answer with ``("value", result)`` of the call, or ``("error", "Type: text")``."""
    _settle(log, environment)
    try:
        answers.send(("value", function(*arguments)))
    except BaseException as error:
        traceback.print_exc()
        answers.send(("error", f"{type(error).__name__}: {error}"))


def serve(commands: Connection, log: str, environment: dict[str, str], arguments: dict[str, Any]) -> None:
    """Be one engine with these arguments of `vllm.LLM`.

    Answers once when it is ready or has failed, then each batch of requests ``{"prompt": token ids,
    "max_tokens": n, "kv": kv_transfer_params or None}`` with tokens, finish reason and handoff of each; a batch
    that begins with ``"abort"`` is aborted after five steps.
    """
    _settle(log, environment)
    # A daemon may have no children, but an engine of several ranks has; they end when this process does.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    try:
        from vllm import LLM

        llm = LLM(**arguments)
    except BaseException as error:
        traceback.print_exc()
        commands.send(("error", f"{type(error).__name__}: {error}"))
        return
    commands.send(("value", None))
    while True:
        try:
            requests = commands.recv()
        except EOFError:
            return
        if requests[0] == "abort":
            _abort(llm, requests[1:])
            commands.send(("value", None))
        else:
            commands.send(("value", _generate(llm, requests)))


def serve_http(log: str, environment: dict[str, str], arguments: list[str]) -> None:
    """Be the command ``vllm`` with these arguments, in a process group of its own."""
    os.setsid()
    _settle(log, environment)
    sys.argv = ["vllm", *arguments]
    from vllm.entrypoints.cli.main import main

    main()


def _abort(llm: Any, requests: list[dict[str, Any]]) -> None:
    names = [f"aborted-{number}" for number in range(len(requests))]
    for name, request, sampling in zip(names, requests, _sampling(requests), strict=True):
        llm.llm_engine.add_request(name, {"prompt_token_ids": request["prompt"]}, sampling)
    for _ in range(5):
        llm.llm_engine.step()
    llm.llm_engine.abort_request(names)


def _sampling(requests: list[dict[str, Any]]) -> list[Any]:
    from vllm import SamplingParams

    return [
        SamplingParams(
            temperature=0.0,
            max_tokens=request["max_tokens"],
            ignore_eos=True,
            detokenize=False,
            extra_args={"kv_transfer_params": request["kv"]} if request["kv"] else None,
        )
        for request in requests
    ]


def _generate(llm: Any, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    prompts: list[Any] = [{"prompt_token_ids": request["prompt"]} for request in requests]
    return [
        {
            "tokens": list(output.outputs[0].token_ids),
            "finish_reason": output.outputs[0].finish_reason,
            "kv": output.kv_transfer_params,
        }
        for output in llm.generate(prompts, _sampling(requests), use_tqdm=False)
    ]
