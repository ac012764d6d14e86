"""The chat template: one conversation, the prompt it must become, and three programs that must agree on it.

transformers renders templates with Jinja, Dynamo's frontend with a renderer of its own in Rust, and vLLM
parses the calls that the format writes.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glm53.local.processes import free_ports
from glm53.model import make

FIX = "needs the pinned stock environment: make test"

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "write",
            "description": "Write <b>a</b> file & 'keep' é",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "lines": {"type": "array"}},
                "required": ["path"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "now",
            "description": "The time",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]

#: Strings that look like JSON, markup or quotes; other values of every JSON type.
ARGUMENTS: dict[str, Any] = {
    "path": "a<b & 'c'.txt",
    "number": "3",
    "text": '{"not": "parsed"}\n  two lines\n',
    "empty": "",
    "count": 3,
    "ratio": 1.5,
    "none": None,
    "flag": True,
    "lines": ["é<", {"k": 1}],
}

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hé <b>"},
    {
        "role": "assistant",
        "content": "Writing.",
        "reasoning_content": "A file,\nthen.",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "write", "arguments": ARGUMENTS}},
            {"id": "2", "type": "function", "function": {"name": "now", "arguments": {}}},
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "done\n"},
    {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "12:00"}]},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "text", "text": "now?"}]},
]

HEAD = "[gMASK]<sop><|system|>Reasoning Effort: Max"

TOOL_PROMPT = (
    "<|system|>\n# Tools\n\nThese functions can be called. Each line is one signature in JSON.\n\n<tools>\n"
    '{"name": "write", "description": "Write <b>a</b> file & \'keep\' é", "parameters": {"type": "object", '
    '"properties": {"path": {"type": "string"}, "lines": {"type": "array"}}, "required": ["path"]}}\n'
    '{"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}\n'
    "</tools>\n\nTo call one, write its name and arguments like this:\n"
    "<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>\n"
    "Write a string value as it is and any other value as JSON."
)

CALLS = (
    "<tool_call>write<arg_key>path</arg_key><arg_value>a<b & 'c'.txt</arg_value>"
    "<arg_key>number</arg_key><arg_value>3</arg_value>"
    '<arg_key>text</arg_key><arg_value>{"not": "parsed"}\n  two lines\n</arg_value>'
    "<arg_key>empty</arg_key><arg_value></arg_value>"
    "<arg_key>count</arg_key><arg_value>3</arg_value>"
    "<arg_key>ratio</arg_key><arg_value>1.5</arg_value>"
    "<arg_key>none</arg_key><arg_value>null</arg_value>"
    "<arg_key>flag</arg_key><arg_value>true</arg_value>"
    '<arg_key>lines</arg_key><arg_value>["é<", {"k": 1}]</arg_value></tool_call>'
    "<tool_call>now</tool_call>"
)

REASONING = "A file,\nthen."
TURNS = (
    "<|system|>Be brief.<|user|>Hé <b><|assistant|><think>{reasoning}</think>Writing."
    + CALLS.replace("{", "{{").replace("}", "}}")
    + "<|observation|><tool_response>done\n</tool_response><tool_response>12:00</tool_response>"
    "<|assistant|><think></think>Done.<|user|>And\nnow?"
)

#: (name, request fields beside the messages, template variables, prompt)
CASES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("plain", {}, {}, HEAD + TURNS.format(reasoning=REASONING) + "<|assistant|><think>"),
    (
        "tools",
        {"tools": TOOLS},
        {},
        HEAD + TOOL_PROMPT + TURNS.format(reasoning=REASONING) + "<|assistant|><think>",
    ),
    (
        "no thinking",
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"enable_thinking": False},
        "[gMASK]<sop>" + TURNS.format(reasoning=REASONING) + "<|assistant|><think></think>",
    ),
    (
        "earlier reasoning cleared",
        {"chat_template_kwargs": {"clear_thinking": True}},
        {"clear_thinking": True},
        HEAD + TURNS.format(reasoning="") + "<|assistant|><think>",
    ),
    (
        "low effort",
        {"chat_template_kwargs": {"reasoning_effort": "low"}},
        {"reasoning_effort": "low"},
        HEAD.replace("Max", "Low") + TURNS.format(reasoning=REASONING) + "<|assistant|><think>",
    ),
    (
        "unknown effort",
        {"chat_template_kwargs": {"reasoning_effort": "medium"}},
        {"reasoning_effort": "medium"},
        HEAD + TURNS.format(reasoning=REASONING) + "<|assistant|><think>",
    ),
]


def openai_messages() -> list[dict[str, Any]]:
    """The conversation as an OpenAI client sends it: arguments are JSON text."""
    messages = copy.deepcopy(MESSAGES)
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return messages


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "model"
    make(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Any:
    return pytest.importorskip("transformers", reason=FIX).AutoTokenizer.from_pretrained(model)


@pytest.mark.parametrize(("name", "request_fields", "variables", "prompt"), CASES, ids=[c[0] for c in CASES])
def test_transformers_renders_the_conversation(
    tokenizer: Any, name: str, request_fields: dict[str, Any], variables: dict[str, Any], prompt: str
) -> None:
    text = tokenizer.apply_chat_template(
        MESSAGES, tools=request_fields.get("tools"), add_generation_prompt=True, tokenize=False, **variables
    )

    assert text == prompt
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_without_a_generation_prompt_the_conversation_ends_with_its_last_message(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)

    assert text == "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>x"


def test_a_following_turn_extends_the_prompt_and_its_answer(tokenizer: Any) -> None:
    """Earlier tokens never change when a client sends reasoning and answer back: the cache stays valid."""
    first = [{"role": "user", "content": "x"}]
    answer = {"role": "assistant", "reasoning_content": " why\n", "content": "\n so "}
    before = tokenizer.apply_chat_template(first, add_generation_prompt=True, tokenize=False)
    after = tokenizer.apply_chat_template(
        [*first, answer, {"role": "user", "content": "y"}], add_generation_prompt=True, tokenize=False
    )

    assert after == before + " why\n</think>\n so <|user|>y<|assistant|><think>"


def test_vllm_parses_rendered_calls_back_into_their_arguments(tokenizer: Any) -> None:
    parsers = pytest.importorskip("vllm.tool_parsers", reason=FIX)
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    names = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array"}
    properties = {key: {"type": names.get(type(value), "null")} for key, value in ARGUMENTS.items()}
    tools = json.loads(json.dumps(TOOLS))
    tools[0]["function"]["parameters"]["properties"] = properties
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "x"}], model="m", tools=tools)
    parser = parsers.ToolParserManager.get_tool_parser("glm47")(tokenizer, request.tools)
    parsed = parser.extract_tool_calls("</think>Writing." + CALLS, request)

    assert [(call.function.name, json.loads(call.function.arguments)) for call in parsed.tool_calls] == [
        ("write", ARGUMENTS),
        ("now", {}),
    ]


@pytest.fixture(scope="module")
def frontend(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Address of a frontend that serves the model, and the file with the prompts it sent to the worker."""
    pytest.importorskip("dynamo._core", reason="needs ai-dynamo, which only the 0.31.0 environment has")
    base = tmp_path_factory.mktemp("dynamo")
    [port] = free_ports(1, "127.0.0.1")
    environment = {
        **os.environ,
        "DYN_FILE_KV": str(base / "discovery"),
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
        "DYN_SELF_HOST_METADATA": "0",
        "HF_HUB_OFFLINE": "1",
    }
    plane = ["--discovery-backend", "file", "--request-plane", "tcp"]
    address = ["--http-host", "127.0.0.1", "--http-port", str(port)]
    recorder = str(Path(__file__).with_name("prompt_recorder.py"))
    commands = [
        ["-m", "dynamo.frontend", *address, *plane],
        [recorder, str(model), str(base / "prompts")],
    ]
    with (base / "log").open("w") as log:
        processes = [
            subprocess.Popen([sys.executable, *command], env=environment, stdout=log, stderr=log)
            for command in commands
        ]
    url = f"http://127.0.0.1:{port}/v1"
    try:
        _wait_for_model(url, processes, base / "log")
        yield url, base / "prompts"
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for_model(url: str, processes: list[subprocess.Popen[bytes]], log: Path) -> None:
    httpx = pytest.importorskip("httpx", reason=FIX)
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and all(process.poll() is None for process in processes):
        try:
            if httpx.get(f"{url}/models").json()["data"]:
                return
        except (httpx.HTTPError, ValueError):
            pass
        time.sleep(0.2)
    pytest.fail(f"Dynamo's frontend serves no model:\n{log.read_text()[-4000:]}")


@pytest.mark.parametrize(("name", "request_fields", "variables", "prompt"), CASES, ids=[c[0] for c in CASES])
def test_dynamo_renders_the_conversation(
    frontend: tuple[str, Path],
    tokenizer: Any,
    name: str,
    request_fields: dict[str, Any],
    variables: dict[str, Any],
    prompt: str,
) -> None:
    httpx = pytest.importorskip("httpx", reason=FIX)
    url, prompts = frontend
    body = {"model": "glm", "messages": openai_messages(), "max_tokens": 1, **request_fields}
    response = httpx.post(f"{url}/chat/completions", json=body, timeout=120)

    assert response.status_code == 200, response.text
    ids = json.loads(prompts.read_text().splitlines()[-1])
    assert tokenizer.decode(ids) == prompt
    assert ids == tokenizer.encode(prompt)
