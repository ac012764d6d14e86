"""``glm53 batch``."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from glm53.client.batch.requests import Entry, InputError, index
from glm53.client.batch.results import OutputError, Results, opened
from glm53.client.batch.send import Policy, Tally, send
from glm53.client.commands import AsJson, RunDir, Url, fail, list_models
from glm53.client.server import FAILED, USAGE, Problem, Server, find_server

__all__ = ["batch"]

_INTERRUPTED = 130
_err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def batch(
    source: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="Requests, one a line.", show_default=False)],
    output: Annotated[Path, typer.Argument(metavar="OUT.jsonl", help="Results, one a line.", show_default=False)],
    url: Url = None,
    run_dir: RunDir = Path("build/run"),
    concurrency: Annotated[int, typer.Option(min=1, max=4096, help="Requests under way at once.", metavar="N")] = 32,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds for which a request is tried again: full, gone, limited.")
    ] = 3600,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that one answer may take.")] = 3600,
    again: Annotated[
        bool, typer.Option("--retry-failed", help="Send requests again whose result is a failure.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Send a file of requests and write one result for each, in OpenAI's batch format.

    A line of IN is {"custom_id", "method": "POST", "url": "/v1/...", "body"}; one of OUT is {"id", "custom_id",
    "response": {"status_code", "request_id", "body"}, "error"}. Malformed lines and repeated custom_ids are refused
    before anything is sent. Run the same command again after a kill, a crash or Ctrl-C: what has a result is not sent
    again, and no result is lost or doubled. Exit codes: 0 all succeeded, 1 some failed or nothing answers, 2 refused,
    130 interrupted.
    """
    began = time.monotonic()
    try:
        entries = index(source)
        if output.exists() and output.samefile(source):
            raise OutputError(f"{output} is the input itself. Choose another output.")
        server = find_server(url, run_dir)
        with opened(output, entries, again=again) as results:
            before = len(results.done)
            waiting = [entry for entry in entries if entry.custom_id not in results.done]
            if waiting:
                _check_models(server, waiting)
            policy = Policy(concurrency, patience, timeout)
            with _progress(len(entries), before, as_json) as changed:
                tally = _run(server, source, waiting, results, policy, changed)
            good = sum(results.done.values())
    except (InputError, OutputError) as error:
        fail(Problem(str(error), USAGE))
    except Problem as problem:
        fail(problem)
    summary: dict[str, Any] = {
        "requests": len(entries),
        "done_before": before,
        "torn_bytes": results.torn,
        "succeeded": good,
        "failed": len(entries) - good,
        **asdict(tally),
        "seconds": round(time.monotonic() - began, 3),
        "output": str(output),
    }
    if as_json:
        print(json.dumps(summary, indent=1))
    else:
        print(
            f"{good} of {len(entries)} requests succeeded ({before} before, {tally.sent} now, {tally.retries} retries, "
            f"{tally.completion_tokens} tokens in {summary['seconds']:.1f} s): {output}"
        )
    if good < len(entries):
        raise typer.Exit(FAILED)


def _check_models(server: Server, entries: list[Entry]) -> None:
    """Refuse a batch for a model that the server, which lists others, does not serve. Raises Problem."""
    served = {str(one["id"]) for one in list_models(server)}
    for entry in entries:
        if served and entry.model is not None and entry.model not in served:
            raise Problem(
                f"line {entry.line} asks for model {entry.model!r}, but {server.url} serves "
                f"{', '.join(sorted(served))}. Nothing was sent.",
                USAGE,
            )


def _run(
    server: Server,
    source: Path,
    entries: list[Entry],
    results: Results,
    policy: Policy,
    changed: Callable[[Tally], None],
) -> Tally:
    """Send everything. Raises Problem where that is interrupted or the output cannot be written."""

    async def main() -> Tally:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await send(server, source, entries, results, policy, changed)

    again = f"{len(results.done)} results are in {results.path}; run the same command again to go on."
    try:
        return asyncio.run(main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise Problem(f"interrupted. {again}", _INTERRUPTED) from None
    except ExceptionGroup as group:
        first = group.exceptions[0]
        if isinstance(first, InputError):
            raise first from None
        if isinstance(first, OSError):
            why = os.strerror(first.errno) if first.errno else str(first)
            raise Problem(f"{results.path} cannot be written ({why}). {again}", FAILED) from first
        raise


@contextmanager
def _progress(total: int, before: int, quiet: bool) -> Iterator[Callable[[Tally], None]]:
    """A bar on standard error where that is a terminal; two plain lines where it is not."""
    if not _err.is_terminal:
        if not quiet:
            _err.print(f"{total} requests, {before} with a result")
        yield lambda tally: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[retries]} retries"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_err) as bar:
        task = bar.add_task("requests", total=total, completed=before, retries=0)
        yield lambda tally: bar.update(task, completed=before + tally.sent, retries=tally.retries)
