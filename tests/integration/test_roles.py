"""Closed by default, with real processes: who may do what, and what the others are told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh import BrokerUnreachable, Client, ConfigError, Refused, Rejected
from mesh.security.keys import KeyPair
from mesh.security.tokens import client_token, member_token, parse_token
from tests.support.eventually import eventually
from tests.support.processes import Member, Mesh, mesh_in, wait_for_nodes


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host of its own: no keys yet, and no other test's."""
    monkeypatch.setenv("PHI3_MESH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PHI3_MESH_INSECURE", raising=False)
    return tmp_path / "home"


@pytest.fixture
def mesh(home: Path, tmp_path: Path) -> Iterator[Mesh]:
    with mesh_in(tmp_path) as made:
        yield made


@pytest.fixture
def broker(mesh: Mesh) -> Member:
    broker = mesh.broker("b", mesh.node("n", "--synthetic", "step_base_s=0.01"))
    with Client(broker.address) as member:
        wait_for_nodes(member, 1)
    return broker


def phi3_broker(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "broker.cli", *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_on_one_machine_nothing_is_configured_and_everything_is_encrypted(broker: Member, home: Path) -> None:
    with Client(broker.address) as client:
        assert client.generate("hello", max_tokens=4).text
    key = home / "keys" / "mesh.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.parent.stat().st_mode & 0o777 == 0o700


def test_a_host_without_a_key_is_told_what_to_do(home: Path) -> None:
    with pytest.raises(ConfigError, match="phi3-broker token --client NAME"):
        Client("127.0.0.1:5550")


def test_plain_text_is_for_this_machine_only(home: Path) -> None:
    with pytest.raises(ConfigError, match="loopback"):
        Client("192.0.2.1:5550", insecure=True)
    for module in ("node.cli", "broker.cli"):
        command = [sys.executable, "-m", module, *(["serve"] if module == "broker.cli" else []), "--insecure"]
        done = subprocess.run([*command, "--bind", "0.0.0.0:0"], capture_output=True, text=True, timeout=30)
        assert done.returncode == 2
        assert "works on loopback addresses only" in done.stderr


def test_a_named_client_may_call_and_may_not_administer(broker: Member) -> None:
    with Client(broker.address, token=phi3_broker("token", "--client", "notebook")) as client:
        assert client.generate("hello", max_tokens=4).text
        for change in (client.drain, client.undrain):
            with pytest.raises(Rejected, match="only a member"):
                change("n")
        assert client.status().num_ready == 1
    assert "notebook" in phi3_broker("clients")


def test_a_named_client_cannot_be_a_node_or_a_broker(broker: Member, tmp_path: Path) -> None:
    """Its token makes no member, so nothing that serves starts with it, on any host."""
    token = phi3_broker("token", "--client", "notebook")
    for command in (["node.cli"], ["broker.cli", "serve"]):
        done = subprocess.run(
            [sys.executable, "-m", *command, "--bind", "127.0.0.1:0", "--join", token],
            capture_output=True,
            text=True,
            timeout=30,
            env={**os.environ, "PHI3_MESH_HOME": str(tmp_path / "elsewhere")},
        )
        assert done.returncode == 2
        assert "is the token of client 'notebook'" in done.stderr
        assert token not in done.stderr


def test_a_revoked_client_is_ended_at_once_in_the_middle_of_a_stream(broker: Member) -> None:
    token = phi3_broker("token", "--client", "notebook")
    with Client(broker.address, token=token, reconnect_timeout_s=5) as client, Client(broker.address) as member:
        stream = client.stream("endless", max_tokens=3000, ignore_eos=True)
        next(stream)
        phi3_broker("revoke", "notebook")
        revoked_at = time.monotonic()
        with pytest.raises(Refused, match="revoked"):
            list(stream)
        assert time.monotonic() - revoked_at < 3
        eventually(lambda: member.status().num_in_flight == 0)
    with pytest.raises(Refused, match="revoked"):
        Client(broker.address, token=token).generate("again")


@pytest.mark.parametrize("who", ["a key nobody made", "another mesh", "plain text"])
def test_a_stranger_is_refused_within_a_second_and_told_why(broker: Member, home: Path, who: str) -> None:
    own = Path(home / "keys" / "mesh.key").read_text()
    arguments = {
        "a key nobody made": {"token": client_token(parse_token(own).mesh_public, KeyPair.new(), "nobody")},
        "another mesh": {"token": member_token(KeyPair.new())},
        "plain text": {"insecure": True},
    }[who]
    began = time.monotonic()
    with pytest.raises((Refused, BrokerUnreachable)) as caught:
        Client(broker.address, connect_timeout_s=1.0, **arguments).status()  # type: ignore[arg-type]
    assert time.monotonic() - began < 2.0
    words = {"a key nobody made": "key not accepted", "another mesh": "wrong mesh", "plain text": "encryption"}[who]
    assert words in str(caught.value)
    eventually(lambda: "refused" in broker.log_text(), within_s=5)


def test_a_node_takes_members_only_unless_it_is_started_for_direct_use(mesh: Mesh) -> None:
    closed, direct = mesh.node("closed"), mesh.node("direct", "--direct")
    token = phi3_broker("token", "--client", "notebook")
    with Client(closed.address) as member:
        wait_for_nodes(member, 1)
        assert member.generate("hello", max_tokens=4).text
    with pytest.raises(Refused, match="takes members only"):
        Client(closed.address, token=token).generate("hello")
    with Client(direct.address, token=token) as client:
        wait_for_nodes(client, 1)
        assert client.generate("hello", max_tokens=4).text
        with pytest.raises(Rejected, match="only a member"):
            client.drain("direct")


def test_a_second_host_joins_with_one_line(mesh: Mesh, tmp_path: Path) -> None:
    first = mesh.node("first")
    token = phi3_broker("token", "--member")
    second_home = {"PHI3_MESH_HOME": str(tmp_path / "second")}
    mesh.node("second", "--join", token, env=second_home).kill()
    second = mesh.node("again", env=second_home)  # the key is kept
    broker = mesh.broker("b", first, second)
    with Client(broker.address) as client:
        wait_for_nodes(client, 2)
    assert all(token not in member.log_text() for member in mesh.members)


def test_one_client_cannot_cancel_or_receive_what_another_asked(broker: Member) -> None:
    """Request ids are each client's own: both begin at 1."""
    tokens = [phi3_broker("token", "--client", name) for name in ("a", "b")]
    with Client(broker.address, token=tokens[0]) as first, Client(broker.address, token=tokens[1]) as second:
        one = first.stream("first", max_tokens=100, ignore_eos=True)
        other = second.stream("second", max_tokens=100, ignore_eos=True)
        next(one)
        next(other)
        other.close()
        list(one)
        assert one.result is not None
        assert one.result.usage.completion_tokens == 100
        assert one.result.text == first.generate("first", max_tokens=100, ignore_eos=True).text
