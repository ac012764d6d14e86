"""The final check finds wrong versions, lost files, unmet requirements and failing imports."""

from importlib import metadata
from pathlib import Path

import verify
from lines import Accepted

NO_TRITON = Accepted("xgrammar", "triton", "no CPU backend")


def test_a_pin_that_is_not_what_is_installed_is_a_problem() -> None:
    problems = verify.pin_problems({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "1", "d": "4"})

    assert problems == ["b==2 is pinned, and 1 is installed", "c==3 is pinned, and none is installed"]


def test_requirements_of_other_platforms_and_of_extras_do_not_count() -> None:
    found = verify.unmet(
        {"a": "1"},
        {"a": ["b; sys_platform == 'win32'", "c; extra == 'more'", "d>=1; python_version < '3'"]},
    )

    assert found == {}


def test_a_missing_and_a_misfitting_requirement_are_found() -> None:
    found = verify.unmet(
        {"xgrammar": "0.2.8", "numpy": "1.0", "torch": "2.13.0+cpu", "typing-extensions": "5.0rc1"},
        {"xgrammar": ["triton", "numpy>=2", "torch==2.13.0", "typing_extensions>=4"]},
    )

    assert found == {
        ("xgrammar", "triton"): "xgrammar requires triton, which is not installed",
        ("xgrammar", "numpy"): "xgrammar requires numpy>=2, and 1.0 is installed",
    }


def test_only_accepted_inconsistencies_pass() -> None:
    found = {("xgrammar", "triton"): "t", ("vllm", "numpy"): "n"}

    assert verify.consistency_problems(found, [NO_TRITON]) == ["n"]
    assert verify.consistency_problems(found, []) == ["t", "n"]


def test_an_accepted_inconsistency_that_has_gone_must_be_deleted() -> None:
    (problem,) = verify.consistency_problems({}, [NO_TRITON])

    assert "xgrammar" in problem
    assert "delete the entry" in problem


def test_lost_files_are_found_and_lost_bytecode_is_not(tmp_path: Path) -> None:
    info = tmp_path / "thing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    (info / "RECORD").write_text("thing/a.py,,\nthing/b.py,,\nthing/__pycache__/a.cpython-311.pyc,,\n")
    (tmp_path / "thing").mkdir()
    (tmp_path / "thing" / "a.py").write_text("")
    distribution = metadata.Distribution.at(info)

    assert verify.file_problems([distribution]) == ["thing 1.0 lacks 1 files, as thing/b.py"]
    (tmp_path / "thing" / "b.py").write_text("")
    assert verify.file_problems([distribution]) == []


def test_a_failing_import_is_told_by_its_error() -> None:
    assert verify.import_problems(["json", "no_such_module_at_all"]) == [
        "import no_such_module_at_all failed: ModuleNotFoundError: No module named 'no_such_module_at_all'"
    ]
