"""Which package may import which, checked in a fresh interpreter per package (docs/rooms.md)."""

from __future__ import annotations

import ast
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

STOCK = ("vllm", "torch", "dynamo", "mooncake", "nixl", "transformers", "flashinfer")
PLUGINS = ("dynamo_structural_tags", "flashinfer_nvfp4", "mooncake_tier", "rl_capture", "vllm_blhnc", "vllm_cpu_dsa")
PATCHING = ("dynamo_structural_tags", "flashinfer_nvfp4", "mooncake_tier", "rl_capture", "vllm_blhnc", "vllm_cpu_dsa")


def _imported(code: str) -> set[str]:
    """All modules that are loaded after running `code` in an interpreter of its own."""
    probe = f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    process = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(json.loads(process.stdout.splitlines()[-1]))


def _tops(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.mark.parametrize("package", [*PLUGINS, "stockpatch", "glm53"])
def test_importing_a_package_loads_nothing_but_the_standard_library_and_itself(package: str) -> None:
    extra = _imported(f"import {package}") - _imported("pass")
    allowed = {*sys.stdlib_module_names, package, *(("packaging",) if package == "stockpatch" else ())}

    assert {name for name in _tops(extra) if not name.startswith("__editable__")} <= allowed


@pytest.mark.parametrize("plugin", PATCHING)
def test_a_plugins_patches_can_be_read_without_stock(plugin: str) -> None:
    tops = _tops(_imported(f"import {plugin}.patches"))

    assert not tops & {*STOCK, *(set(PLUGINS) - {plugin}), "glm53"}


@pytest.mark.parametrize("plugin", ["flashinfer_nvfp4", "mooncake_tier", "vllm_blhnc"])
def test_plans_are_pure_arithmetic(plugin: str) -> None:
    extra = _imported(f"import {plugin}.plan") - _imported("pass")

    assert {name for name in _tops(extra) if not name.startswith("__editable__")} <= {
        *sys.stdlib_module_names,
        plugin,
    }


def test_the_recipes_never_import_stock_and_only_plans_of_plugins() -> None:
    import glm53

    names = [module.name for module in pkgutil.walk_packages(glm53.__path__, "glm53.")]
    names = [name for name in names if not name.endswith("__main__")]
    imported = _imported("\n".join(f"import {name}" for name in names))

    assert len(names) > 10
    assert not _tops(imported) & set(STOCK)
    plugin_modules = {name for name in imported if name.partition(".")[0] in PLUGINS and "." in name}
    assert {name.split(".")[1] for name in plugin_modules} <= {"plan"}


def test_stockpatch_knows_no_plugin() -> None:
    tops = _tops(_imported("import stockpatch.versions, stockpatch.register, stockpatch.docs"))

    assert not tops & {*PLUGINS, *STOCK, "glm53"}


def test_only_the_kernels_import_triton() -> None:
    """It takes a second, and vLLM's processes must not load it for anything else."""
    root = Path(__file__).parents[2]
    found = {
        path.relative_to(root).parent.as_posix()
        for room in ("plugins", "recipes")
        for path in (root / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if "triton" in {name.partition(".")[0] for name in _names(node)}
    }

    assert found == {"plugins/flashinfer_nvfp4/kernels"}


def _names(node: ast.AST) -> list[str]:
    """The modules that an import statement names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
