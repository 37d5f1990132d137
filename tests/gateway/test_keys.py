"""API keys: who may call, how the file may change, and that each key has a share of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the gateway extra")
httpx = pytest.importorskip("httpx", reason="needs httpx")

from mesh import Client  # noqa: E402
from tests.gateway.support import gateway_for, wait_until_ready  # noqa: E402
from tests.support.eventually import eventually  # noqa: E402
from tests.support.processes import Member  # noqa: E402

ASK = {"prompt": "x", "max_tokens": 1}
KEY_A, KEY_B = "sk-alpha-0123456789", "sk-beta-0123456789"
KEYS = f"# callers\nalice {KEY_A}\n\nbob {KEY_B}  # the bot\n"


@dataclass
class Locked:
    """A gateway with keys."""

    gateway: Member
    file: Path

    def ask(self, path: str = "/v1/completions", **headers: str) -> httpx.Response:
        return httpx.post(self.gateway.address + path, json=ASK, headers=headers)

    def status_with(self, key: str) -> int:
        return self.ask(authorization=f"Bearer {key}").status_code


@pytest.fixture(scope="module")
def shared(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    folder = tmp_path_factory.mktemp("locked")
    file = folder / "keys"
    file.write_text(KEYS)
    with gateway_for(folder, broker, "--api-key-file", str(file), "--log-level", "debug") as gateway:
        wait_until_ready(gateway.address)  # probes need no key
        yield Locked(gateway, file)


@pytest.fixture
def locked(shared: Locked) -> Locked:
    """With the keys of before, whatever the last test made of them."""
    shared.file.write_text(KEYS)
    eventually(lambda: {shared.status_with(KEY_A), shared.status_with(KEY_B)} == {200})
    return shared


def test_only_known_keys_may_call_and_no_log_shows_them(locked: Locked) -> None:
    assert locked.status_with(KEY_A) == 200
    assert locked.ask(**{"x-api-key": KEY_B}).status_code == 200
    refused = locked.ask()
    assert refused.status_code == 401
    assert refused.json()["error"]["type"] == "authentication_error"
    assert locked.status_with("sk-wrong") == 401
    assert locked.ask("/v1/messages").json()["error"]["type"] == "authentication_error"
    for path in ("/metrics", "/v1/models", "/v2", "/v2/models/acme/phi"):
        assert httpx.get(locked.gateway.address + path).status_code == 401, path
    log = locked.gateway.log_text()
    assert not [key for key in (KEY_A, KEY_B, "sk-wrong") if key in log]


def test_the_file_is_read_again_when_it_changes(locked: Locked) -> None:
    locked.file.write_text("alice sk-alpha-new\n")
    eventually(lambda: locked.status_with("sk-alpha-new") == 200)
    assert [locked.status_with(key) for key in (KEY_A, KEY_B)] == [401, 401]
    locked.file.write_text("this line has too many words\n")
    eventually(lambda: "api_keys_kept" in locked.gateway.log_text())
    assert locked.status_with("sk-alpha-new") == 200


def test_each_key_is_a_client_of_its_own_to_the_broker(locked: Locked, broker: str) -> None:
    with Client(broker) as client:
        with_both = client.status().num_clients
        locked.file.write_text(f"alice {KEY_A}\n")
        eventually(lambda: client.status().num_clients == with_both - 1)
        assert locked.status_with(KEY_A) == 200
        assert client.status().num_clients == with_both - 1
