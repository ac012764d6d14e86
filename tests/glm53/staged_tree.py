"""A copy of an installed package to stage topics in: its files are links, and staged ones take a link's place."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from glm53.stage.place import OURS
from glm53.stage.staging import Change, changes, write
from glm53.stage.topics import TOPICS
from glm53.stage.tree import PROJECTS, Tree

#: vLLM takes Triton where a GPU's driver is active, or where it has a backend named for the CPU: with one, its kernels
#: can be interpreted on machines without a GPU. Run by Python before anything else, with what follows.
_INTERPRETING = """
import os
import sys
from importlib.machinery import PathFinder
from types import SimpleNamespace


class _Interpreting:
    def find_spec(self, name, path=None, target=None):
        if name != "triton.backends" or os.environ.get("TRITON_INTERPRET") != "1":
            return None
        spec = PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            module.backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: False))

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Interpreting())
if os.environ.get("TRITON_INTERPRET") == "1":
    import triton.backends  # before pytest, which would look for it first
"""

#: In the staged tests' process our packages cannot be imported.
_ALONE = f"""
{_INTERPRETING}

class _NotHere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {OURS!r}:
            raise ModuleNotFoundError(f"{{name}} is not part of the staged tree", name=name)


sys.meta_path.insert(0, _NotHere())
"""


#: A fake of the only package that FlashInfer imports and this environment lacks; nothing of it is called without a GPU.
_FLASHINFER = """
import types

sys.modules["pynvml"] = types.ModuleType("pynvml")
"""


#: The same, where a plugin's own tests run: what was moved goes by the names that it has in the plugin, of which
#: nothing else can be imported and no entry point is seen.
_STAGED = """
import importlib
import importlib.metadata
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {moved!r}
PLUGINS = {plugins!r}
OURS = {ours!r}


class _There:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in PLUGINS:
            return None
        if name in MOVED or any(one.startswith(name + ".") for one in MOVED):
            return ModuleSpec(name, self, is_package=True)
        raise ModuleNotFoundError(f"{{name}} is not part of the staged tree", name=name)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        name = module.__name__
        if name in MOVED:
            sys.modules[name] = importlib.import_module(MOVED[name])


sys.meta_path.insert(0, _There())
_all = importlib.metadata.entry_points


def entry_points(**chosen):
    found = _all(**chosen)
    if isinstance(found, dict):  # of all groups, until Python 3.12
        found = [one for group in found.values() for one in group]
    return importlib.metadata.EntryPoints(one for one in found if one.module.split(".")[0] not in OURS)


importlib.metadata.entry_points = entry_points
"""


def linked(project: str, site: Path, root: Path) -> Tree:
    """A tree under ``root`` of what is installed in ``site``, without what an installer says about it."""
    for source in sorted(site.iterdir()):
        name = source.name.lower().replace("-", "_").lstrip(".")
        if name.startswith(tuple(one.replace("-", "_") for one in (project, *PROJECTS[project].distributions))):
            _link(source, root / source.name)
    for path in root.glob("vllm*.dist-info/METADATA"):
        # vLLM asks its version for the word; the kernels beside it are those of its CPU build.
        text = path.read_text()
        path.unlink()
        path.write_text(re.sub(r"^(Version: [\d.]+)$", r"\1+cpu", text, count=1, flags=re.MULTILINE))
    return Tree.open(PROJECTS[project], root)


def _link(source: Path, target: Path) -> None:
    if not source.is_dir():
        target.symlink_to(source)
        return
    target.mkdir(parents=True)
    for one in source.iterdir():
        if one.name not in ("INSTALLER", "RECORD"):
            _link(one, target / one.name)


def staged(tree: Tree) -> list[Change]:
    """Write every topic of the tree's project and release into it."""
    done = []
    for topic in TOPICS:
        if topic.project == tree.project and topic.window.contains(tree.version):
            found = changes(topic, tree)
            write(found)
            done += found
    return done


def run_tests(tree: Tree, *arguments: str, triton: Path | None = None) -> subprocess.CompletedProcess[str]:
    """pytest in a process that has the staged package and none of ours; ``triton``: a folder with Triton, which then
    interprets its kernels."""
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tree.root), *arguments)
    if triton is None:
        return run_python(tree, *command)
    there = os.pathsep.join((str(tree.root / "alone"), str(tree.root), str(triton)))
    return run_python(tree, *command, TRITON_INTERPRET="1", PYTHONPATH=there)


def run_python(tree: Tree, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python in a process that has the staged package and none of ours; variables: of its environment, besides."""
    if tree.project.name != "flashinfer":
        return _run(tree, "alone", _ALONE, *arguments, **variables)
    return _run(tree, "alone", _ALONE + _FLASHINFER, *arguments, FLASHINFER_WORKSPACE_BASE=str(tree.root), **variables)


def run_plugin_tests(tree: Tree, names: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    """A plugin's own tests, where its modules are those that these topics have moved."""
    topics = [topic for topic in TOPICS if topic.project == tree.project and topic.id in names]
    moved = {place.name: place.module for topic in topics for place in topic.places if place.module}
    plugins = sorted({name.split(".")[0] for name in moved})
    packages = {name: module for name, module in moved.items() if name not in plugins}
    start = _INTERPRETING + _STAGED.format(moved=packages, plugins=plugins, ours=OURS)
    return _run(tree, "renamed", start, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)


def _run(tree: Tree, name: str, start: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    folder = tree.root / name
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(start)
    mine = ("PYTEST", "DYNAMO_STRUCTURAL", "FLASHINFER_NVFP4", "VLLM_CPU_DSA")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(mine)},
        "PYTHONPATH": f"{folder}{os.pathsep}{tree.root}",
        "VLLM_PLUGINS": "",
        "PYTHONDONTWRITEBYTECODE": "1",
        **variables,
    }
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, cwd=tree.root, capture_output=True, text=True, timeout=1800, check=False
    )
