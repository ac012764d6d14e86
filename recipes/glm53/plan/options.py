"""What the ``glm53 plan`` commands share: options that take vLLM's words, and errors in the words of the options."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from packaging.version import Version
from rich import box
from rich.console import Console

from glm53.plan.capacity import GIB
from glm53.plan.config import ConfigError
from vllm_blhnc.plan import DTYPES, RELEASES, PlanError

__all__ = ["TABLE", "Dtype", "Model", "cache_dtype", "errors_in_one_line", "gib_bytes", "release_line"]

#: How the plans' tables look: narrow enough for 80 columns.
TABLE: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False, "title_justify": "left"}

Model = Annotated[
    Path,
    typer.Option(
        help="The model's config.json, or a folder that holds it. Of a multimodal model its text_config is read.",
        metavar="PATH",
        show_default=False,
    ),
]
Dtype = Annotated[str, typer.Option(help="Dtype of the KV cache: " + ", ".join(DTYPES) + ".")]

#: vLLM's --kv-cache-dtype -> the plan's dtype, where the two differ.
_SAME = {"bfloat16": "bf16", "fp8_e4m3": "fp8"}

_OPTIONS = {
    "backend": "--attention-backend",
    "block_size": "--block-size",
    "dtype": "--dtype",
    "layout": "--layout",
    "mtp": "--mtp",
    "release": "--vllm",
    "row_alignment": "--row-alignment",
    "tokens": "--tokens",
    "workspace": "--workspace",
}


def cache_dtype(name: str) -> str:
    """The plan's name of a cache dtype; one that the plan does not know stays. Raises `PlanError` for ``auto``."""
    if name == "auto":
        raise PlanError(
            "--dtype auto: vLLM settles it when it starts, from model and GPU, so its bytes are not known here. "
            f"Give the dtype that is served: {', '.join(DTYPES)}."
        )
    return _SAME.get(name, name)


def release_line(version: str) -> str:
    """``0.33`` of vLLM's own ``0.33.0`` or ``0.33.0+cpu``; what names no supported line stays."""
    try:
        line = ".".join(map(str, Version(version).release[:2]))
    except ValueError:
        return version
    return line if line in RELEASES else version


def gib_bytes(option: str, gib: float) -> int:
    """Bytes of a number of GiB; raises `PlanError` for one that is no size."""
    if not 0 <= gib < 1 << 20:  # also refuses what is not a number
        raise PlanError(f"{option} {gib}: it must be a number of GiB, 0 or more and below 1,048,576. Correct it.")
    return int(gib * GIB)


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """A plan that cannot be made ends with exit code 2, and standard output that cannot be written with 1."""
    try:
        yield
        sys.stdout.flush()
    except (ConfigError, PlanError) as error:
        raise _ended(_as_typed(str(error)), 2) from error
    except BrokenPipeError:  # the reader has seen enough, as in `| head`: typer ends quietly
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python's own flush at the end fails too
        raise _ended(f"standard output cannot be written: {error.strerror}. Send it elsewhere.", 1) from error


def _as_typed(message: str) -> str:
    """A message that begins with the plan's ``release='1'`` as one that begins with ``--vllm '1'``."""
    return re.sub(r"^(\w+)=", lambda name: f"{_OPTIONS[name[1]]} " if name[1] in _OPTIONS else name[0], message)


def _ended(message: str, code: int) -> typer.Exit:
    Console(stderr=True).print(f"glm53: {message}", highlight=False, markup=False, soft_wrap=True)
    return typer.Exit(code)
