"""Tokens per second of the frontend: its Python alone, and the whole of it beside Dynamo's own in the same run.

The Python that runs for every token is measured on one core with tokens of four characters: ids to text, stop strings,
parser, chunks. Three sizes of each output show whether time grows with the output only. Then both frontends stream the
same outputs of one scripted worker, byte by byte, a token a message; figures are per second of wall time, and per
second of the frontend's CPU.

Usage: ``python benchmarks/tool_frontend.py [--json] [--tokens N]``; without Dynamo only the Python is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models
from tool_parser import GOAL, TOOLS, _outputs, _tokens

from dynamo_structural_tags.frontend.choice import Choice, CountedCalls
from dynamo_structural_tags.frontend.detokenize import Detokenizer, TokenBytes, byte_letters
from dynamo_structural_tags.frontend.reply import Reply
from dynamo_structural_tags.frontend.stops import StopStrings
from dynamo_structural_tags.stream import GlmStream

SIZES = (1, 4, 16)


def _table(pieces: list[str]) -> tuple[TokenBytes, list[int]]:
    """A byte-level vocabulary of these pieces, and the pieces as ids."""
    letters = {byte: letter for letter, byte in byte_letters().items()}
    words = ["".join(letters[byte] for byte in piece.encode()) for piece in pieces]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=words[0]))
    tokenizer.decoder = decoders.ByteLevel()
    return TokenBytes(tokenizer), [vocabulary[word] for word in words]


def _alone(table: TokenBytes, ids: list[int]) -> float:
    """Seconds of CPU for one output, a token a message as vLLM sends it."""
    request = {"model": "m", "tools": TOOLS, "stream": True, "stop": ["<never>"]}
    stream = GlmStream(TOOLS, thinking=False, counts=CountedCalls())
    choice = Choice(0, Detokenizer(table), StopStrings(["<never>"]), stream, end_tokens=frozenset({10**9}))
    reply = Reply("id", 1, "m", request, "prompt", 10, table)
    messages: list[dict[str, Any]] = [{"token_ids": [number], "finish_reason": None} for number in ids]
    messages[-1]["finish_reason"] = "stop"
    began = time.process_time()
    for message in messages:
        reply.chunks(choice, message)
    return time.process_time() - began


def python_rows() -> Iterator[dict[str, Any]]:
    """The Python alone."""
    for size in SIZES:
        for name, text in _outputs(size).items():
            table, ids = _table(_tokens(text))
            seconds = min(_alone(table, ids) for _ in range(3))
            yield {"output": name, "tokens": len(ids), "python_tokens_per_s": round(len(ids) / seconds)}


def http_rows(tokens: int) -> Iterator[dict[str, Any]]:
    """Both frontends over one scripted worker."""
    import psutil
    from scripted_stack import OURS, STOCK, started

    from glm53.model import make

    line = "x = a < b and c\\n"
    call = ("<tool_call>write_file<arg_key>content</arg_key><arg_value>", "</arg_value></tool_call>")
    outputs = {
        "one large file": {"before": f"a</think>{call[0]}", "text": line, "after": call[1]},
        "text": {"before": "a</think>", "text": line},
    }
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "model", layers=1)
        with started(
            Path(folder) / "run", Path(folder) / "model", {"ours": OURS, "stock": STOCK}, "--no-tags"
        ) as fronts:
            for name, script in outputs.items():
                message = f"@@{json.dumps({**script, 'repeat': tokens // len(line), 'step': 1})}@@"
                row: dict[str, Any] = {"output": name, "tokens": tokens}
                for which, front in fronts.items():
                    process = psutil.Process(front.pid)
                    body = {"messages": [{"role": "user", "content": message}], "tools": TOOLS}
                    front.post(stream=True, **body)
                    times, began = process.cpu_times(), time.monotonic()
                    front.post(stream=True, **body)
                    wall, after = time.monotonic() - began, process.cpu_times()
                    cpu = after.user + after.system - times.user - times.system
                    row[f"{which}_tokens_per_s"] = round(tokens / wall)
                    row[f"{which}_tokens_per_cpu_s"] = round(tokens / cpu)
                row["ratio_wall"] = round(row["ours_tokens_per_s"] / row["stock_tokens_per_s"], 2)
                row["ratio_cpu"] = round(row["ours_tokens_per_cpu_s"] / row["stock_tokens_per_cpu_s"], 2)
                yield row


def main() -> None:
    """Print one row per output and size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tokens", type=int, default=6000, help="tokens of each output over HTTP")
    arguments = parser.parse_args()
    sys.path.append(str(Path(__file__).parents[1] / "tests" / "dynamo_structural_tags"))
    rows = list(python_rows())
    try:
        import dynamo.frontend  # noqa: F401
    except ImportError:
        print("no Dynamo: only the Python is measured", file=sys.stderr)
    else:
        rows += http_rows(arguments.tokens)
    if arguments.json:
        print(json.dumps(rows))
        return
    print(f"goal: {GOAL} tokens/s of the Python for each token, at any size")
    for row in rows:
        figures = "   ".join(f"{key} {value}" for key, value in row.items() if key not in ("output", "tokens"))
        print(f"{row['output']:18} {row['tokens']:7} tokens   {figures}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
