"""What anybody tries first: curl, with nothing but its defaults and a URL."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the gateway extra")

from mesh import Client
from node.engine.synthetic_vocab import encode, expected_text
from tests.gateway.conftest import MODEL
from tests.support.eventually import eventually

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")

CURL_TIMED_OUT = 28


def curl(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["curl", "-sS", "--max-time", "20", *words], capture_output=True, text=True, timeout=30)


def body(prompt: str, **values: object) -> str:
    return json.dumps({"prompt": prompt, "temperature": 0, "ignore_eos": True, **values})


def texts_of(events: str) -> str:
    told = [line.removeprefix("data: ") for line in events.splitlines() if line.startswith("data: {")]
    return "".join(json.loads(one)["choices"][0]["text"] for one in told)


def test_one_line_is_enough(url: str) -> None:
    """curl -d says that its JSON is a form."""
    chat = '{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8}'
    answer = json.loads(curl(f"{url}/v1/chat/completions", "-d", chat).stdout)
    assert (answer["object"], answer["model"], answer["usage"]["completion_tokens"]) == ("chat.completion", MODEL, 8)


@pytest.mark.parametrize("version", ["--http1.1", "--http1.0"])
def test_a_stream_is_flushed_token_by_token(url: str, version: str) -> None:
    timed = ("-w", "\n%{time_starttransfer} %{time_total}")
    ended = curl("-N", version, *timed, f"{url}/v1/completions", "-d", body("flushed", stream=True, max_tokens=100))
    events, _, times = ended.stdout.rpartition("\n")
    first_s, total_s = map(float, times.split())
    assert texts_of(events) == expected_text(encode("flushed"), 100)
    assert events.endswith("data: [DONE]\n\n")
    assert first_s < total_s / 2


def test_one_connection_serves_many_requests(url: str) -> None:
    """Whole, streamed and refused ones, in turn."""
    asked = [body("one", max_tokens=3), body("two", max_tokens=3, stream=True), "nonsense", body("four", max_tokens=3)]
    words: list[str] = []
    for one in asked:
        words += [
            "-o",
            "/dev/null",
            "-w",
            "%{http_code} %{num_connects}\n",
            f"{url}/v1/completions",
            "-d",
            one,
            "--next",
        ]
    assert curl(*words[:-1]).stdout.split("\n")[:-1] == ["200 1", "200 0", "400 0", "200 0"]


def test_a_curl_that_gives_up_frees_the_slot(url: str, broker: str) -> None:
    with Client(broker) as client:
        words = ("--max-time", "0.5", f"{url}/v1/completions", "-d", body("gone", stream=True, max_tokens=5000))
        ended = curl("-N", *words)
        assert ended.returncode == CURL_TIMED_OUT
        assert texts_of(ended.stdout)
        eventually(lambda: client.status().num_in_flight == 0, within_s=1)


def test_a_body_that_waits_to_be_asked_for_is_taken(url: str, tmp_path: Path) -> None:
    """Over 1 MiB curl sends `Expect: 100-continue` and waits a second for the answer to that."""
    (tmp_path / "long.json").write_text(body("x" * 1_500_000, max_tokens=3))
    words = ("-w", "\n%{http_code} %{time_total}", f"{url}/v1/completions", "-d", f"@{tmp_path / 'long.json'}")
    told, _, last = curl(*words).stdout.rpartition("\n")
    status, total_s = last.split()
    assert (status, json.loads(told)["error"]["code"]) == ("400", "context_length_exceeded")
    assert float(total_s) < 0.9
