"""`glm53 models` and `glm53 chat` against a real Dynamo frontend whose worker answers what the prompt asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

from glm53.cli import app

if TYPE_CHECKING:
    from dynamo_deployment import Deployment

runner = CliRunner()
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def _script(text: str, **options: Any) -> str:
    return f"@@{json.dumps({'text': text, **options})}@@"


def _chat(deployment: Deployment, *arguments: str, **more: Any) -> Result:
    return runner.invoke(app, ["chat", *arguments, "--url", deployment.url], **more)


def test_models_lists_what_the_deployment_serves(scripted: Deployment) -> None:
    plain = runner.invoke(app, ["models", "--url", scripted.url])
    data = runner.invoke(app, ["models", "--url", f"{scripted.url}/v1/", "--json"])

    assert (plain.exit_code, plain.stdout) == (0, "tiny\n")
    assert [one["id"] for one in json.loads(data.stdout)] == ["tiny"]


def test_the_answer_goes_to_standard_output_and_the_reasoning_to_standard_error(scripted: Deployment) -> None:
    result = _chat(scripted, "tiny", _script("I weigh it.</think>It is <b>fine</b>.", step=3))

    assert result.exit_code == 0, result.output
    assert result.stdout == "It is <b>fine</b>.\n"
    assert result.stderr.strip() == "I weigh it."


def test_a_message_is_read_from_standard_input_and_the_system_prompt_precedes_it(scripted: Deployment) -> None:
    result = _chat(scripted, "tiny", "--system", "Be brief, say KIWI.", input=_script("Hm.</think>Done."))

    assert (result.exit_code, result.stdout) == (0, "Done.\n")
    request = [json.loads(line) for line in scripted.requests.read_text().splitlines() if "request" in line][-1]
    from tokenizers import Tokenizer

    prompt = Tokenizer.from_file(str(scripted.model / "tokenizer.json")).decode(
        request["request"]["token_ids"], skip_special_tokens=False
    )
    assert "<|system|>" in prompt
    assert prompt.index("Be brief, say KIWI.") < prompt.index("@@{")


def test_tool_calls_are_printed_and_are_data_with_json(scripted: Deployment, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([WEATHER]))
    said = _script("Look.</think><tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>")
    plain = _chat(scripted, "tiny", said, "--tools", str(tools))
    data = _chat(scripted, "tiny", said, "--tools", str(tools), "--json")

    assert (plain.exit_code, plain.stdout) == (0, 'weather({"city":"Oslo"})\n')
    answer = json.loads(data.stdout)
    assert answer["tool_calls"] == [{"name": "weather", "arguments": '{"city":"Oslo"}'}]
    assert (answer["reasoning"], answer["content"], answer["finish_reason"]) == ("Look.", "", "tool_calls")
    assert answer["usage"]["completion_tokens"] > 0
    assert answer["ttft_s"] > 0


def test_an_unknown_model_is_named_with_the_way_to_the_known_ones(scripted: Deployment) -> None:
    result = _chat(scripted, "grand", "hello")

    assert result.exit_code == 2
    assert "'grand'" in result.stderr
    assert "glm53 models" in result.stderr


def test_a_refused_request_is_a_usage_error_with_the_servers_reason(scripted: Deployment) -> None:
    result = _chat(scripted, "tiny", "hello", "--temperature", "7")

    assert result.exit_code == 2
    assert "HTTP 400" in result.stderr
    assert "emperature" in result.stderr


def test_a_worker_that_breaks_in_the_middle_is_no_whole_answer(scripted: Deployment) -> None:
    result = _chat(scripted, "tiny", _script("Hm.</think>One two three four five.", step=4, **{"raise": 3}))

    assert result.exit_code == 1
    assert "not whole" in result.stderr


@pytest.mark.parametrize("command", [["models"], ["chat", "tiny", "hello"]])
def test_where_nothing_listens_the_address_and_the_next_step_are_named(command: list[str]) -> None:
    from glm53.local.processes import free_ports

    [port] = free_ports(1, "127.0.0.1")
    result = runner.invoke(app, [*command, "--url", f"http://127.0.0.1:{port}"])

    assert result.exit_code == 1
    assert f"127.0.0.1:{port}/v1 does not answer" in result.stderr
    assert "glm53 status" in result.stderr
