"""The page over plain HTTP: its files and their headers, who may read its stream, and how that ends."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the gateway extra")
httpx = pytest.importorskip("httpx", reason="needs httpx")

from broker.gateway.page.assets import assets  # noqa: E402
from tests.gateway.support import gateway_for  # noqa: E402
from tests.support.eventually import eventually  # noqa: E402
from tests.support.processes import Member  # noqa: E402

KEY = "sk-page-0123456789"
HEADERS = {"authorization": f"Bearer {KEY}"}


def events_of(answer: httpx.Response) -> Iterator[tuple[str, Any]]:
    """Name and data of each event of a feed, until it ends."""
    name = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_every_file_is_served_with_headers_that_keep_a_browser_to_this_host(url: str) -> None:
    with httpx.Client(base_url=url) as http:
        for path in ("/", *[f"/page/{name}" for name in assets()]):
            answer = http.get(path)
            assert answer.status_code == 200, path
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'self';"), path
            sources = set(re.split(r"[\s;']+", policy))
            assert not {"unsafe-inline", "unsafe-eval", "http:", "https:", "data:", "*"} & sources, path
            assert "frame-ancestors 'none'" in policy, path
            assert answer.headers["x-content-type-options"] == "nosniff", path
            assert answer.headers["referrer-policy"] == "no-referrer", path
            again = http.get(path, headers={"if-none-match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b""), path
            assert http.head(path).headers["content-length"] == str(len(answer.content)), path


@pytest.mark.parametrize("path", ["/page/", "/page/nope.js", "/page/..%2fapp.py", "/page/%2e%2e/app.py", "/page/a/b"])
def test_nothing_else_is_served(url: str, path: str) -> None:
    assert httpx.get(url + path).status_code == 404


def test_no_file_names_another_host_or_makes_markup_of_text() -> None:
    """The namespace of SVG is a name and not fetched; what comments cite is not either."""
    sinks = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|srcdoc|setAttribute\(.on"
    for name, asset in assets().items():
        text = asset.body.decode()
        assert not re.search(sinks, text), name
        code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("/**", "//", "*")))
        hosts = set(re.findall(r"(?:https?:)?//[\w.]+", code)) - {"http://www.w3.org"}
        assert not {host for host in hosts if "." in host}, name
        assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|style=", text) or not name.endswith("html"), name


def test_the_feed_tells_the_mesh_to_many_pages_for_one_report_a_second(url: str) -> None:
    with ExitStack() as stack, httpx.Client(base_url=url, limits=httpx.Limits(max_connections=50)) as http:
        feeds = [events_of(stack.enter_context(http.stream("GET", "/page/feed"))) for _ in range(30)]
        firsts = [dict([next(feed), next(feed), next(feed)]) for feed in feeds]
        nexts = [next(feed) for feed in feeds]
    for first in firsts:
        assert set(first) == {"past", "mesh", "events"}
        assert {node["name"] for node in first["mesh"]["view"]["nodes"]} == {"n1", "n2"}
        assert any(caller["name"] == "gateway" for caller in first["mesh"]["view"]["callers"])
        assert "nodes ready" in first["events"][0]["text"] or "node ready" in first["events"][0]["text"]
    by_moment = {data["now"]: data for _, data in nexts}
    assert all(name == "mesh" and data == by_moment[data["now"]] for name, data in nexts)


def test_a_streamed_chat_says_which_node_answered_with_its_usage(url: str) -> None:
    ask = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "stream": True}
    with_usage = httpx.post(f"{url}/v1/chat/completions", json={**ask, "stream_options": {"include_usage": True}})
    events = [json.loads(line[6:]) for line in with_usage.text.split("\n\n") if line.startswith("data: {")]

    assert events[-1]["mesh"]["node"] in ("n1", "n2")
    assert events[-1]["mesh"]["attempts"] == 1
    assert 0 < events[-1]["mesh"]["ttft_s"] <= events[-1]["mesh"]["total_s"]
    assert '"mesh"' not in httpx.post(f"{url}/v1/chat/completions", json=ask).text  # nobody asked


@pytest.mark.parametrize("path", ["/page/feed", "/v1/models", "/metrics", "/v2"])
@pytest.mark.parametrize(
    "headers",
    [{"host": "evil.example"}, {"host": "evil.example:8000"}, {"host": "[bad"}, {"origin": "https://evil.example"}],
)
def test_a_page_of_elsewhere_cannot_read_a_gateway_without_keys(url: str, path: str, headers: dict[str, str]) -> None:
    refused = httpx.get(f"{url}{path}", headers=headers)

    assert refused.status_code == 403
    assert "name it with --cors" in refused.text


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys"


@pytest.fixture(scope="module")
def locked(broker: str, keys: Path) -> Iterator[Member]:
    """A gateway with keys. The last test here stops it."""
    keys.write_text(f"alice {KEY}\n")
    with gateway_for(keys.parent, broker, "--api-key-file", str(keys)) as gateway:
        yield gateway


def test_with_keys_the_files_are_open_and_the_feed_is_not(locked: Member, keys: Path) -> None:
    keys.write_text(f"alice {KEY}\n")
    assert httpx.get(locked.address).status_code == 200
    for headers in ({}, {"authorization": "Bearer sk-wrong"}):
        assert httpx.get(f"{locked.address}/page/feed", headers=headers).status_code == 401
    with reading(locked) as feed:
        assert next(feed)[0] == "past"
        keys.write_text("bob sk-another-key\n")  # hers is withdrawn while she watches
        name, data = list(feed)[-1]
    assert (name, data["code"]) == ("end", "invalid_api_key")


def test_open_pages_do_not_keep_a_gateway_from_stopping(locked: Member, keys: Path) -> None:
    keys.write_text(f"alice {KEY}\n")
    eventually(lambda: httpx.get(f"{locked.address}/v1/models", headers=HEADERS).status_code == 200, within_s=20)
    with reading(locked) as feed:
        next(feed)
        told_at = time.monotonic()
        locked.process.send_signal(signal.SIGTERM)
        *_, (name, data) = feed
    assert (name, data["code"]) == ("end", "leaving")
    assert locked.process.wait(10) == 0
    assert time.monotonic() - told_at < 5  # --drain is 30 s
    assert "Traceback" not in locked.log_text()


@contextmanager
def reading(locked: Member) -> Iterator[Iterator[tuple[str, Any]]]:
    """Its feed. Keys say who may call, so the name that it is called by does not matter."""
    with httpx.stream("GET", f"{locked.address}/page/feed", headers={**HEADERS, "host": "mesh.example"}) as answer:
        assert answer.status_code == 200
        yield events_of(answer)
