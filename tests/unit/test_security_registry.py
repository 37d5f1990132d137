"""The clients that may call: added and revoked by one process, known to another at its next question."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from mesh.errors import ConfigError
from mesh.security.keys import Credentials, KeyPair
from mesh.security.registry import ClientRegistry
from mesh.security.tokens import parse_token

MEMBER = Credentials.of_member(KeyPair.new())


def public_of(token: str) -> str:
    return parse_token(token).pair.public


def test_a_token_opens_what_the_registry_knows(tmp_path: Path) -> None:
    command, server = ClientRegistry(tmp_path), ClientRegistry(tmp_path)
    token = command.add("alice", MEMBER)
    client = server.with_key(public_of(token))
    assert client is not None
    assert (client.name, client.is_revoked) == ("alice", False)
    assert parse_token(token).mesh_public == MEMBER.mesh_public


def test_a_secret_half_is_nowhere_but_in_the_token(tmp_path: Path) -> None:
    token = ClientRegistry(tmp_path).add("alice", MEMBER)
    (file,) = (tmp_path / "keys" / "clients").iterdir()
    secret = parse_token(token).pair.secret.reveal()
    assert secret not in file.read_text()
    assert token not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_changes_are_seen_at_once_however_fast_they_follow(tmp_path: Path) -> None:
    """A folder's time stands still for some milliseconds: a cache that trusts it would miss the second change."""
    command, server = ClientRegistry(tmp_path), ClientRegistry(tmp_path)
    for number in range(10):
        key = public_of(command.add(f"client-{number}", MEMBER))
        assert server.with_key(key) is not None
        assert server.active_names() == {f"client-{number}"}
        command.revoke(f"client-{number}")
        client = server.with_key(key)
        assert client is not None
        assert client.is_revoked
        assert server.active_names() == set()


def test_what_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    for later_s in (0, 10):  # of the reading, after the change
        registry = ClientRegistry(tmp_path / str(later_s), now_ns=lambda: time.time_ns() + later_s * 1_000_000_000)  # noqa: B023
        key = public_of(registry.add("alice", MEMBER))
        first = registry.with_key(key)
        assert first is not None
        registry.add("bob", MEMBER)
        assert registry.with_key(key) is first
        registry.revoke("alice")
        assert registry.with_key(key) is not first


def test_a_client_whose_file_was_deleted_is_out(tmp_path: Path) -> None:
    registry = ClientRegistry(tmp_path)
    key = public_of(registry.add("alice", MEMBER))
    assert registry.with_key(key) is not None
    (registry.folder / "alice.json").unlink()
    assert registry.with_key(key) is None


def test_a_folder_that_was_opened_to_others_lets_nobody_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry = ClientRegistry(tmp_path)
    key = public_of(registry.add("alice", MEMBER))
    assert registry.with_key(key) is not None
    registry.folder.chmod(0o777)
    assert registry.with_key(key) is None
    assert "chmod 700" in caplog.text
    registry.folder.chmod(0o700)
    assert registry.with_key(key) is not None


def test_a_name_is_used_once(tmp_path: Path) -> None:
    registry = ClientRegistry(tmp_path)
    registry.add("alice", MEMBER)
    with pytest.raises(ConfigError, match="alice-2"):
        registry.add("alice", MEMBER)
    registry.revoke("alice")
    with pytest.raises(ConfigError, match="exists already"):
        registry.add("alice", MEMBER)


def test_revoking_twice_keeps_the_first_time_and_a_stranger_is_named(tmp_path: Path) -> None:
    registry = ClientRegistry(tmp_path)
    registry.add("alice", MEMBER)
    assert registry.revoke("alice") == registry.revoke("alice")
    with pytest.raises(ConfigError, match=r"'bob'; there are: none"):
        registry.revoke("bob")
    assert [(client.name, client.is_revoked) for client in registry.clients()] == [("alice", True)]


@pytest.mark.parametrize("name", ["../mesh", "A", "", "a/b"])
def test_a_name_cannot_leave_the_folder(tmp_path: Path, name: str) -> None:
    registry = ClientRegistry(tmp_path)
    for act in (lambda: registry.add(name, MEMBER), lambda: registry.revoke(name)):
        with pytest.raises(ConfigError, match="client name"):
            act()


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"public": "short", "created": "", "revoked": ""}'])
def test_a_damaged_file_keeps_its_client_out_and_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    registry = ClientRegistry(tmp_path)
    alice, bob = public_of(registry.add("alice", MEMBER)), public_of(registry.add("bob", MEMBER))
    (registry.folder / "alice.json").write_text(text)
    assert registry.with_key(alice) is None
    assert registry.with_key(bob) is not None
    assert "client_key_ignored name=alice" in caplog.text
    with pytest.raises(ConfigError, match="alice"):
        registry.clients()


def test_a_file_that_others_may_write_keeps_its_client_out(tmp_path: Path) -> None:
    registry = ClientRegistry(tmp_path)
    key = public_of(registry.add("alice", MEMBER))
    (registry.folder / "alice.json").chmod(0o666)
    assert registry.with_key(key) is None
    (registry.folder / "alice.json").chmod(0o600)
    assert registry.with_key(key) is not None


def test_drafts_of_a_crash_are_no_clients(tmp_path: Path) -> None:
    registry = ClientRegistry(tmp_path)
    registry.add("alice", MEMBER)
    (registry.folder / ".bob.json.1.abcd").write_text("{}")
    assert [client.name for client in registry.clients()] == ["alice"]
