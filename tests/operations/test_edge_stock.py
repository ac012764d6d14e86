"""The edge with the real Envoy: every kind of configuration is read, keys, limits, TLS and refusals work live."""

from __future__ import annotations

import datetime
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml
from dashboard_metrics import metrics, shown
from edge_process import RunningEdge, needs_envoy, running_edge
from typer.testing import CliRunner

from glm53.cli import app
from glm53.dashboards.panels import EDGE
from glm53.edge.kubernetes import render_kubernetes
from glm53.edge.model import load_edge
from glm53.edge.parts import ENVOY
from glm53.edge.running import envoy_binary
from glm53.local.processes import free_ports

if TYPE_CHECKING:
    from dynamo_deployment import Deployment

pytestmark = needs_envoy
runner = CliRunner()
ANN, BOB = "sk-ann-0123456789abcdef", "sk-bob-0123456789abcdef"
SHIPPED = Path(__file__).parents[2] / "recipes" / "edges" / "glm53-two-clusters.yaml"


def test_envoy_reads_what_is_rendered_for_kubernetes(tmp_path: Path) -> None:
    """With everything an edge can have; the folders of a pod stand in the test's own."""
    base = load_edge(SHIPPED)
    members = tuple(
        one.model_copy(update={"ca": None if number else tmp_path / "tls.crt", "standby": bool(number)})
        for number, one in enumerate(base.members)
    )
    edge = base.model_copy(
        update={
            "members": members,
            "keys_secret": "keys",
            "tls_secret": "tls",
            "limits": base.limits.model_copy(update={"per_key_per_minute": 90}),
        }
    )
    config, *_ = yaml.safe_load_all(render_kubernetes(edge)["edge.yaml"])
    _certificate(tmp_path)
    (tmp_path / "keys.yaml").write_text(_keys(tmp_path))
    for name, text in config["data"].items():
        for folder in ("/etc/edge-keys", "/etc/edge-tls", "/etc/edge"):
            text = text.replace(folder, str(tmp_path))
        (tmp_path / name).write_text(text)
    cluster = yaml.safe_load((tmp_path / "clusters.yaml").read_text())["resources"][0]
    whole = yaml.safe_load((tmp_path / ENVOY).read_text())
    del whole["dynamic_resources"], cluster["@type"]  # so that validating reads the members, too
    whole["static_resources"]["clusters"].append(cluster)
    (tmp_path / "whole.yaml").write_text(yaml.safe_dump(whole))
    result = subprocess.run(
        [str(envoy_binary()), "--mode", "validate", "-c", str(tmp_path / "whole.yaml"), "-l", "warning"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr[-3000:]
    complaints = [line for line in result.stderr.splitlines() if "deprecated" in line or "work-in-progress" in line]
    assert complaints == []


@pytest.fixture(scope="module")
def guarded(scripted: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEdge]:
    """An edge with keys, a limit of five requests a minute a key, and TLS, in front of one deployment."""
    folder = tmp_path_factory.mktemp("guarded")
    _certificate(folder)
    (folder / "keys.yaml").write_text(_keys(folder))
    with running_edge(
        folder,
        {"east": scripted.port},
        scheme="https",
        verify=False,
        keys="keys.yaml",
        limits={"per_key_per_minute": 5},
        tls={"certificate": "tls.crt", "key": "tls.key"},
    ) as edge:
        yield edge


def _command(edge: RunningEdge, *words: str, key: str | None) -> Any:
    environment = {"SSL_CERT_FILE": str(edge.file.parent / "tls.crt"), "OPENAI_API_KEY": key or ""}
    return runner.invoke(app, [*words, "--url", edge.url], env=environment)


def test_only_known_keys_enter_and_each_has_its_own_limit(guarded: RunningEdge, scripted: Deployment) -> None:
    for key in (None, "sk-nobody-0123456789ab"):
        refused = _command(guarded, "models", key=key)
        assert refused.exit_code == 2
        assert "HTTP 401" in refused.stderr
        assert "OPENAI_API_KEY" in refused.stderr
    answers = [_command(guarded, "chat", "tiny", "hello", key=ANN) for _ in range(7)]

    assert [one.exit_code for one in answers] == [0] * 5 + [3] * 2, [one.output for one in answers]
    assert "HTTP 429" in answers[5].stderr
    assert "Try again after 5 s" in answers[5].stderr
    assert _command(guarded, "chat", "tiny", "hello", key=BOB).exit_code == 0


def test_a_key_is_not_passed_on_and_the_clients_name_cannot_be_forged(guarded: RunningEdge, tmp_path: Path) -> None:
    """A member that only listens shows what reaches a deployment."""
    seen = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_list_model, args=(listener, seen), daemon=True).start()
        (tmp_path / "keys.yaml").write_text(_keys(tmp_path))
        with running_edge(tmp_path, {"east": listener.getsockname()[1]}, keys="keys.yaml") as edge:
            _until_served(edge, ANN)
            forged = {"authorization": f"Bearer {ANN}", "x-edge-client": "root"}
            httpx.post(f"{edge.url}/v1/chat/completions", json={}, headers=forged, trust_env=False)
        listener.close()

    assert b"x-edge-client: ann\r\n" in seen
    assert b"root" not in seen
    assert ANN.encode() not in seen


def test_new_keys_are_taken_without_a_restart(guarded: RunningEdge) -> None:
    fresh = "sk-cleo-0123456789abcdef"
    listed = guarded.file.parent / "list.txt"
    listed.write_text(f"cleo {fresh}\nbob {BOB}\n")
    assert _command(guarded, "models", key=fresh).exit_code == 2
    assert (
        runner.invoke(app, ["edge", "keys", str(listed), "-o", str(guarded.file.parent / "keys.yaml")]).exit_code == 0
    )
    deadline = time.monotonic() + 30
    while _command(guarded, "models", key=fresh).exit_code != 0:
        assert time.monotonic() < deadline
        time.sleep(0.2)

    assert _command(guarded, "models", key=ANN).exit_code == 2  # no longer on the list


def test_with_no_healthy_member_the_edge_says_so_and_when_to_come_back(tmp_path: Path) -> None:
    [nobody] = free_ports(1, "127.0.0.1")
    with running_edge(tmp_path, {"east": nobody}, healthy=False) as edge:
        answer = httpx.post(f"{edge.url}/v1/chat/completions", json={}, trust_env=False)
        said = runner.invoke(app, ["chat", "tiny", "hello", "--url", edge.url])

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert "no healthy upstream" in answer.json()["error"]["message"]
    assert said.exit_code == 3
    assert "Try again after 2 s" in said.stderr


def test_a_prompt_of_megabytes_is_sent_again_as_a_whole(scripted: Deployment, tmp_path: Path) -> None:
    """One member answers health checks and then is gone, with its sessions still pointing to it."""
    sent = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "user": "x" * 3_000_000}
    with ExitStack() as stack:
        listener = socket.create_server(("127.0.0.1", 0))
        stack.callback(listener.close)
        threading.Thread(target=_list_model, args=(listener, bytearray()), daemon=True).start()
        members = {"gone": listener.getsockname()[1], "east": scripted.port}
        edge = stack.enter_context(running_edge(tmp_path, members, health={"interval_seconds": 60}))
        _wait(lambda: edge.count("envoy_cluster_membership_healthy") == 3)  # the admin interface's own is one
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for session in range(8):
            headers = {"x-session-id": str(session)}
            answer = httpx.post(
                f"{edge.url}/v1/chat/completions", json=sent, headers=headers, trust_env=False, timeout=60
            )
            assert answer.status_code == 200, answer.text
        assert edge.count("envoy_cluster_upstream_rq_retry_success") > 0


