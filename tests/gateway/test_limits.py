"""What the door says: too large, too many, nobody home, not from there. All over plain HTTP."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi", reason="needs the gateway extra")
httpx = pytest.importorskip("httpx", reason="needs httpx")

from tests.gateway.support import gateway_for, wait_until_ready  # noqa: E402
from tests.gateway.support_grpc import GRPC, grpc_address  # noqa: E402
from tests.support.processes import mesh_in  # noqa: E402

CHAT = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 2}
ORIGIN = "https://chat.example"


@pytest.fixture(scope="module")
def strict(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway with narrow limits."""
    options = ("--max-request-bytes", "2000", "--timeout", "0.2", "--cors", ORIGIN)
    with gateway_for(tmp_path_factory.mktemp("strict"), broker, *options) as gateway:
        wait_until_ready(gateway.address)
        yield gateway.address


@pytest.fixture(scope="module")
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url) as client:
        yield client


def exchange(url: str, request: bytes) -> bytes:
    """The raw answer to raw bytes."""
    where = urlsplit(url)
    with socket.create_connection((where.hostname, where.port), timeout=10) as connection:
        connection.sendall(request)
        return connection.recv(65536)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b'{"a": NaN}', b"\xff\xfe", b"[" * 100_000, b'{"messages": []}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}', b'{"messages": [{"role": "\\ud800"}]}',
        b'{"model": "\\ud800", "messages": [{"role": "user", "content": "x"}]}',
        b'{"\\ud800": 1, "messages": [{"role": "user", "content": "x"}]}', b'{"messages": [{}], "seed": 1e400}',
        b'{"seed": 1' + b"0" * 5000 + b"}", b'{"messages": [{"role": "user", "content": ["x"]}]}',
        b'{"messages": [{"role": "tool", "content": {"a": 1}}]}', b'{"messages": 5}',
    ],
    ids=range(17),
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v2/models/acme/phi/infer"])
def test_nonsense_is_a_400_with_words(http: httpx.Client, path: str, body: bytes) -> None:
    answer = http.post(path, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_a_body_over_the_limit_is_a_413(strict: str) -> None:
    answer = httpx.post(f"{strict}/v1/completions", json={"prompt": "x" * 3000})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert httpx.post(f"{strict}/v1/completions", content=iter([b"x" * 1000] * 5)).status_code == 413


def test_a_head_over_the_limit_is_a_431(url: str) -> None:
    whole = exchange(url, b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\na: " + b"x" * 40_000 + b"\r\n\r\n")
    assert whole.startswith(b"HTTP/1.1 431 ")
    endless = exchange(url, b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\na: " + b"x" * 400_000)
    assert endless.startswith(b"HTTP/1.1 431 ")


def test_too_many_waiting_is_a_429_that_says_when_to_come_back(tmp_path: Path) -> None:
    with mesh_in(tmp_path) as mesh:
        node = mesh.node("n1", "--synthetic", "step_base_s=0.02", "--slots", "1")
        with gateway_for(tmp_path, node.address, "--max-waiting", "2") as gateway:
            wait_until_ready(gateway.address)
            url = f"{gateway.address}/v1/completions"
            body = {"prompt": "long", "max_tokens": 5000, "ignore_eos": True, "stream": True}
            with httpx.Client() as http, http.stream("POST", url, json=body) as first:
                next(first.iter_bytes())
                answer = http.post(url, json={"prompt": "x", "n": 3})
                assert answer.status_code == 429
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.json()["error"]["type"] == "rate_limit_error"


def test_without_a_node_it_is_a_503_at_once(tmp_path: Path) -> None:
    with mesh_in(tmp_path) as mesh, gateway_for(tmp_path, mesh.broker("b1").address) as gateway:
        for path in ("/v1/chat/completions", "/v1/messages"):
            answer = httpx.post(gateway.address + path, json={"model": "", **CHAT})
            assert answer.status_code == 503
            assert answer.headers["retry-after"]
        assert httpx.get(f"{gateway.address}/v2/health/live").status_code == 200
        assert httpx.get(f"{gateway.address}/v2/health/ready").status_code == 503
        assert httpx.get(f"{gateway.address}/health").json() == {"status": "ok", "ready": False}


def test_a_deadline_from_the_options_is_a_504(strict: str) -> None:
    body = {"prompt": "slow", "max_tokens": 5000, "ignore_eos": True}
    assert httpx.post(f"{strict}/v1/completions", json=body).status_code == 504
    streamed = httpx.post(f"{strict}/v1/completions", json={**body, "stream": True})
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert events[-1]["error"]["code"] == "deadline_exceeded"
    assert streamed.text.endswith("data: [DONE]\n\n")


def test_other_origins_are_only_let_in_by_name(url: str, strict: str) -> None:
    asking = {"origin": ORIGIN, "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in httpx.options(f"{url}/v1/chat/completions", headers=asking).headers
    answer = httpx.options(f"{strict}/v1/chat/completions", headers=asking)
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert httpx.get(f"{strict}/health", headers={"origin": ORIGIN}).status_code == 200
    for foreign in ("https://evil.example", "null"):
        other = httpx.post(f"{strict}/v1/chat/completions", json=CHAT, headers={"origin": foreign})
        assert other.status_code == 403
        assert "access-control-allow-origin" not in other.headers


def test_unknown_paths_and_methods_answer_in_the_api_s_own_words(url: str) -> None:
    assert httpx.get(f"{url}/v1/nothing").json()["error"]["type"] == "not_found_error"
    assert httpx.get(f"{url}/v2/nothing").json()["error"] == "there is no /v2/nothing here"
    answer = httpx.get(f"{url}/v1/messages")
    assert (answer.status_code, answer.json()["type"], answer.headers["allow"]) == (405, "error", "POST")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_tls_by_certificate_files(tmp_path: Path, broker: str) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    with gateway_for(tmp_path, broker, *GRPC, "--tls-cert", str(cert), "--tls-key", str(key)) as gateway:
        assert gateway.address.startswith("https://")
        with httpx.Client(verify=ssl.create_default_context(cafile=str(cert))) as client:
            assert client.get(f"{gateway.address}/health").status_code == 200
        grpc = pytest.importorskip("grpc", reason="needs grpcio")
        credentials = grpc.ssl_channel_credentials(cert.read_bytes())
        with grpc.secure_channel(grpc_address(gateway), credentials) as channel:
            grpc.channel_ready_future(channel).result(timeout=10)
        with grpc.insecure_channel(grpc_address(gateway)) as channel, pytest.raises(grpc.FutureTimeoutError):
            grpc.channel_ready_future(channel).result(timeout=0.3)
