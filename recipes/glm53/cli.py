"""The ``glm53`` command line. Exit codes: 0 success, 1 it ran and failed, 2 wrong usage or configuration."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from glm53 import __version__
from glm53.checks import check_model_folder
from glm53.client.batch.command import batch
from glm53.client.commands import chat, models
from glm53.deployment import CPU_CACHE_DTYPES, Deployment, DeploymentError, Finding, load, parse
from glm53.deployment.roles import ROLES
from glm53.doctor.command import doctor
from glm53.edge.command import app as edge_app
from glm53.local.roll import roll as roll_workers
from glm53.local.stack import Stack, StackError, clean, report
from glm53.model import ModelError, make
from glm53.model.cli import app as model_app
from glm53.plan.cli import app as plan_app
from glm53.recipe import lint, render
from glm53.simulate.command import simulate
from glm53.stage.command import stage
from glm53.tuned.command import tuned

__all__ = ["app"]

app = typer.Typer(
    name="glm53",
    help="Serve GLM-5.3 to coding agents on stock vLLM, Dynamo and NIXL: start a deployment, drive it, measure it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(model_app, name="model")
app.add_typer(plan_app, name="plan")
app.add_typer(edge_app, name="edge")
app.command()(lint)
app.command()(render)
app.command()(doctor)
app.command()(simulate)
app.command()(stage)
app.command()(tuned)
app.command()(models)
app.command()(chat)
app.command()(batch)

_out = Console()
_err = Console(stderr=True)

DEFAULT = Path("recipes/glm53-cpu.yaml")
RUN_DIR = Path("build/run")
DEMO_DIR = Path("build/demo-run")

DeploymentFile = Annotated[
    Path, typer.Option("--deployment", "-d", help="The deployment, a YAML file.", metavar="FILE")
]
RunDir = Annotated[Path, typer.Option(help="Folder for logs, sockets and state of the run.", metavar="DIR")]
CacheDtype = Annotated[
    str | None,
    typer.Option(help=f"Dtype of the KV cache, instead of the file's: {', '.join(CPU_CACHE_DTYPES)}.", metavar="DTYPE"),
]
TierName = Annotated[
    str | None, typer.Option("--tier", help="DRAM tier behind prefill's cache: mooncake.", metavar="NAME")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print data as JSON on standard output.")]


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
def up(
    deployment: DeploymentFile = DEFAULT,
    run_dir: RunDir = RUN_DIR,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the OpenAI API.", show_default="a free one")
    ] = None,
    prefill: Annotated[int | None, typer.Option(help="Prefill workers, instead of the file's number.")] = None,
    decode: Annotated[int | None, typer.Option(help="Decode workers, instead of the file's number.")] = None,
    kv_cache_dtype: CacheDtype = None,
    frontend: Annotated[
        str | None,
        typer.Option(help="Frontend, instead of the file's: stock, or structural_tags.", metavar="NAME"),
    ] = None,
    tier: TierName = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait until everything serves.")] = 600,
    as_json: AsJson = False,
) -> None:
    """Start a deployment on this machine and return when it has answered a request.

    That takes about a minute and 2.3 GB of memory a worker. Everything listens on 127.0.0.1 only. If a process
    dies, its name and last log lines are shown and the rest is ended. `glm53 down` ends it.
    """
    with _errors():
        workers, engine = {"prefill": prefill, "decode": decode}, {"kv_cache_dtype": kv_cache_dtype}
        options: dict[str, dict[str, Any]] = {"workers": workers, "engine": engine, "tools": {"frontend": frontend}}
        options["tier"] = _tier(tier)
        chosen = _with_model(_read(deployment, options))
        stack = Stack(chosen, run_dir, http_port=port)
        stack.up(say, timeout)
    if as_json:
        _print_json({"url": f"{stack.url}/v1", "model": chosen.model.served_name, "run_dir": str(stack.run_dir)})
    else:
        here = f"{sys.argv[0]} down" + ("" if run_dir == RUN_DIR else f" --run-dir {run_dir}")
        _out.print(f"OpenAI API: {stack.url}/v1   model: {chosen.model.served_name}", highlight=False)
        _out.print(f"End it with: {here}", highlight=False, soft_wrap=True)


@app.command()
def down(run_dir: RunDir = RUN_DIR, as_json: AsJson = False) -> None:
    """End the deployment that runs in a run directory, with all processes it started."""
    with _errors():
        found = clean(run_dir.resolve(), say)
    if as_json:
        _print_json({"ended": found})
    elif not found:
        _out.print(f"Nothing runs in {run_dir}.")


@app.command()
def roll(
    role: Annotated[str, typer.Argument(help="prefill, decode or aggregated.", metavar="ROLE", show_default=False)],
    deployment: DeploymentFile = DEFAULT,
    run_dir: RunDir = RUN_DIR,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for a worker to get ready, and to finish.")] = 600,
    as_json: AsJson = False,
) -> None:
    """Replace the workers of one role by new ones while the deployment serves.

    One after another: a new worker starts, then the old one leaves and finishes what it has. What all roles must agree
    on cannot change this way.
    """
    with _errors():
        if role not in ROLES:
            raise typer.BadParameter(f"{role}: choose {', '.join(ROLES)}.")
        replaced = roll_workers(_read(deployment, {}), role, run_dir, say, timeout)
    if as_json:
        _print_json({"replaced": replaced})
    else:
        _out.print("\n".join(f"{old} -> {new}" for old, new in replaced.items()), highlight=False)


@app.command()
def status(run_dir: RunDir = RUN_DIR, as_json: AsJson = False) -> None:
    """Show the processes of a deployment. Exit code 0 only if all of them run and the API answers."""
    with _errors():
        state = report(run_dir.resolve())
    if as_json:
        _print_json(state)
    elif state["processes"]:
        table = Table("process", "pid", "state", "memory", "log")
        for one in state["processes"]:
            memory = f"{one['memory_bytes'] / (1 << 20):.0f} MiB" if one["alive"] else ""
            table.add_row(one["name"], str(one["pid"]), "runs" if one["alive"] else "dead", memory, one["log"])
        _out.print(table)
        dead = [one["name"] for one in state["processes"] if not one["alive"]]
        answers = "answers" if state["answers"] else "does not answer"
        _out.print(f"{state['deployment']}: {state['url']}/v1 {answers}", highlight=False)
        if dead:
            _out.print(f"dead: {', '.join(dead)}; the logs say why, `glm53 down` ends the rest", highlight=False)
    else:
        _out.print(f"Nothing runs in {run_dir}.")
    raise typer.Exit(0 if state["healthy"] else 1)


@app.command("agent-demo")
def agent_demo(
    deployment: DeploymentFile = DEFAULT,
    run_dir: Annotated[
        Path,
        typer.Option(help="Folder for logs and sockets; what an earlier demo left is ended.", metavar="DIR"),
    ] = DEMO_DIR,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the report to this file.", metavar="FILE")
    ] = None,
    sessions: Annotated[int, typer.Option(min=1, max=64, help="Agents at work at the same time.")] = 3,
    turns: Annotated[int, typer.Option(min=2, max=32, help="Turns of each agent.")] = 4,
    prompt: Annotated[
        int, typer.Option(min=256, help="Tokens each agent says first; tools and template add about 1,100.")
    ] = 3500,
    append: Annotated[int, typer.Option(min=16, help="Tokens of the tool result that each turn appends.")] = 150,
    kv_cache_dtype: CacheDtype = None,
    tier: TierName = None,
) -> None:
    """Drive the deployment with agents that use tools, and prove what it did.

    Runs the same conversations three times: with block rows (BLHNC), with vLLM's default layout, and on one
    aggregated worker whose outputs the others must equal. A negative control gives the decode worker another
    context than the prefill worker. With --tier a prompt is also computed, found in the GPU's cache, and found in the
    DRAM tier after its eviction. Exit code 0 only if all outputs are equal and the controls hold.
    """
    from glm53.demo.run import Plan, run_demo
    from glm53.demo.show import show

    plan = Plan(sessions=sessions, turns=turns, prompt_tokens=prompt, append_tokens=append)
    with _errors():
        chosen = _read(deployment, {"engine": {"kv_cache_dtype": kv_cache_dtype}, "tier": _tier(tier)})
        if plan.longest() > chosen.engine.max_model_len:
            raise typer.BadParameter(
                f"the last turn would reach {plan.longest()} tokens, more than engine.max_model_len="
                f"{chosen.engine.max_model_len} of {deployment}. Lower --prompt, --append or --turns."
            )
        result = run_demo(_with_model(chosen), run_dir.resolve(), plan, say)
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    show(result, _out)
    proven = all(run[key] for run in (result, result["baseline"]) for key in ("outputs_equal", "negative_control"))
    if result["tier"]:
        proven = proven and result["tier"]["outputs_equal"] and result["tier"]["from_the_tier"]
    raise typer.Exit(0 if proven else 1)


def say(message: str) -> None:
    """Progress, on standard error so that standard output holds results only."""
    _err.print(message, highlight=False, markup=False, soft_wrap=True)


def _read(path: Path, options: dict[str, dict[str, Any]]) -> Deployment:
    """The deployment with what the command line sets: section -> key -> value, None for what it does not."""
    chosen = load(path)
    given = {
        f"{section}.{key}": value
        for section, values in options.items()
        for key, value in values.items()
        if value is not None
    }
    if not given:
        return chosen
    raw = chosen.model_dump(mode="json")
    for name, value in given.items():
        section, _, key = name.partition(".")
        raw[section] = (raw[section] or {}) | {key: value}
    return parse(raw, f"{path} with {', '.join(f'{name}={value}' for name, value in given.items())}")


def _tier(name: str | None) -> dict[str, Any]:
    """Settings of the named DRAM tier on one machine."""
    if name is None:
        return {}
    if name != "mooncake":
        raise typer.BadParameter(f"{name}: the tier is mooncake.", param_hint="--tier")
    return {"memory": "1GiB", "buffer": "64MiB", "protocol": "tcp", "chunk_tokens": 256}


def _with_model(deployment: Deployment) -> Deployment:
    """The deployment with a model folder that is complete, made first if the deployment says how."""
    if "local" not in deployment.targets:
        named = ", ".join(deployment.targets)
        raise DeploymentError(
            deployment.name,
            [Finding("not-local", "targets", f"it is for {named}, not for this machine.", "Use `glm53 render`.")],
        )
    model = deployment.model
    if model.make is not None and make(model.folder, **model.make.model_dump()).written:
        say(f"made the model in {model.folder}")
    check_model_folder(model.folder)
    return deployment


@contextmanager
def _errors() -> Iterator[None]:
    """Errors as messages with the right exit code; SIGTERM as an interrupt, so that everything gets ended."""
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        yield
    except (DeploymentError, ModelError) as error:
        _fail(str(error), 2)
    except StackError as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        _fail("interrupted; everything that was started has been ended", 130)


def _interrupted(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _fail(message: str, code: int) -> NoReturn:
    say(f"glm53: {message}")
    raise typer.Exit(code)


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")