def test_the_way_to_a_member_is_tls_and_its_certificate_is_checked(scripted: Deployment, tmp_path: Path) -> None:
    for name in ("right", "other"):
        (tmp_path / name).mkdir()
        _certificate(tmp_path / name)
    [port] = free_ports(1, "127.0.0.1")
    files = (
        "--tls-cert-path",
        str(tmp_path / "right" / "tls.crt"),
        "--tls-key-path",
        str(tmp_path / "right" / "tls.key"),
    )
    scripted.front(*files, name="secure", port=port)
    try:
        with running_edge(tmp_path / "a", {"east": port}, ca=tmp_path / "right" / "tls.crt") as edge:
            _until_served(edge)
        with running_edge(tmp_path / "b", {"east": port}, ca=tmp_path / "other" / "tls.crt", healthy=False) as edge:
            answer = httpx.get(f"{edge.url}/v1/models", trust_env=False)
            assert answer.status_code == 503
            assert (
                edge.count("envoy_cluster_ssl_fail_verify_error") + edge.count("envoy_cluster_ssl_connection_error") > 0
            )
    finally:
        scripted.end(["secure"])


def test_more_requests_at_once_than_allowed_get_503(scripted: Deployment, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    said = json.dumps({"text": "Hm.</think>Late.", "wait": 1.0})
    body = {"model": "tiny", "messages": [{"role": "user", "content": f"@@{said}@@"}]}
    with running_edge(tmp_path, {"east": scripted.port}, limits={"in_flight": 2}, retries=0) as edge:
        _until_served(edge)

        def ask(_: int) -> httpx.Response:
            return httpx.post(f"{edge.url}/v1/chat/completions", json=body, trust_env=False, timeout=30)

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(8)))

    codes = sorted(one.status_code for one in answers)
    assert codes[0] == 200
    assert codes[-1] == 503
    refused = next(one for one in answers if one.status_code == 503)
    assert refused.headers["retry-after"] == "2"
    assert refused.json()["error"]["type"] == "full_or_down"


