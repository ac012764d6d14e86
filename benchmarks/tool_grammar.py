"""GLM's grammar against stock's: time to a tag, to compile it, and to compute the masks of a call.

Tools x parameters as MCP servers describe them (`benchmarks/tool_schemas.py`) on a synthetic vocabulary with GLM's
markers as tokens; stock is xgrammar's own `glm_4_7` tag, which vLLM and Dynamo use in other words. All in one run, for
each number of tools:

build       tools to a tag: tools never seen, the same list but for one tool, the same list again
compile     tag to masks in a compiler with its caches on, as an engine has it: the first tag of a process, in a
            compiler as it is and in one that an engine prepared (`vllm_warm`; stock has no such); then a list of which
            all tools are new, a list with one new tool, and the same tag again
mask        a call of the first tool, and ones whose argument is an array of strings, and of objects, token by token:
            fill the mask, accept the token. Median and 99th percentile over the steps, each at its best of nine, both
            in turns
all         build and compile of a list of which all tools are new

Processor time of this process for build and compile, so that a busy machine counts less; a compiler has 8 threads.
Ratio: ours / stock. `--plain` leaves out `maxLength`, which costs stock's compiler seconds and minutes.

    python benchmarks/tool_grammar.py [--tools 1,10,100] [--parameters 12] [--vocab 150000] [--plain] [--json FILE]
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
from dynamo_structural_tags.vllm_warm import tags

Tools = list[dict[str, Any]]
Build = Callable[[Tools], dict[str, Any]]


def tools(count: int, keys: int, plain: bool, first: int = 0) -> Tools:
    """The benchmark's tools from the number `first` on, with some of their parameters."""
    made = []
    for place in range(first, first + count):
        schema = parameters(place)
        kept = {k: v for k, v in schema["properties"].items() if not (plain and "maxLength" in v)}
        schema["properties"] = dict(list(kept.items())[:keys])
        schema["required"] = [key for key in schema["required"] if key in schema["properties"]]
        made.append({"type": "function", "function": {"name": f"tool_{place}", "parameters": schema}})
    return made


def stock_tag(offered: Tools) -> dict[str, Any]:
    """xgrammar's tag for GLM-4.7, behind the reasoning."""
    from xgrammar import get_model_structural_tag

    tag = get_model_structural_tag("glm_4_7", tools=[*offered], tool_choice="auto", reasoning="disabled")
    return dict(json.loads(tag.model_dump_json()))


def calls(schema: dict[str, Any]) -> dict[str, str]:
    """A call with the first parameters, which are required: code as it is, and ones with code in arrays."""
    code = "if a < b: print('x')\n" * 20
    pairs = list(zip(schema["required"], ["src/main.py", code, "asc", "7"], strict=False))
    made = {"mask": pairs}
    arrays = {str(value["items"]): key for key, value in schema["properties"].items() if value.get("type") == "array"}
    for kind, value in (("string", [code * 3, "a", "b"]), ("edit", [{"old": code * 2, "new": code}])):
        if (key := next((key for items, key in arrays.items() if kind in items), None)) is not None:
            name = "mask, in an array" if kind == "string" else "mask, in objects"
            made[name] = [*pairs, (key, json.dumps(value))]
    return {
        name: "<tool_call>tool_0"
        + "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in entries)
        + "</tool_call>"
        for name, entries in made.items()
    }


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


def mask_us(grammars: list[Any], steps: list[int], size: int) -> list[list[float]]:
    """The least time of each step with each grammar, microseconds, taken in turns."""
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
    return [[1e6 * step for step in times] for times in least]


def times_of(
    build: Build, count: int, keys: int, plain: bool, info: Any, before: list[str]
) -> tuple[dict[str, float], Any]:
    """Times of one builder, milliseconds, and the compiled grammar of the first list.

    before: tags that an engine compiles when it starts.
    """
    import xgrammar

    far = 10_000 * (count + 1)  # lists of other numbers of tools have other tools
    lists = {
        "cold": tools(count, keys, plain),
        "all new": tools(count, keys, plain, far),
        "one new": tools(count, keys, plain, far + 1),
        "again": tools(count, keys, plain, far + 1),
    }
    found: dict[str, float] = {}
    tags = {}
    for name, offered in lists.items():
        found[f"build, {name}, ms"], tags[name] = processor_ms(lambda o=offered: build(o))  # type: ignore[misc]
    compiler = xgrammar.GrammarCompiler(info)
    compiled = []
    for name, tag in tags.items():
        text = json.dumps(tag)
        found[f"compile, {name}, ms"], one = processor_ms(lambda t=text: compiler.compile_structural_tag(t))  # type: ignore[misc]
        compiled.append(one)
    found["compile, prepared, ms"] = found["compile, cold, ms"]
    if before:
        prepared = xgrammar.GrammarCompiler(info)
        for text in before:
            prepared.compile_structural_tag(text)
        first = json.dumps(tags["cold"])
        found["compile, prepared, ms"], _ = processor_ms(lambda: prepared.compile_structural_tag(first))
    found["all, all new, ms"] = found["build, all new, ms"] + found["compile, all new, ms"]
    return found, compiled[0]


def compared(count: int, keys: int, plain: bool, words: list[bytes], info: Any) -> dict[str, tuple[float, float]]:
    """Each figure of stock's and of ours, for one number of tools."""
    (stock, theirs), (ours, own) = (
        times_of(build, count, keys, plain, info, before) for build, before in ((stock_tag, []), (build_tag, tags()))
    )
    rows = {name: (stock[name], ours[name]) for name in ours}
    vocabulary = {word: place for place, word in enumerate(words)}
    schema = tools(1, keys, plain)[0]["function"]["parameters"]
    for name, text in calls(schema).items():
        before, after = mask_us([theirs, own], tokens_of(text, vocabulary), info.vocab_size)
        rows[f"{name}, us a step"] = (statistics.median(before), statistics.median(after))
        rows[f"{name}, p99, us"] = (statistics.quantiles(before, n=100)[-1], statistics.quantiles(after, n=100)[-1])
    return rows


def main() -> None:
    """Print a table for each number of tools, and write all as JSON if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tools", default="1,10,100", metavar="N,N")
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
    for build in (stock_tag, build_tag):
        build(tools(1, arguments.parameters, arguments.plain, 1_000_000))
    written: dict[str, dict[str, dict[str, float]]] = {}
    for count in map(int, arguments.tools.split(",")):
        rows = compared(count, arguments.parameters, arguments.plain, words, info)
        print(f"{count} tools, {arguments.vocab} tokens, xgrammar {version('xgrammar')}")
        print(f"{'':32}{'stock':>12}{'ours':>12}{'ratio':>8}")
        for name, (before, after) in rows.items():
            print(f"{name:32}{before:12.2f}{after:12.2f}{after / before:8.2f}", flush=True)
        written[str(count)] = {name: {"stock": before, "ours": after} for name, (before, after) in rows.items()}
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(written, file, indent=2)


if __name__ == "__main__":
    main()
