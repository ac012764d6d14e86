"""A plugin's register is found by convention, and what is in the way is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from stockpatch.find import find_register


def test_the_register_of_a_plugin_is_found_by_its_name() -> None:
    register = find_register("vllm_blhnc")

    assert register.plugin == "vllm_blhnc"
    assert "nixl-progress-delay" in {patch.id for patch in register.patches}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "ModuleNotFoundError"),
        ("REGISTER = 1", "REGISTER=1"),
        ("", "REGISTER=None"),
        ("import no_such_module_here", "no_such_module_here"),
        ("def", "SyntaxError"),
    ],
)
def test_what_is_no_register_is_told(
    content: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = tmp_path.name
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    if content is not None:
        (tmp_path / name / "patches.py").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(LookupError, match=why):
        find_register(name)