def test_every_metric_of_the_edges_dashboard_is_envoys(guarded: RunningEdge) -> None:
    """After the tests above, because Envoy shows some counters with the first refusal of their kind."""
    families = shown(httpx.get(guarded.metrics, trust_env=False).text)
    asked = metrics(EDGE)

    assert len(asked) == 7
    assert asked - families.keys() == set()
    assert "envoy_response_code_class" in families["envoy_http_downstream_rq_xx"]


def test_the_access_log_names_client_member_and_tries_and_holds_no_key(guarded: RunningEdge) -> None:
    deadline = time.monotonic() + 30
    while not any(one["client"] == "bob" for one in guarded.requests()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    text = guarded.log.read_text()

    entry = next(one for one in guarded.requests() if one["client"] == "bob")
    assert (entry["status"], entry["tries"], entry["path"]) == (200, 1, "/v1/chat/completions")
    assert entry["member"].startswith("127.0.0.1:")
    assert ANN not in text
    assert BOB not in text


def _list_model(listener: socket.socket, seen: bytearray) -> None:
    """A member that lists the model and nothing more. seen: what was posted to it, in lower case."""
    listed = b'{"data":[{"id":"tiny"}]}'
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            request = connection.recv(65536)
            if b"POST" in request:
                seen.extend(request.lower())
            head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(listed)
            connection.sendall(head + listed)


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _until_served(edge: RunningEdge, key: str | None = None) -> None:
    """Until the health check has found the member."""
    deadline = time.monotonic() + 30
    headers = {"authorization": f"Bearer {key}"} if key else {}
    while httpx.get(f"{edge.url}/v1/models", headers=headers, trust_env=False).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _keys(folder: Path) -> str:
    listed, out = folder / "clients.txt", folder / "made.yaml"
    listed.write_text(f"ann {ANN}\nbob {BOB}\n")
    assert runner.invoke(app, ["edge", "keys", str(listed), "-o", str(out)]).exit_code == 0
    return out.read_text()


def _certificate(folder: Path) -> None:
    """A certificate for 127.0.0.1 that is its own authority: tls.crt and tls.key."""
    x509 = pytest.importorskip("cryptography.x509", reason="makes the certificate; `make test` installs it")
    import ipaddress

    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "edge")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "tls.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    (folder / "tls.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    )
