"""Negative control: proves on a running Dynamo deployment that decode uses the KV which prefill sent.

Usage, with the workers' environment: ``python -m vllm_blhnc.probe --model NAME [--block-size 64]``. It calls one
prefill and one decode worker directly and prints JSON:

- `same`: both workers get context A;
- `control`: prefill gets A, decode gets B, an unrelated context of equal length and with the same last token;
- `other`: both get B.

Decode computes KV only for the last token, so if it reads the transferred blocks, `control` equals `same`; were
it to compute the context itself, `control` would equal `other`. `holds` says the former, and that the two differ
at all. Every request carries a cache salt of its own: nothing is taken from a prefix cache, and the blocks whose
content does not match their tokens are never found by anybody else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import uuid
from typing import Any

__all__ = ["contexts", "main", "verdict"]


def contexts(block_size: int, seed: int, blocks: int = 3) -> tuple[list[int], list[int]]:
    """Two unrelated contexts of printable-byte tokens, equal in length and last token.

    The last token starts a block of its own, so every block before it is full and is transferred.
    """
    rng = random.Random(seed)
    length = blocks * block_size
    last = rng.randrange(0x21, 0x7F)
    a, b = ([rng.randrange(0x21, 0x7F) for _ in range(length)] for _ in range(2))
    return [*a, last], [*b, last]


def verdict(same: list[int], control: list[int], other: list[int]) -> bool:
    """Whether decode continued prefill's context, on a pair of contexts that can tell."""
    return bool(same) and control == same and other != same


async def _tokens(client: Any, request: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """All tokens and the last handoff that a worker's stream gives; raises RuntimeError on an error frame."""
    tokens: list[int] = []
    handoff: dict[str, Any] = {}
    async for frame in await client.generate(request, annotated=False):
        if str(frame.get("finish_reason", "")).startswith("error"):
            raise RuntimeError(f"worker answered {frame['finish_reason']!r}")
        tokens += frame.get("token_ids") or []
        handoff = frame.get("disaggregated_params") or handoff
    return tokens, handoff


async def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    try:
        from dynamo.runtime import DistributedRuntime
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"vllm_blhnc.probe: {error.name!r} is not installed here, and the probe calls Dynamo's workers. Run it "
            "with the interpreter and the environment variables of the workers."
        ) from error

    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    prefill = await runtime.endpoint(f"{arguments.namespace}.prefill.generate").client()
    decode = await runtime.endpoint(f"{arguments.namespace}.backend.generate").client()
    await prefill.wait_for_instances()
    await decode.wait_for_instances()

    async def generate(prefill_context: list[int], decode_context: list[int]) -> list[int]:
        base = {
            "model": arguments.model,
            "sampling_options": {"temperature": 0.0},
            "output_options": {},
            "eos_token_ids": [],
            "extra_args": {"nvext": {"cache_salt": uuid.uuid4().hex}},
        }
        stop = {"ignore_eos": True}
        _, handoff = await _tokens(
            prefill, base | {"token_ids": prefill_context, "stop_conditions": stop | {"max_tokens": 1}}
        )
        if "kv_transfer_params" not in handoff:
            raise RuntimeError(f"prefill returned no kv_transfer_params, only {sorted(handoff)}")
        tokens, _ = await _tokens(
            decode,
            base
            | {
                "token_ids": decode_context,
                "stop_conditions": stop | {"max_tokens": arguments.tokens},
                "prefill_result": {"disaggregated_params": handoff},
            },
        )
        return tokens

    a, b = contexts(arguments.block_size, arguments.seed)
    same = await generate(a, a)
    control = await generate(a, b)
    other = await generate(b, b)
    runtime.shutdown()
    return {"same": same, "control": control, "other": other, "holds": verdict(same, control, other)}


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 if the control holds, 1 if not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", required=True, help="served model name")
    parser.add_argument("--namespace", default="dynamo")
    parser.add_argument("--block-size", type=int, default=64, help="tokens per KV block of the workers")
    parser.add_argument("--tokens", type=int, default=24, help="tokens to decode")
    parser.add_argument("--seed", type=int, default=0)
    result = asyncio.run(_run(parser.parse_args(argv)))
    print(json.dumps(result))
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
