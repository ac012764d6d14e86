"""Writes a model folder in one step, knows its own folders again, and checks them.

A folder is built under a temporary name beside its place and renamed, so there is never half a model. The
manifest inside marks it as ours, names what it was made from and holds the hash of every file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from glm53.model.shape import ModelError, Shape
from glm53.model.tokens import EOS_IDS, PAD_ID, tokenizer, tokenizer_config

__all__ = ["MANIFEST", "Made", "Manifest", "ModelError", "make", "verify"]

MANIFEST = "glm53-model.json"


@dataclass(frozen=True)
class Manifest:
    """What a folder was made from, and the sha256 of each of its files.

    fingerprint: one hash over all of them; equal on two machines if the models are equal.
    """

    shape: Shape
    recipe: str
    files: dict[str, str]

    @property
    def fingerprint(self) -> str:
        return _sha256(json.dumps(self.files, sort_keys=True).encode())


class Made(NamedTuple):
    """The model in the folder, and whether it had to be written."""

    manifest: Manifest
    written: bool


def make(directory: Path | str, **choices: Any) -> Made:
    """Make the model in ``directory``; ``choices`` are fields of `Shape` (layers, seed, ...).

    A folder that already holds this model is left alone, another model of ours is replaced as a whole.
    Raises `ModelError` if the folder holds anything that was not made here, and OSError if it cannot be
    written.
    """
    shape = Shape(**choices)
    target = Path(directory).resolve()
    with contextlib.suppress(ModelError):
        present = verify(target)
        if present.shape == shape and present.recipe == _recipe():
            return Made(present, written=False)
    _refuse_foreign(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _scratch(target) as building, _scratch(target) as attic:
        manifest = _write(building, shape)
        _put(building, target, attic)
    return Made(manifest, written=True)


def verify(directory: Path | str) -> Manifest:
    """Check every file of a model folder against its manifest.

    Raises `ModelError` naming the folder or the first file that is missing, changed, or not of the model.
    """
    folder = Path(directory)
    manifest = _read_manifest(folder)
    for name, expected in manifest.files.items():
        if not (folder / name).is_file():
            raise _broken(folder, f"{name} is missing")
        with (folder / name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            raise _broken(folder, f"{name} was changed: sha256={found}, made with {expected}")
    if strangers := _strangers(folder, manifest):
        raise _broken(folder, f"{strangers[0]} does not belong to the model and a loader may read it")
    return manifest


def _write(folder: Path, shape: Shape) -> Manifest:
    from glm53.model.weights import write

    texts = {
        "config.json": _json(shape.config()),
        "generation_config.json": _json(
            {"eos_token_id": list(EOS_IDS), "pad_token_id": PAD_ID, "temperature": 1.0, "top_p": 0.95}
        ),
        "tokenizer.json": _json(tokenizer()),
        "tokenizer_config.json": _json(tokenizer_config(shape.context)),
        "chat_template.jinja": (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8"),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    write(shape, folder / "model.safetensors")
    files = {path.name: _sha256(path.read_bytes()) for path in sorted(folder.iterdir())}
    manifest = Manifest(shape, _recipe(), files)
    (folder / MANIFEST).write_text(_json(asdict(manifest)), encoding="utf-8")
    return manifest


def _read_manifest(folder: Path) -> Manifest:
    if not folder.is_dir():
        raise ModelError(f"{folder} is no model folder: there is no such directory. {_hint(folder)}")
    try:
        raw = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return Manifest(Shape(**raw["shape"]), str(raw["recipe"]), dict(raw["files"]))
    except FileNotFoundError:
        raise ModelError(
            f"{folder} has no {MANIFEST}, so it was not made by `glm53 model make` and cannot be checked. "
            "Name a folder that was, or make one: glm53 model make DIR."
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise _broken(folder, f"{MANIFEST} cannot be read ({error})") from error


def _refuse_foreign(target: Path) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise ModelError(f"{target} is a file; a model is a folder. Choose another DIR or move the file away.")
    if not any(target.iterdir()):
        return
    try:
        marked = (target / MANIFEST).is_file()
        strangers = _strangers(target, _read_manifest(target)) if marked else sorted(os.listdir(target))
    except ModelError:
        raise ModelError(
            f"{target}: its {MANIFEST} cannot be read, so what belongs to the model is unknown and "
            "nothing is replaced; allowed is a new, an empty, or an own folder. Choose another DIR, or "
            "remove this one."
        ) from None
    if strangers:
        raise ModelError(
            f"{target} holds {strangers[0]!r}, which `glm53 model make` did not write, and making a model "
            "replaces the whole folder; allowed is a new, an empty, or an own folder. Choose another DIR, or "
            f"move {strangers[0]!r} away."
        )


def _strangers(folder: Path, manifest: Manifest) -> list[str]:
    return sorted(set(os.listdir(folder)) - {MANIFEST, *manifest.files})


@contextlib.contextmanager
def _scratch(target: Path) -> Iterator[Path]:
    """A new folder beside ``target``, gone afterwards unless it was renamed."""
    folder = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}")
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _put(building: Path, target: Path, attic: Path) -> None:
    """Rename ``building`` to ``target``; what was there, by now or by another process, goes to ``attic``."""
    while True:
        try:
            building.rename(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        with contextlib.suppress(FileNotFoundError):
            target.rename(attic / secrets.token_hex(4))


def _recipe() -> str:
    """Hash of the sources that decide the content, so that a changed maker makes its folders anew."""
    here = Path(__file__).parent
    names = ("chat_template.jinja", "folder.py", "shape.py", "tokens.py", "weights.py")
    return _sha256(b"\0".join((here / name).read_bytes() for name in names))


def _broken(folder: Path, what: str) -> ModelError:
    return ModelError(f"{folder}: {what}. A model is only served whole. {_hint(folder)}")


def _hint(folder: Path) -> str:
    return f"Make it: glm53 model make {folder}."


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
