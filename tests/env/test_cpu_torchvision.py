"""The torchvision hook costs nothing until torchvision is wanted."""

import subprocess
import sys
from pathlib import Path

HOOK = Path(__file__).resolve().parents[2] / "env" / "cpu_torchvision.py"


def test_importing_the_hook_imports_nothing_else() -> None:
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(HOOK.parent)!r})\n"
        "before = set(sys.modules)\n"
        "import cpu_torchvision\n"
        "print(sorted(set(sys.modules) - before - {'cpu_torchvision'}))"
    )

    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)

    assert done.stdout == "['__future__']\n", done.stderr


def test_the_hook_finds_no_module_itself() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(HOOK.parent)!r})\n"
        "import cpu_torchvision\n"
        "hook = sys.meta_path[0]\n"
        "print(hook.find_spec('json'), hook.find_spec('torchvision'), hook.find_spec('torchvision.ops'))"
    )

    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)

    assert done.stdout == "None None None\n", done.stderr
