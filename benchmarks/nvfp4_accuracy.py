"""What each way of caching MLA costs in accuracy: of rows, of attention outputs, and of a model's next tokens.

Without ``--checkpoint``, on the CPU:

1. Synthetic latents of 78 layers with GLM's published sizes: error of the rows, and of attention over 2048 keys with 16
   heads against float64.
2. The small GLM-5.3-shaped model, its latents of these sizes, in stock vLLM: KL of its next tokens, teacher-forced.

With ``--checkpoint DIR`` the second part runs on that model, on a GPU if torch sees one, with needles to be found in a
long text. The same program does both; a cache that the device cannot have is refused by name.

    python benchmarks/nvfp4_accuracy.py --plot accuracy.svg
    python benchmarks/nvfp4_accuracy.py --checkpoint DIR --prompts prompts.jsonl --engine '{"tensor_parallel_size": 4}'

``--prompts`` is JSON Lines: strings, or objects with a ``prompt``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from cache_accuracy import settings as caches
from cache_accuracy.engine import Questions, prepare
from cache_accuracy.synthetic import KINDS, LAYERS, layer_errors

SMALL_MODEL = {
    "dtype": "bfloat16",
    "max_model_len": 1024,
    "max_num_seqs": 4,
    "kv_cache_memory_bytes": 64 << 20,
    "enforce_eager": True,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("synthetic", "model"), help="one part instead of both")
    parser.add_argument("--settings", nargs="+", type=_setting, default=[*caches.SETTINGS], help="caches of the model")
    parser.add_argument(
        "--layers",
        nargs="+",
        type=int,
        choices=range(LAYERS),
        metavar="LAYER",
        help="synthetic layers, 0 to 77; default all",
    )
    parser.add_argument("--keys", type=_positive, default=2048, help="synthetic keys that attention selects")
    parser.add_argument("--checkpoint", type=Path, help="model folder to measure instead of synthetic latents")
    parser.add_argument(
        "--prompts", type=_texts, metavar="FILE", help="texts of the teacher-forced run; needed with --checkpoint"
    )
    parser.add_argument(
        "--tokens", type=_positive, help="of a prompt, at most (4096 of a checkpoint's, 256 of small ones)"
    )
    parser.add_argument(
        "--likeliest", type=_positive, default=64, help="tokens a distribution, if the vocabulary is large"
    )
    parser.add_argument("--needle-tokens", type=int, help="text around a needle (131072 for a checkpoint, else none)")
    parser.add_argument("--depths", nargs="+", type=_depth, default=[0.1, 0.5, 0.9], help="0 to 1")
    parser.add_argument("--engine", type=_object, default={}, help="further arguments of vllm.LLM, as JSON")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=_new_file, metavar="FILE", help="SVG file to write")
    parser.add_argument("--json", action="store_true", help="print data instead of tables")
    return parser.parse_args()


def _setting(name: str) -> caches.Setting:
    try:
        return caches.named(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _depth(text: str) -> float:
    if not 0 <= (value := float(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no place in a text; allowed: 0 (its beginning) to 1 (its end)")
    return value


def _object(text: str) -> dict[str, Any]:
    if not isinstance(value := json.loads(text), dict):
        raise argparse.ArgumentTypeError(f"{text} names no arguments; allowed: a JSON object of vllm.LLM's")
    return value


def _new_file(text: str) -> Path:
    """Refused now rather than after hours of measuring."""
    if not (file := Path(text)).parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be written: {file.parent} is no folder. Make it first.")
    return file


def _texts(name: str) -> list[str]:
    try:
        lines = [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{name} cannot be read as JSON Lines: {error}") from None
    found = [line.get("prompt") if isinstance(line, dict) else line for line in lines]
    texts = [text for text in found if isinstance(text, str) and text]
    if not texts or len(texts) < len(lines):
        raise argparse.ArgumentTypeError(
            f"{name} has {len(lines)} lines, not all of them texts; allowed: one or more, each a JSON string or an "
            "object with a string as prompt"
        )
    return texts


def _synthetic(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {"keys": options.keys, "rows": {}, "attention": {}}
    for kind in KINDS:
        errors = {str(i): layer_errors(kind, i, options.keys, options.seed) for i in options.layers or range(LAYERS)}
        found["rows"][kind] = {layer: rows for layer, (rows, _) in errors.items()}
        found["attention"][kind] = {layer: outputs for layer, (_, outputs) in errors.items()}
    return found


def _model(options: argparse.Namespace) -> dict[str, Any]:
    prepare()
    from cache_accuracy.compare import compared
    from cache_accuracy.small_model import make_model, prompts

    large = options.checkpoint is not None
    questions = Questions(
        prompts=options.prompts or prompts(3, options.seed),
        tokens=options.tokens or (4096 if large else 256),
        likeliest=options.likeliest,
        needle_tokens=options.needle_tokens if options.needle_tokens is not None else 131072 * large,
        depths=options.depths,
        seed=options.seed,
    )
    if large:
        return compared(options.checkpoint, options.settings, questions, options.engine)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "small model"
        make_model(model, options.seed)
        return compared(model, options.settings, questions, SMALL_MODEL | options.engine)


def main() -> None:
    """Print tables or data; write the plot."""
    options = _arguments()
    if options.checkpoint and not options.prompts:
        sys.exit(
            "--checkpoint without --prompts: the divergence is over texts. Give a file of JSON lines with prompts."
        )
    report: dict[str, Any] = {"seed": options.seed}
    if options.only != "model" and not options.checkpoint:
        report["synthetic"] = _synthetic(options)
    if options.only != "synthetic":
        report["model"] = _model(options)
    if options.plot:
        from cache_accuracy.chart import chart

        options.plot.write_text(chart(report), encoding="utf-8")
    if options.json:
        print(json.dumps(report))
    else:
        _print(report)
    sys.stdout.flush()
    if "model" in report:
        os._exit(0)  # a CPU engine in this process leaves threads that outlive the interpreter


def _print(report: dict[str, Any]) -> None:
    from cache_accuracy.report import model_lines, synthetic_lines

    for line in synthetic_lines(report["synthetic"]) if "synthetic" in report else ():
        print(line)
    for line in model_lines(report["model"]) if "model" in report else ():
        print(line)


if __name__ == "__main__":
    main()
