"""``glm53 models`` and ``glm53 chat``."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import httpx
import typer
from rich.console import Console

from glm53.client.chat import Answer, Piece, ask, parameters
from glm53.client.server import USAGE, Problem, Server, find_server, refusal, unreachable

__all__ = ["AsJson", "RunDir", "Url", "chat", "fail", "models"]

Url = Annotated[
    str | None,
    typer.Option(
        help="The OpenAI API, as in http://127.0.0.1:8000/v1.",
        envvar="OPENAI_BASE_URL",
        show_default="what `glm53 up` started in --run-dir",
        metavar="URL",
    ),
]
RunDir = Annotated[Path, typer.Option(help="Folder of the deployment to talk to where no URL is given.", metavar="DIR")]
AsJson = Annotated[bool, typer.Option("--json", help="Print data as JSON on standard output.")]

_RUN_DIR = Path("build/run")
_err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def models(url: Url = None, run_dir: RunDir = _RUN_DIR, as_json: AsJson = False) -> None:
    """List the models that a server serves.

    The key is OPENAI_API_KEY's, if that is set. Exit codes: 0, 1 nothing answers or the server fails, 2 wrong address
    or key, 3 the server refuses for now.
    """
    try:
        server = find_server(url, run_dir)
        listed = list_models(server)
    except Problem as problem:
        fail(problem)
    if as_json:
        print(json.dumps(listed, indent=1))
    else:
        print("\n".join(str(one["id"]) for one in listed) or f"{server.url} serves no model yet.")


def list_models(server: Server) -> list[dict[str, Any]]:
    """The entries of ``GET /v1/models``. Raises Problem."""
    try:
        with httpx.Client(timeout=10.0, **server.options) as client:
            response = client.get(f"{server.url}/models")
    except httpx.TransportError as error:
        raise unreachable(server, error) from error
    if response.status_code != 200:
        raise refusal(server, response.status_code, response.text, response.headers.get("retry-after"))
    try:
        return list(response.json()["data"])
    except (ValueError, KeyError, TypeError) as error:
        raise Problem(f"{server.url}/models answers, but not as an OpenAI API does.", USAGE) from error


def chat(
    model: Annotated[str, typer.Argument(help="The model's name in the API.", show_default=False)],
    message: Annotated[
        str | None, typer.Argument(help="What to say; standard input if left out or `-`.", show_default=False)
    ] = None,
    url: Url = None,
    run_dir: RunDir = _RUN_DIR,
    system: Annotated[str | None, typer.Option("--system", "-s", help="System prompt.", metavar="TEXT")] = None,
    tools: Annotated[
        Path | None, typer.Option(help="JSON file with the list of tools the model may call.", metavar="FILE")
    ] = None,
    effort: Annotated[str | None, typer.Option(help="How much to reason: low, high or max.", metavar="LEVEL")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer.", metavar="N")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", "-t", min=0, help="Randomness.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a model and print its answer as it comes.

    Standard output holds the answer, then each tool call as `NAME(ARGUMENTS)`; reasoning goes to standard error. With
    --json it is one object with content, reasoning, tool_calls, finish_reason, usage and ttft_s instead. Exit codes: 0
    a whole answer, 1 nothing answers or the server fails, 2 unknown model, wrong key or request, 3 the server is full
    or limits you: try again.
    """
    try:
        body = parameters(
            model,
            _message(message),
            system=system,
            tools=_tools(tools),
            reasoning_effort=effort,
            max_tokens=max_tokens,
            temperature=temperature,
        )
        printer = _Printer()
        answer = ask(find_server(url, run_dir), body, (lambda piece: None) if as_json else printer.show)
    except Problem as problem:
        fail(problem)
    if as_json:
        print(json.dumps(asdict(answer), indent=1, ensure_ascii=False))
    else:
        printer.finish(answer)


class _Printer:
    """The answer on standard output, the reasoning dimmed on standard error, a line between them."""

    def __init__(self) -> None:
        self._last: str | None = None

    def show(self, piece: Piece) -> None:
        if self._last not in (None, piece.kind):
            (sys.stderr if self._last == "reasoning" else sys.stdout).write("\n")
        self._last = piece.kind
        if piece.kind == "reasoning":
            _err.print(piece.text, style="dim", end="")
        else:
            sys.stdout.write(piece.text)
            sys.stdout.flush()

    def finish(self, answer: Answer) -> None:
        if self._last is not None:
            (sys.stderr if self._last == "reasoning" else sys.stdout).write("\n")
        for call in answer.tool_calls:
            print(f"{call.name}({call.arguments})")
        if answer.finish_reason == "length":
            _err.print("(cut off: the answer reached its longest length)")


def _message(given: str | None) -> str:
    try:
        text = sys.stdin.read() if given in (None, "-") else given
        (text or "").encode()
    except UnicodeError as error:
        raise Problem(
            f"the message is not UTF-8 ({error}). Convert it first, as with iconv -t utf-8.", USAGE
        ) from error
    if not text or not text.strip():
        raise Problem("the message is empty. Give it as an argument, or on standard input.", USAGE)
    return text


def _tools(path: Path | None) -> list[Any] | None:
    if path is None:
        return None
    try:
        tools = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Problem(f"--tools {path} cannot be read as JSON ({error}). Give a list of tools.", USAGE) from error
    if not isinstance(tools, list):
        raise Problem(f'--tools {path} holds no list. Write [{{"type": "function", ...}}].', USAGE)
    return tools


def fail(problem: Problem) -> NoReturn:
    """Say what is wrong on standard error and end with its exit code."""
    sys.stdout.flush()
    _err.print(f"glm53: {problem}")
    raise typer.Exit(problem.code)
