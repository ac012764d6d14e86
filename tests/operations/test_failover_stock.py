"""Two real Dynamo deployments behind a real Envoy: one is killed under load, sessions stay, a member is drained."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from edge_process import RunningEdge, needs_envoy, running_edge

if TYPE_CHECKING:
    from dynamo_deployment import Deployment

pytestmark = needs_envoy
SESSION = "x-dynamo-session-id"


@dataclass
class Outcome:
    """What a client saw of one request. begun: a part of a streamed answer had come. tail: why it failed."""

    number: int
    right: bool
    begun: bool
    why: str = ""


def _body(number: int, stream: bool, wait: float, step: int = 4) -> dict[str, Any]:
    said = json.dumps({"text": f"Hm.</think>Number {number}.", "step": step, "wait": wait})
    return {"model": "tiny", "messages": [{"role": "user", "content": f"@@{said}@@"}], "stream": stream}


def _ask(client: httpx.Client, url: str, number: int, session: str, wait: float, *, stream: bool) -> Outcome:
    """One request, without any retry of the client's own."""
    begun, content, why = False, "", ""
    try:
        with client.stream(
            "POST", f"{url}/v1/chat/completions", json=_body(number, stream, wait), headers={SESSION: session}
        ) as response:
            if response.status_code != 200:
                return Outcome(number, False, False, f"{response.status_code} {response.read()!r}")
            if not stream:
                content = json.loads(response.read())["choices"][0]["message"]["content"]
            for line in response.iter_lines() if stream else []:
                if line.startswith("data: ") and line != "data: [DONE]":
                    begun = True
                    event = json.loads(line.removeprefix("data: "))
                    why = str(event.get("error", ""))
                    content += "".join(one["delta"].get("content") or "" for one in event.get("choices", []))
    except httpx.HTTPError as error:
        why = repr(error)
    return Outcome(number, content == f"Number {number}.", begun, why or content)


@pytest.fixture(scope="module")
def pair(
    dynamo: None, operated_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Deployment]]:
    """Two deployments that know nothing of each other. A test that ends one starts it again."""
    from dynamo_deployment import deployed

    folder = tmp_path_factory.mktemp("pair")
    with ExitStack() as stack:
        made = {}
        for name in ("east", "west"):
            # What recipes render: a stream's headers wait for its first token.
            variables = {"DYN_PARSER_VERSION": "2", "DYN_HTTP_PRE_COMMIT_ERROR_PEEK_MS": "600000"}
            made[name] = stack.enter_context(deployed(folder / name, operated_model, **variables))
            made[name].front()
            made[name].scripted("worker", "--parsers", "--no-tags")
        for deployment in made.values():
            deployment.wait()
        yield made


@pytest.fixture(scope="module")
def edge(pair: dict[str, Deployment], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEdge]:
    """An edge in front of both."""
    with running_edge(tmp_path_factory.mktemp("edge"), {name: one.port for name, one in pair.items()}) as running:
        yield running


@pytest.mark.parametrize("killed", [["worker"], ["frontend", "worker"]], ids=["worker", "deployment"])
def test_a_deployment_killed_under_load_loses_no_request_but_begun_streams(
    pair: dict[str, Deployment], edge: RunningEdge, killed: list[str]
) -> None:
    total, clients, before = 200, 16, 60
    retried = edge.count("envoy_cluster_upstream_rq_retry")
    already = {name: one.requests.read_text().count('"request"') for name, one in pair.items()}
    done = threading.Semaphore(0)

    def agent(which: int) -> list[Outcome]:
        outcomes = []
        with httpx.Client(timeout=60, trust_env=False) as client:
            for number in range(which, total, clients):
                outcomes.append(_ask(client, edge.url, number, f"agent {which}", 0.03, stream=number % 4 != 0))
                done.release()
        return outcomes

    with ThreadPoolExecutor(clients) as pool:
        agents = [pool.submit(agent, which) for which in range(clients)]
        for _ in range(before):
            done.acquire()
        pair["east"].end(killed)
        outcomes = [outcome for future in agents for outcome in future.result()]

    served = {name: one.requests.read_text().count('"request"') - already[name] for name, one in pair.items()}
    lost = [one for one in outcomes if not one.right and not one.begun]
    cut = [one for one in outcomes if not one.right and one.begun]
    retried = edge.count("envoy_cluster_upstream_rq_retry") - retried
    print(
        f"{' and '.join(killed)} killed: requests {total}, lost {len(lost)}, streams cut {len(cut)}, "
        f"tried again {retried}, served {served}"
    )
    assert len(outcomes) == total
    assert lost == []
    assert len(cut) <= clients  # one request of each agent was under way
    assert retried > 0
    assert served["west"] > served["east"] > 0  # both worked, and one went on alone
    _revive(pair["east"], edge)


