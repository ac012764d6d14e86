"""Processor time of `vllm_cpu_dsa` on the small model: fresh prefill, an appended turn, and decoding.

Upstream has nothing to compare with: stock vLLM refuses sparse attention on the CPU. Figures are seconds of
processor time, which other work on the machine disturbs less than wall time.

Usage: ``VLLM_CPU_DSA=1 OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_ENABLE_V1_MULTIPROCESSING=0
python benchmarks/cpu_dsa.py DIR [--contexts 1024 4096] [--kv-cache-dtype DTYPE] [--json]``, DIR made by
``glm53 model make DIR``.
"""

from __future__ import annotations

import argparse
import json
import random
import time

APPENDED = 512
DECODED = 32


def main() -> None:
    """Print one row per context length."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", help="model folder")
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 4096], help="prompt lengths in tokens")
    parser.add_argument("--kv-cache-dtype", default="auto", help="as vLLM's: auto, fp8 or nvfp4_ds_mla")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    from vllm import LLM, SamplingParams

    engine = LLM(
        model=arguments.model,
        dtype="float32",
        max_model_len=max(arguments.contexts) + APPENDED + 2 * DECODED,
        max_num_batched_tokens=4096,
        max_num_seqs=8,
        kv_cache_memory_bytes=1 << 29,
        kv_cache_dtype=arguments.kv_cache_dtype,
        enforce_eager=True,
    )
    rng = random.Random(0)

    def spent(tokens: list[int], answer: int) -> float:
        began = time.process_time()
        params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
        engine.generate([{"prompt_token_ids": tokens}], params, use_tqdm=False)
        return time.process_time() - began

    def tokens(count: int) -> list[int]:
        return [rng.randrange(256) for _ in range(count)]

    spent(tokens(40), 3)
    for context in arguments.contexts:
        prompt = tokens(context)
        fresh, long, short = spent(prompt, 1), spent(prompt, 1 + DECODED), spent(prompt, 1)
        row = {
            "context": context,
            "prefill_s": round(fresh, 2),
            "tokens_per_s": round(context / fresh),
            "appended_s": round(spent(prompt + tokens(APPENDED), 1), 2),
            "decode_ms": round((long - short) / DECODED * 1e3, 1),
        }
        print(json.dumps(row) if arguments.json else "  ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
