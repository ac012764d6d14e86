"""GLM's grammar against stock's: time to a tag, to compile it, and to compute the masks of a call.

Tools x parameters as MCP servers describe them (`benchmarks/tool_schemas.py`) on a synthetic vocabulary with GLM's
markers as tokens; stock is xgrammar's own `glm_4_7` tag, which vLLM and Dynamo use in other words. All in one run:

build       tools to a tag: cold, then the same tools again
compile     tag to masks, with a new compiler whose caches are on, then the same tag again
mask        one call of the first tool, token by token: fill the mask, accept the token; the median step of both
            in turns, each step at its best of nine

Processor time of this process for build and compile, so that a busy machine counts less. Ratio: ours / stock.
`--plain` leaves out `maxLength`, which costs stock's compiler seconds and minutes.

    python benchmarks/tool_grammar.py [--tools 100] [--parameters 12] [--vocab 150000] [--plain] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from tool_schemas import parameters

from dynamo_structural_tags.compiler import synthetic_vocabulary
from dynamo_structural_tags.glm_format import MARKS
from dynamo_structural_tags.grammar import build_tag


def tools(count: int, keys: int, plain: bool) -> list[dict[str, Any]]:
    """The benchmark's tools with some of their parameters."""
    made = []
    for place in range(count):
        schema = parameters(place)
        kept = {k: v for k, v in schema["properties"].items() if not (plain and "maxLength" in v)}
        schema["properties"] = dict(list(kept.items())[:keys])
        schema["required"] = [key for key in schema["required"] if key in schema["properties"]]
        made.append({"type": "function", "function": {"name": f"tool_{place}", "parameters": schema}})
    return made


def stock_tag(offered: list[dict[str, Any]]) -> dict[str, Any]:
    """xgrammar's tag for GLM-4.7, behind the reasoning."""
    from xgrammar import get_model_structural_tag

    tag = get_model_structural_tag("glm_4_7", tools=[*offered], tool_choice="auto", reasoning="disabled")
    return dict(json.loads(tag.model_dump_json()))


def call(schema: dict[str, Any]) -> str:
    """A call with the first parameters, which are required."""
    values = ("src/main.py", "if a < b: print('x')\n" * 20, "asc", "7")
    pairs = zip(schema["required"], values, strict=False)
    return "<tool_call>tool_0" + "".join(
        f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in pairs
    ) + "</tool_call>"  # fmt: skip


def processor_ms(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor time of one run, and its result."""
    start = time.process_time()
    result = work()
    return 1000 * (time.process_time() - start), result


def tokens_of(text: str, vocabulary: dict[bytes, int]) -> list[int]:
    """Longest match first."""
    data, place, found = text.encode(), 0, []
    while place < len(data):
        size = next(
            size for size in range(min(16, len(data) - place), 0, -1) if data[place : place + size] in vocabulary
        )
        found.append(vocabulary[data[place : place + size]])
        place += size
    return found


def mask_us(grammars: list[Any], steps: list[int], size: int) -> list[float]:
    """Time of a step with each grammar, microseconds: the median of the steps' least times, taken in turns."""
    import xgrammar

    least = [[float("inf")] * len(steps) for _ in grammars]
    for _ in range(9):
        for times, compiled in zip(least, grammars, strict=True):
            matcher, mask = xgrammar.GrammarMatcher(compiled), xgrammar.allocate_token_bitmask(1, size)
            for place, token in enumerate(steps):
                start = time.perf_counter()
                matcher.fill_next_token_bitmask(mask)
                accepted = matcher.accept_token(token)
                times[place] = min(times[place], time.perf_counter() - start)
                assert accepted
    return [1e6 * statistics.median(times) for times in least]


def main() -> None:
    """Print the table, and write it as JSON if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tools", type=int, default=100)
    parser.add_argument("--parameters", type=int, default=12)
    parser.add_argument("--vocab", type=int, default=150_000)
    parser.add_argument("--plain", action="store_true", help="without maxLength")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    import xgrammar

    words = [*synthetic_vocabulary(arguments.vocab - len(MARKS)), *(mark.encode() for mark in sorted(MARKS))]
    info = xgrammar.TokenizerInfo(
        [*words, b"</s>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[len(words)]
    )  # fmt: skip
    offered = tools(arguments.tools, arguments.parameters, arguments.plain)
    build_tag(offered[:1])
    rows: dict[str, tuple[float, float]] = {}
    ours_cold, ours = processor_ms(lambda: build_tag(offered))
    stock_cold, stock = processor_ms(lambda: stock_tag(offered))
    rows["build, cold, ms"] = (stock_cold, ours_cold)
    rows["build, again, ms"] = (
        processor_ms(lambda: stock_tag(offered))[0],
        processor_ms(lambda: build_tag(offered))[0],
    )
    compiled, times = [], []
    for tag in (stock, ours):
        compiler, text = xgrammar.GrammarCompiler(info), json.dumps(tag)
        cold, grammar = processor_ms(lambda c=compiler, t=text: c.compile_structural_tag(t))  # type: ignore[misc]
        again, _ = processor_ms(lambda c=compiler, t=text: c.compile_structural_tag(t))  # type: ignore[misc]
        compiled.append(grammar)
        times.append((cold, again))
    rows["compile, cold, ms"] = (times[0][0], times[1][0])
    rows["compile, again, ms"] = (times[0][1], times[1][1])
    steps = tokens_of(call(offered[0]["function"]["parameters"]), {word: i for i, word in enumerate(words)})
    before, after = mask_us(compiled, steps, info.vocab_size)
    rows["mask, us a step"] = (before, after)
    print(f"{arguments.tools} tools, {arguments.vocab} tokens, xgrammar {version('xgrammar')}")
    print(f"{'':20}{'stock':>12}{'ours':>12}{'ratio':>8}")
    for name, (before, after) in rows.items():
        print(f"{name:20}{before:12.2f}{after:12.2f}{after / before:8.2f}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(
                {name: {"stock": before, "ours": after} for name, (before, after) in rows.items()}, file, indent=2
            )


if __name__ == "__main__":
    main()