def test_requests_go_on_from_a_frontend_whose_last_worker_has_left_before_a_health_check_sees_it(
    pair: dict[str, Deployment], edge: RunningEdge, tmp_path: Path
) -> None:
    """Dynamo's frontend then has neither the model nor its routes, and answers 404."""
    east, members = pair["east"], {name: one.port for name, one in pair.items()}
    rarely = {"interval_seconds": 60, "failures": 9}
    with running_edge(tmp_path, members, health=rarely) as late, httpx.Client(timeout=60, trust_env=False) as client:
        _wait_until(lambda: late.count("envoy_cluster_membership_healthy") == 3)  # the admin's own cluster is one
        east.end(["worker"])
        for file in (east.folder / "discovery").rglob("*"):  # what expires by itself after ten seconds
            if file.is_file():
                file.unlink()
        chat = f"{east.url}/v1/chat/completions"
        _wait_until(lambda: client.post(chat, json=_body(1, False, 0.0)).status_code == 404)

        outcomes = [_ask(client, late.url, number, f"left {number}", 0.0, stream=False) for number in range(24)]

        assert [one for one in outcomes if not one.right] == []
        assert late.count("envoy_cluster_upstream_rq_retry") > 0
        assert late.count("envoy_cluster_membership_healthy") == 3
    _revive(east, edge)


def test_a_session_stays_where_its_cache_is_leaves_a_dead_member_and_comes_back(
    pair: dict[str, Deployment], edge: RunningEdge
) -> None:
    with httpx.Client(timeout=60, trust_env=False) as client:

        def homes() -> dict[str, str]:
            """Session -> the member that served both its requests."""
            before = {name: one.requests.read_text().count("\n") for name, one in pair.items()}
            for number in range(48):
                assert _ask(client, edge.url, number, f"s{number % 24}", 0.0, stream=False).right
            served = {name: _numbers(one, before[name]) for name, one in pair.items()}
            assert sorted(number for numbers in served.values() for number in numbers) == list(range(48))
            found = {number: name for name, numbers in served.items() for number in numbers}
            assert all(found[number] == found[number % 24] for number in range(48)), served
            return {f"s{session}": found[session] for session in range(24)}

        first = homes()
        assert set(first.values()) == {"east", "west"}
        pair["east"].end(["frontend", "worker"])
        _wait_until(lambda: edge.count("envoy_cluster_membership_healthy") < 3)  # the admin's own cluster is one
        assert set(homes().values()) == {"west"}
        _revive(pair["east"], edge)
        assert homes() == first


def test_a_drained_member_finishes_what_it_has_and_gets_nothing_new(
    pair: dict[str, Deployment], edge: RunningEdge
) -> None:
    def served() -> dict[str, int]:
        return {name: one.requests.read_text().count('"request"') for name, one in pair.items()}

    with httpx.Client(timeout=60, trust_env=False) as client, ThreadPoolExecutor(1) as pool:

        def ask(number: int, session: str = "slow") -> bool:
            return _ask(client, edge.url, number, session, 0.0, stream=False).right

        before = served()
        slow = pool.submit(_ask, client, edge.url, 7, "slow", 0.4, stream=True)
        _wait_until(lambda: served() != before)
        home, other = sorted(pair, key=lambda name: before[name] - served()[name])
        assert edge.command("drain", home)[0] == 0
        before = served()
        _wait_until(lambda: ask(1) and served()[other] > before[other])
        before = served()
        assert all(ask(number, f"s{number}") for number in range(20))
        assert served() == {home: before[home], other: before[other] + 20}
        assert slow.result().right

        assert edge.command("drain", home, "--undo")[0] == 0
        _wait_until(lambda: ask(2) and served()[home] > before[home])
    assert "no member north" in edge.command("drain", "north")[1]


def _revive(deployment: Deployment, edge: RunningEdge) -> None:
    """Start a deployment again, and return once the edge gives it requests."""
    if "frontend" not in deployment.processes:
        shutil.rmtree(deployment.folder / "discovery")  # what expires by itself in a cluster
        deployment.front()
    deployment.scripted("worker", "--parsers", "--no-tags")
    deployment.wait()
    before = deployment.requests.read_text().count('"request"')
    with httpx.Client(timeout=60, trust_env=False) as client:

        def reached() -> bool:
            for session in range(24):
                assert _ask(client, edge.url, session, f"revived {session}", 0.0, stream=False).right
            return deployment.requests.read_text().count('"request"') > before

        _wait_until(reached)


def _numbers(deployment: Deployment, skip: int) -> list[int]:
    """Which requests reached a deployment's worker, after the first `skip`."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(deployment.model / "tokenizer.json"))
    lines = [json.loads(line) for line in deployment.requests.read_text().splitlines()[skip:]]
    prompts = [tokenizer.decode(line["request"]["token_ids"]) for line in lines if line != "stopped"]
    return [int(found) for prompt in prompts for found in re.findall(r"Number (\d+)", prompt)]


def _wait_until(condition: Any, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so after {seconds:.0f} s"
        time.sleep(0.1)
