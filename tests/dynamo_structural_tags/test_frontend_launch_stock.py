"""When the frontend is ours, when it is Dynamo's own, and when it does not start at all."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dynamo_structural_tags.frontend import launch
from dynamo_structural_tags.frontend.model import ServedModel
from dynamo_structural_tags.frontend.preprocessed import HIDDEN
from dynamo_structural_tags.patches import REGISTER
from dynamo_structural_tags.settings import PREFIX, Mode
from stockpatch.versions import NotInstalled, Window

if importlib.util.find_spec("dynamo") is None or importlib.util.find_spec("dynamo.frontend") is None:
    pytest.skip("needs Dynamo: run `make test`, which installs it into .venv", allow_module_level=True)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `main` did, in order, with nothing started and nothing replaced."""
    import dynamo.frontend.main as stock

    done: list[str] = []
    monkeypatch.setattr(stock, "main", lambda: done.append("run"))
    monkeypatch.setattr(sys, "argv", ["frontend"])
    monkeypatch.setattr(REGISTER, "apply", lambda ids: done.append(str(ids)))
    monkeypatch.delenv(PREFIX, raising=False)
    monkeypatch.delenv("DYN_PARSER_VERSION", raising=False)
    monkeypatch.delenv("DYN_HTTP_PRE_COMMIT_ERROR_PEEK_MS", raising=False)
    return done


def test_the_command_alone_switches_the_engine(ran: list[str]) -> None:
    launch.main()

    assert ran == ["['frontend-chat-engine']", "run"]


@pytest.mark.parametrize("mode", ["off", "report"])
def test_off_and_report_are_the_stock_frontend(
    ran: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    monkeypatch.setenv(PREFIX, mode)
    with caplog.at_level(logging.WARNING):
        launch.main()

    assert ran == ["run"]
    assert f"{PREFIX}={mode}: chat completions are served by Dynamo's own engine" in caplog.text


def test_an_untested_dynamo_gets_the_stock_frontend_and_a_warning(
    ran: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(launch, "DYNAMO", Window(("ai-dynamo",), ">=9,<10", tested=("9.0.0",)))
    with caplog.at_level(logging.WARNING):
        launch.main()

    assert ran == ["run"]
    assert launch.settings().mode is Mode.REPORT
    assert "ai-dynamo" in caplog.text
    assert ">=9,<10" in caplog.text.replace(" ", "")


def test_without_dynamo_or_xgrammar_it_does_not_start(ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "xgrammar" else find(name))
    with pytest.raises(ModuleNotFoundError, match=r"xgrammar.*pip install xgrammar.*=off"):
        launch.main()
    monkeypatch.setattr(launch, "DYNAMO", Window(("no-such-dynamo",), ">=1,<2", tested=("1.0.0",)))
    with pytest.raises(NotInstalled):
        launch.main()

    assert ran == []


def test_a_model_without_glms_markers_is_refused_by_name(served_model: Path, tmp_path: Path) -> None:
    text = (served_model / "tokenizer.json").read_text().replace("<arg_key>", "<other>")
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match=r"model 'm': .*lacks <arg_key>.*python -m dynamo\.frontend"):
        ServedModel.load({"display_name": "m"}, tmp_path)


def test_a_model_without_a_chat_template_is_refused(served_model: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((served_model / "tokenizer.json").read_bytes())
    with pytest.raises(ValueError, match=r"model 'm' has no chat template.*--custom-jinja-template"):
        ServedModel.load({"display_name": "m"}, tmp_path)


def test_a_template_in_the_tokenizers_configuration_is_found(served_model: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "generation_config.json"):
        (tmp_path / name).write_bytes((served_model / name).read_bytes())
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    model = ServedModel.load({"display_name": "m"}, tmp_path)

    assert model.prompt({"messages": []}, {})[0] == "D"
    assert model.prompt({"messages": [], "tools": [{"type": "function", "function": {"name": "f"}}]}, {})[0] == "T"
    assert len(model.eos) == 3


def test_its_help_is_that_of_the_stock_frontend() -> None:
    shown = [
        subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True).stdout
        for module in ("dynamo_structural_tags.frontend", "dynamo.frontend")
    ]

    assert shown[0] == shown[1]
    assert "--router-mode" in shown[0]


def test_the_page_names_what_dynamo_hides_from_python_engines() -> None:
    page = (Path(__file__).parents[2] / "docs" / "structural_tags.md").read_text()

    assert [field for field in HIDDEN if f"`{field}`" not in page] == []


def test_the_patched_name_takes_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """EntrypointArgs is a class of the Rust module: it accepts the factory, whatever its stub says."""
    from dynamo.llm import EngineType, EntrypointArgs

    from dynamo_structural_tags.frontend.hook import CHAT_ENGINE

    seen: dict[str, Any] = {}

    def original(engine_type: Any, **given: Any) -> Any:
        seen.update(given)
        return EntrypointArgs(engine_type, **given)

    async def make(**given: Any) -> Any:
        return CHAT_ENGINE.replace(original)(EngineType.Dynamic, **given)

    assert isinstance(asyncio.run(make(http_port=1)), EntrypointArgs)
    assert seen == {"http_port": 1, "chat_engine_factory": launch.chat_engine}
    with pytest.raises(ValueError, match=r"chat_engine_factory=_other: .*--dyn-chat-processor.*Leave both out"):
        asyncio.run(make(chat_engine_factory=_other))


async def _other(*_: Any) -> None:
    """Another engine's factory."""


@pytest.mark.parametrize(("name", "value"), [(PREFIX, "nonsense"), ("DYNAMO_STRUCTURAL_TAG", "enforce")])
def test_a_variable_that_is_not_usable_ends_the_command_with_one_line(
    ran: list[str], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=rf"^{name}='{value}' is .*Allowed"):
        launch.main()

    assert ran == []
