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

#: Run by Python before anything else in the staged tests' process: our packages cannot be imported there.
_ALONE = f"""
import sys


class _NotHere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {OURS!r}:
            raise ModuleNotFoundError(f"{{name}} is not part of the staged tree", name=name)


sys.meta_path.insert(0, _NotHere())
"""


#: Stands for what FlashInfer's packages import, which needs a GPU's libraries: the module under test is its own.
_BARE_FLASHINFER = """
import types

for name in ("flashinfer", "flashinfer.experimental", "flashinfer.jit", "flashinfer.jit.env", "flashinfer.jit.core"):
    module = types.ModuleType(name)
    module.__path__ = [{root!r} + "/" + name.replace(".", "/")] if "jit" not in name else []
    module.JitSpec = module.gen_jit_spec = module.sm100a_nvcc_flags = module.sm103a_nvcc_flags = None
    sys.modules[name] = module
sys.modules["flashinfer.jit"].env = sys.modules["flashinfer.jit.env"]
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
    """Write every topic of the tree's project into it."""
    done = []
    for topic in TOPICS:
        if topic.project == tree.project:
            found = changes(topic, tree)
            write(found)
            done += found
    return done


def run_tests(tree: Tree, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest in a process that has the staged package and none of ours."""
    return run_python(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tree.root), *arguments)


def run_python(tree: Tree, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in a process that has the staged package and none of ours."""
    alone = tree.root / "alone"
    alone.mkdir(exist_ok=True)
    bare = _BARE_FLASHINFER.format(root=str(tree.root)) if tree.project.name == "flashinfer" else ""
    (alone / "sitecustomize.py").write_text(_ALONE + bare)
    mine = ("PYTEST", "DYNAMO_STRUCTURAL", "FLASHINFER_NVFP4", "VLLM_CPU_DSA")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(mine)},
        "PYTHONPATH": f"{alone}{os.pathsep}{tree.root}",
        "VLLM_PLUGINS": "",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, cwd=tree.root, capture_output=True, text=True, timeout=600, check=False
    )
