"""`pip install .` into an environment of stock vLLM or Dynamo changes none of its versions.

A real resolver answers it for vLLM's three lines on the metadata of the package index; ai-dynamo cannot be
resolved there (it asks for a placeholder that refuses to install), so its own requirements are read instead.
"""

import functools
import json
import re
import subprocess
import sys
import tomllib
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
NETWORK_ERRORS = re.compile(r"error sending request|dns error|Failed to fetch|Connection refused|timed out", re.I)
LINES = ("0.31.0", "0.32.0", "0.33.0")
# The project as it stands, and with each extra that a user may install into a serving image.
WANTED: dict[str, list[str]] = {"core": [], "recipes": ["--extra", "recipes"], "demo": ["--extra", "demo"]}


def _compile(vllm: str, *project: str) -> subprocess.CompletedProcess[str]:
    """Resolve stock vLLM anew, with a project if arguments are given."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "-", *project, "--python-version", "3.12"]
    command += ["--python-platform", "x86_64-manylinux_2_28", "--no-python-downloads", "--no-header"]
    command += ["--no-annotate", "--quiet", "--cache-dir", str(REPOSITORY / ".cache" / "uv")]
    return subprocess.run(command, input=f"vllm=={vllm}\n", capture_output=True, text=True, cwd=REPOSITORY)


@functools.cache
def _all_resolutions() -> dict[tuple[str, ...], Future[subprocess.CompletedProcess[str]]]:
    """Start every resolution that the tests ask for; each mostly waits for the package index."""
    asked: list[tuple[str, ...]] = [(vllm,) for vllm in LINES]
    asked += [(vllm, "pyproject.toml", *arguments) for vllm in LINES for arguments in WANTED.values()]
    with ThreadPoolExecutor(max_workers=6) as pool:
        return {arguments: pool.submit(_compile, *arguments) for arguments in asked}


def _resolved(*arguments: str) -> dict[str, str]:
    """Return name -> version of the resolution with these arguments."""
    ready = _all_resolutions().get(arguments)
    done = ready.result() if ready else _compile(*arguments)
    if done.returncode and NETWORK_ERRORS.search(done.stderr):
        pytest.skip(f"the package index does not answer; run this with network access: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    pairs = [line.partition(";")[0].strip().partition("==") for line in done.stdout.splitlines()]
    return {canonicalize_name(name): version for name, equals, version in pairs if equals}


@pytest.fixture(scope="module", autouse=True)
def _uv_is_here() -> None:
    if subprocess.run([sys.executable, "-m", "uv", "--version"], capture_output=True).returncode:
        pytest.skip("uv is not installed here; run `make test`, whose environment holds it")


@pytest.mark.parametrize("extra", WANTED)
@pytest.mark.parametrize("vllm", LINES)
def test_adding_the_project_to_stock_vllm_moves_no_version(vllm: str, extra: str) -> None:
    alone = _resolved(vllm)
    together = _resolved(vllm, "pyproject.toml", *WANTED[extra])

    assert alone["vllm"] == vllm
    assert len(alone) > 100
    assert {name: together.get(name) for name in alone} == alone


def test_a_project_with_an_upper_bound_would_be_noticed(tmp_path: Path) -> None:
    bounded = tmp_path / "pyproject.toml"
    bounded.write_text('[project]\nname = "bounded"\nversion = "1"\ndependencies = ["openai<3"]\n')

    alone = _resolved("0.31.0")
    together = _resolved("0.31.0", str(bounded))

    assert int(alone["openai"].partition(".")[0]) >= 3
    assert together["openai"] != alone["openai"]


@pytest.mark.parametrize("extra", WANTED)
def test_pip_would_install_nothing_else_into_this_environment(extra: str) -> None:
    target = "." if extra == "core" else f".[{extra}]"
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--no-index", "--report", "-", target], capture_output=True, text=True, cwd=REPOSITORY
    )

    assert done.returncode == 0, done.stderr
    planned = [each["metadata"]["name"] for each in json.loads(done.stdout)["install"]]
    assert planned == ["glm53-blackwell"]


@pytest.mark.parametrize("distribution", ["ai-dynamo", "vllm", "nixl", "xgrammar"])
def test_every_version_that_a_stock_distribution_allows_satisfies_the_project(distribution: str) -> None:
    """Our floor lies below theirs, so whatever they settle on stays."""
    try:
        theirs = [Requirement(text) for text in metadata.requires(distribution) or ()]
    except metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed here; run `make test`, whose environment holds it")
    texts = PROJECT["dependencies"] + [
        each for extra in WANTED if extra != "core" for each in PROJECT["optional-dependencies"][extra]
    ]
    ours = {canonicalize_name(each.name): each for each in map(Requirement, texts)}

    lowest = [
        (each.name, bound.version)
        for each in theirs
        for bound in each.specifier
        if canonicalize_name(each.name) in ours and bound.operator in ("==", ">=", "~=")
    ]
    refused = [
        (name, version)
        for name, version in lowest
        if not ours[canonicalize_name(name)].specifier.contains(version, prereleases=True)
    ]
    assert refused == []
