"""The support matrix as environments: `lines.toml` and the lock files, read into typed objects."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent


@dataclass(frozen=True)
class Accepted:
    """A requirement that is not met on purpose: `distribution` asks for `requires`, which stays out."""

    distribution: str
    requires: str
    reason: str


@dataclass(frozen=True)
class Line:
    """One environment: which vLLM, whose CPU kernels, what else was asked for, and what has to import."""

    name: str
    purpose: str
    vllm: str
    kernels: str
    shared_kernels: tuple[str, ...]
    torch: str
    requirements: tuple[str, ...]
    leave_out: tuple[str, ...]
    accepted: tuple[Accepted, ...]
    imports: tuple[str, ...]

    @property
    def lock(self) -> Path:
        return HERE / f"lock-{self.name}.txt"

    @property
    def default_venv(self) -> Path:
        return REPOSITORY / (".venv" if self.name == default_line() else f".venv-{self.name}")

    def pins(self) -> dict[str, str]:
        """Return every pinned distribution of the lock file by normalised name."""
        pins: dict[str, str] = {}
        for line in self.lock.read_text().splitlines():
            requirement = line.partition("#")[0].strip()
            if not requirement:
                continue
            name, equals, version = requirement.partition("==")
            if not equals:
                raise ValueError(f"{self.lock.name}: {requirement!r} is not pinned; allowed: name==version")
            pins[normalised(name)] = version
        return pins


def normalised(name: str) -> str:
    """Return a distribution name in the form that equal names share."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def default_line() -> str:
    """Return the name of the line that `make demo` uses."""
    return str(_read()["default"])


def line_names() -> list[str]:
    """Return the lines there are, oldest first."""
    return list(_read()["lines"])


def load(name: str) -> Line:
    """Return line `name`; raise `ValueError` naming the lines there are if it is none of them."""
    data = _read()
    if name not in data["lines"]:
        raise ValueError(
            f"line={name!r} is not in the support matrix of env/lines.toml; "
            f"allowed: {', '.join(data['lines'])}. Next step: choose one of them with --line."
        )
    common, own = data["common"], data["lines"][name]
    return Line(
        name=name,
        purpose=own["purpose"],
        vllm=own["vllm"],
        kernels=own["kernels"],
        shared_kernels=tuple(common["shared_kernels"]),
        torch=common["torch"],
        requirements=(*own["requirements"], *common["requirements"]),
        leave_out=(*common["leave_out"], *own.get("leave_out", ())),
        accepted=tuple(Accepted(**entry) for entry in (*common["accepted"], *own.get("accepted", ()))),
        imports=tuple(own["imports"]),
    )


def _read() -> dict[str, dict]:
    return tomllib.loads((HERE / "lines.toml").read_text())
