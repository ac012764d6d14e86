"""Contract pinned: the torchvision of the package index does not import by itself beside the CPU torch."""

import subprocess
import sys
import sysconfig
from importlib import metadata

import pytest

# What dynamo.vllm imports of it, through transformers.
WANTED = "import transformers.models.qwen2_vl.image_processing_qwen2_vl, torchvision.transforms.v2"
PACKAGES = sysconfig.get_paths()["purelib"]


@pytest.fixture(autouse=True, scope="module")
def _both_installed() -> None:
    for name in ("torch", "torchvision", "transformers"):
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            pytest.skip(f"{name} is not installed here; run `make test`, whose environment holds it")


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True)


def _without_hook(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` with the same packages but without .pth files, so without the hook."""
    return _python("-I", "-S", "-c", f"import sys; sys.path.insert(0, {PACKAGES!r})\n{code}")


def test_without_the_hook_the_import_fails_as_known() -> None:
    done = _without_hook("import torchvision")

    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("RuntimeError: operator torchvision::nms does not exist")


def test_with_the_hook_what_dynamo_needs_imports() -> None:
    done = _python("-c", f"{WANTED}\nprint('imported')")

    assert done.returncode == 0, done.stderr
    assert done.stdout == "imported\n"


def test_a_fresh_interpreter_does_not_import_torch() -> None:
    done = _python("-c", "import sys; print('cpu_torchvision' in sys.modules, 'torch' in sys.modules)")

    assert done.stdout == "True False\n"


def test_operators_of_a_native_library_that_loads_are_not_defined_again() -> None:
    code = (
        "import torch\n"
        "real = torch.library.Library('torchvision', 'DEF')\n"
        "for name in ('nms', 'qnms'):\n"
        "    real.define(name + '(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')\n"
        "import torchvision, cpu_torchvision\n"
        "print(cpu_torchvision.TorchvisionSchemas.library)"
    )

    done = _python("-c", code)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "None\n"
