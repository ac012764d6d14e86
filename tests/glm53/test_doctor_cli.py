"""``glm53 doctor`` as a command: exit codes, data, and commands that are printed and never run."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_site import Site, serving_host, serving_site
from recipe_files import RECIPES
from typer.testing import CliRunner

from glm53.cli import app
from glm53.doctor import command
from glm53.doctor.finding import Diagnosis, script
from glm53.doctor.inventory import Inventory
from glm53.doctor.variables import OTHERS, VARIABLES

runner = CliRunner()
B200 = next(path for path in RECIPES if path.stem == "glm53-b200")
UPSTREAM = ("vllm", "torch", "dynamo", "nixl", "mooncake", "flashinfer", "transformers")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The command sees this folder and a stand-in for a B200 node, instead of the machine that runs the test."""
    site = serving_site(tmp_path / "site packages")
    read = Inventory.read
    monkeypatch.setattr(Inventory, "read", classmethod(lambda cls: read([str(site.folder)])))
    monkeypatch.setattr(command, "look", serving_host)
    for name in [*VARIABLES, *OTHERS]:
        monkeypatch.delenv(name, raising=False)
    return site


def _run(*options: str) -> tuple[int, str]:
    result = runner.invoke(app, ["doctor", *options])
    return result.exit_code, result.stdout + result.stderr


def test_a_right_host_is_zero_and_every_plugin_is_told(site: Site) -> None:
    code, text = _run("--recipe", str(B200), "--role", "prefill")

    assert code == 0, text
    assert "line: vLLM 0.31.0, whole stack" in text
    assert "nothing is wrong" in text
    assert "vllm_blhnc: on" in text


def test_notes_alone_are_zero(site: Site) -> None:
    site.add("nixl-cu12", "1.4.1")
    code, text = _run()

    assert code == 0
    assert "note: nixl: " in text
    assert "nothing is wrong (1 notes)" in text


def test_a_finding_is_one_and_data_has_code_values_and_commands(site: Site) -> None:
    site.add("xgrammar", "0.2.8")
    code, text = _run("--json")
    data = json.loads(text)

    assert code == 1
    assert (data["kind"], data["schema"], data["line"]) == ("glm53-doctor", 1, "0.31.0")
    assert data["versions"]["xgrammar"] == "0.2.8"
    (finding,) = data["findings"]
    assert finding.keys() == {"code", "field", "message", "fix", "commands", "level"}
    assert finding["code"] == "pin-conflict"


def test_commands_are_printed_as_shell_and_not_run(site: Site) -> None:
    place = site.folder / "vllm-0.31.0.dist-info"
    (place / "METADATA").write_text("Name: vllm\nVersion: x\n")
    code, text = _run("--fix")

    assert code == 1
    removal = next(line for line in text.splitlines() if line.startswith("rm "))
    assert shlex.split(removal) == ["rm", "-r", str(place)]
    assert place.is_dir()
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_nothing_in_a_command_or_comment_can_break_out_of_its_place() -> None:
    hostile = "x; touch /hacked\ntouch /hacked `id` $(id)"
    finding = Diagnosis("plugin-unknown", hostile, "m", "f", (("export", f"VLLM_PLUGINS={hostile}"),))
    text = script([finding])
    comment, _, rest = text.partition("\n")

    assert comment.startswith("# ")
    assert shlex.split(rest) == ["export", f"VLLM_PLUGINS={hostile}"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--role", "decode"], "needs a recipe"),
        (["--recipe", str(B200)], "prefill, decode, frontend"),
        (["--recipe", str(B200), "--role", "aggregated"], "prefill, decode, frontend"),
        (["--recipe", "absent.yaml", "--role", "decode"], "No such file"),
        (["--pair", "a", "b", "--role", "decode"], "Leave --recipe and --role out"),
    ],
)
def test_wrong_usage_and_what_cannot_be_read_is_two(options: list[str], why: str, site: Site) -> None:
    code, text = _run(*options)

    assert code == 2
    assert why in text


def test_help_teaches_exit_codes_and_examples() -> None:
    code, text = _run("--help")

    assert code == 0
    for part in ("Exit code 0", "--recipe recipes/glm53-b200.yaml --role prefill", "--pair p.json d.json", "--fix"):
        assert part in " ".join(text.split())


def test_the_command_imports_nothing_upstream(tmp_path: Path) -> None:
    """Neither to read metadata, nor to list the patches of the plugins."""
    probe = (
        "import json, sys\nfrom glm53.cli import app\n"
        "try: app(['doctor', '--json'])\nexcept SystemExit: pass\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=tmp_path)
    report: dict[str, Any] = json.loads(done.stdout)
    modules = {name.partition(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}

    assert report["kind"] == "glm53-doctor"
    assert modules & set(UPSTREAM) == set()
