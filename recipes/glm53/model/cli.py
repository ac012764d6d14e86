"""``glm53 model make`` and ``glm53 model verify``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from glm53.model.folder import Manifest, ModelError, verify
from glm53.model.folder import make as make_folder
from glm53.model.shape import ARCHITECTURES, DTYPES

__all__ = ["app"]

app = typer.Typer(
    name="model",
    help="Make and check the small GLM-5.3-shaped model.",
    no_args_is_help=True,
    add_completion=False,
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The model folder.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command()
def make(
    directory: Directory,
    layers: Annotated[int, typer.Option(help="Hidden layers; layers 0, 1, 2, 6, 10, ... run an indexer.")] = 4,
    seed: Annotated[int, typer.Option(help="Selects the random weights.")] = 0,
    architecture: Annotated[str, typer.Option(help=" or ".join(ARCHITECTURES) + ".")] = "glm_moe_dsa",
    hidden: Annotated[int, typer.Option(help="Width of the hidden states.")] = 128,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 4,
    experts: Annotated[int, typer.Option(help="Routed experts a layer.")] = 8,
    index_topk: Annotated[int, typer.Option(help="Cached positions that a token attends to.")] = 128,
    index_heads: Annotated[
        int | None, typer.Option(help="Heads of the indexer.", show_default="as the architecture has")
    ] = None,
    context: Annotated[int, typer.Option(help="Longest sequence, in tokens.")] = 32768,
    mtp: Annotated[bool, typer.Option("--mtp", help="Add a multi-token-prediction layer.")] = False,
    dtype: Annotated[str, typer.Option(help=" or ".join(DTYPES) + ".")] = "float32",
    as_json: AsJson = False,
) -> None:
    """Make the model: config, random weights, tokenizer and chat template.

    The same arguments give the same bytes. A folder that already holds this model is left alone, another
    model made here is replaced, and a folder with anything else in it is refused.
    """
    try:
        manifest, written = make_folder(
            directory,
            layers=layers,
            seed=seed,
            architecture=architecture,
            hidden=hidden,
            heads=heads,
            experts=experts,
            index_topk=index_topk,
            index_heads=index_heads,
            context=context,
            mtp=mtp,
            dtype=dtype,
        )
    except ModelError as error:
        raise _failed(str(error), code=2) from error
    except OSError as error:
        raise _failed(f"{directory} cannot be written ({error}). Choose a DIR where you may write.", code=2) from error
    _show(directory, manifest, "made" if written else "already made", as_json)


@app.command("verify")
def verify_command(directory: Directory, as_json: AsJson = False) -> None:
    """Check that every file of the folder is as it was made."""
    try:
        manifest = verify(directory)
    except ModelError as error:
        raise _failed(str(error), code=1) from error
    _show(directory, manifest, "whole", as_json)


def _show(directory: Path, manifest: Manifest, state: str, as_json: bool) -> None:
    size = sum((directory / name).stat().st_size for name in manifest.files)
    if as_json:
        values = {
            "directory": str(directory.resolve()),
            "state": state,
            "fingerprint": manifest.fingerprint,
            "bytes": size,
            "config": manifest.shape.config(),
        }
        typer.echo(json.dumps(values, indent=2))
        return
    shape = manifest.shape
    typer.echo(
        f"{directory}: {state}; {shape.architecture}, {shape.layers} layers ({sum(shape.indexed)} with an "
        f"indexer), seed {shape.seed}, {size / 1e6:.1f} MB, fingerprint {manifest.fingerprint[:12]}"
    )


def _failed(error: str, code: int) -> typer.Exit:
    typer.echo(f"error: {error}", err=True)
    return typer.Exit(code)
