"""The command line ``rl-capture``. Exit codes: 0 well, 1 something is wrong or failed, 2 wrong usage."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rl_capture import parquet
from rl_capture.files import CLOSED
from rl_capture.reading import Unreadable, faults, files, records
from rl_capture.record import line
from rl_capture.whole_file import whole_file

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Entry point of `rl-capture`; returns the exit status."""
    given = _parser().parse_args(argv)
    try:
        return _COMMANDS[given.command](given)
    except Unreadable as error:
        return _failed(str(error), 2)
    except (parquet.NoPyarrow, OSError) as error:
        return _failed(str(error), 1)
    except KeyboardInterrupt:
        return _failed("interrupted", 130)


def _failed(text: str, code: int) -> int:
    print(f"rl-capture: {text}", file=sys.stderr)
    return code


def _ls(given: argparse.Namespace) -> int:
    rows = []
    for path in files(given.source):
        one = list(records(path))
        rows.append(
            {
                "file": path.name,
                "closed": path.name.endswith(CLOSED),
                "bytes": path.stat().st_size,
                "records": len(one),
                "prompt_tokens": sum(record["prompt"]["tokens"] for record in one),
                "output_tokens": sum(len(record["output"]["ids"]) for record in one),
                "finish": dict(sorted(Counter(record["finish"] for record in one).items())),
            }
        )
    if given.json:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        state = "" if row["closed"] else "  under way"
        ends = ", ".join(f"{name} {number:,}" for name, number in row["finish"].items())
        print(
            f"{row['file']}  {row['bytes']:,} bytes  {row['records']:,} records ({ends or 'none'})  "
            f"{row['prompt_tokens']:,} + {row['output_tokens']:,} tokens{state}"
        )
    return 0


def _show(given: argparse.Namespace) -> int:
    chosen = (
        record
        for record in _all(given.source)
        if (given.request is None or given.request in record["request"])
        and (given.session is None or given.session == record["session"])
    )
    shown = 0
    for record in itertools.islice(chosen, given.limit):
        shown += 1
        print(_printed(record if given.whole else _short(record)))
    return 0 if shown else _failed("no record matches. `rl-capture ls` shows what there is.", 1)


def _export(given: argparse.Namespace) -> int:
    if given.output.exists():
        return _failed(f"{given.output} exists already, and is left as it is. Give another name, or remove it.", 2)
    if not given.output.parent.is_dir():
        return _failed(f"{given.output.parent} is no folder to write {given.output.name} into. Make it first.", 2)
    chosen = (one for one in _all(given.source) if not (given.unmixed and _mixed(one)))
    written = parquet.write(chosen, given.output) if given.to == "parquet" else _jsonl(chosen, given.output)
    print(f"{written:,} records in {given.output}", file=sys.stderr)
    return 0


def _verify(given: argparse.Namespace) -> int:
    found = [
        {"file": path.name, "line": number, "problem": problem}
        for path in files(given.source)
        for number, problem in faults(path)
    ]
    if given.json:
        print(json.dumps(found, indent=1))
    else:
        for one in found:
            print(f"{one['file']}:{one['line']}: {one['problem']}")
        print(f"{len(found)} faults in {len(files(given.source))} files" if found else "all records are whole")
    return 1 if found else 0


def _all(source: Path) -> Iterator[dict[str, Any]]:
    for path in files(source):
        yield from records(path)


def _mixed(record: dict[str, Any]) -> bool:
    """Whether an answer is of more than one set of weights, or may be."""
    weights = record["weights"]
    begin, end = weights["epoch"]
    return weights["begin"] != weights["end"] or begin != end or begin % 2 == 1 or len(weights["spans"] or []) > 1


def _printed(record: dict[str, Any]) -> str:
    """The record as JSON, with escapes only where standard output has no such character."""
    text = json.dumps(record, indent=1, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return json.dumps(record, indent=1)
    return text


def _short(record: dict[str, Any]) -> dict[str, Any]:
    """The record with long lists told by their length."""
    return {
        key: _short(value)
        if isinstance(value, dict)
        else f"{len(value)} numbers"
        if isinstance(value, list) and len(value) > 16
        else value
        for key, value in record.items()
    }


def _jsonl(chosen: Iterable[dict[str, Any]], path: Path) -> int:
    written = 0
    with whole_file(path) as part, part.open("wb") as file:
        for record in chosen:
            file.write(line(record))
            written += 1
    return written


def _count(text: str) -> int:
    found = int(text) if text.isdecimal() else 0
    if not 1 <= found <= sys.maxsize:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return found


def _parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(
        prog="rl-capture",
        description="Records of served requests, as RL_CAPTURE=on writes them: look at them, check them, hand them on.",
        epilog="Exit status: 0 well, 1 something is wrong or failed, 2 wrong usage. Each command has its own --help.",
    )
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")

    one = commands.add_parser("ls", help="the files, their records and tokens")
    one.add_argument("--json", action="store_true", help="as JSON on standard output")

    two = commands.add_parser("show", help="records as JSON, long lists as their lengths")
    two.add_argument("--request", metavar="ID", help="of requests whose id has this in it")
    two.add_argument("--session", metavar="ID", help="of this session")
    two.add_argument("--limit", type=_count, default=10, metavar="N", help="at most so many (10)")
    two.add_argument("--whole", action="store_true", help="with all ids and log-probabilities")

    three = commands.add_parser("export", help="all records as one file, for a trainer")
    three.add_argument("--to", choices=("jsonl", "parquet"), default="jsonl", help="form (jsonl)")
    three.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="a file that is not there yet")
    three.add_argument("--unmixed", action="store_true", help="only answers that are surely of one set of weights")

    four = commands.add_parser("verify", help="hold every line against the form; exit status 1 if one contradicts it")
    four.add_argument("--json", action="store_true", help="as JSON on standard output")
    for command in (one, two, three, four):
        command.add_argument("source", type=Path, metavar="FOLDER", help="what RL_CAPTURE_DIR names, or one file")
    return whole


_COMMANDS = {"ls": _ls, "show": _show, "export": _export, "verify": _verify}

if __name__ == "__main__":
    sys.exit(main())
