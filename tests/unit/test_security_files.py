"""Keys on disk: made once however many start at once, closed to others, found without being told."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mesh.errors import ConfigError
from mesh.security.files import keys_folder
from mesh.security.keys import Credentials, KeyPair
from mesh.security.loading import client_credentials, member_credentials, token_argument
from mesh.security.member_key import find_member, find_or_make_member, join
from mesh.security.tokens import client_token, member_token

OTHER = Credentials.of_member(KeyPair.new())
CLIENT_TOKEN = client_token(OTHER.mesh_public, KeyPair.new(), "alice")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


START = """
import sys
from pathlib import Path
from mesh.security.member_key import find_or_make_member
print("ready", flush=True)
sys.stdin.readline()
print(find_or_make_member(Path(sys.argv[1])).mesh_public)
"""


def test_eight_processes_that_start_at_once_have_the_same_key(tmp_path: Path) -> None:
    command = [sys.executable, "-c", START, str(tmp_path)]
    starts = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    for start in starts:
        assert start.stdout is not None
        assert start.stdout.readline() == "ready\n"
    for start in starts:
        assert start.stdin is not None
        start.stdin.write("\n")
        start.stdin.flush()
    keys = {start.communicate(timeout=30)[0] for start in starts}
    assert [start.returncode for start in starts] == [0] * 8
    assert len(keys) == 1
    assert os.listdir(tmp_path / "keys") == ["mesh.key"]  # no draft is left


def test_a_key_is_made_once_and_only_for_its_owner(tmp_path: Path) -> None:
    made = find_or_make_member(tmp_path)
    assert find_or_make_member(tmp_path) == made
    assert mode(tmp_path / "keys") == 0o700
    assert mode(tmp_path / "keys" / "mesh.key") == 0o600


def test_the_umask_does_not_open_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        find_or_make_member(tmp_path)
    finally:
        os.umask(before)
    assert mode(tmp_path / "keys") == 0o700
    assert mode(tmp_path / "keys" / "mesh.key") == 0o600


@pytest.mark.parametrize(
    ("path", "wrong", "advice"), [("keys", 0o750, "chmod 700"), ("keys/mesh.key", 0o604, "chmod 600")]
)
def test_a_key_that_others_can_reach_is_an_error_that_says_what_to_run(
    tmp_path: Path, path: str, wrong: int, advice: str
) -> None:
    find_or_make_member(tmp_path)
    (tmp_path / path).chmod(wrong)
    for load in (find_or_make_member, find_member):
        with pytest.raises(ConfigError, match=f"{advice} {tmp_path / path}"):
            load(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_another_user_is_an_error(tmp_path: Path) -> None:
    find_or_make_member(tmp_path)
    os.chown(tmp_path / "keys" / "mesh.key", 4242, -1)
    with pytest.raises(ConfigError, match=r"belongs to user id 4242.*chown"):
        find_member(tmp_path)


def test_a_damaged_key_is_an_error_and_is_not_replaced(tmp_path: Path) -> None:
    find_or_make_member(tmp_path)
    path = tmp_path / "keys" / "mesh.key"
    path.write_text(path.read_text()[:-9])
    with pytest.raises(ConfigError, match=str(path)):
        find_or_make_member(tmp_path)


def test_a_home_that_is_no_folder_is_an_error(tmp_path: Path) -> None:
    home = tmp_path / "file"
    home.write_text("")
    with pytest.raises(ConfigError, match="PHI3_MESH_HOME"):
        find_or_make_member(home)


def test_a_host_joins_for_good_and_keeps_its_old_key(tmp_path: Path) -> None:
    old = find_or_make_member(tmp_path)
    assert join(member_token(OTHER.pair), tmp_path) == OTHER
    assert join(member_token(OTHER.pair), tmp_path) == OTHER
    assert find_member(tmp_path) == OTHER
    kept = tmp_path / "keys" / f"mesh-{old.fingerprint}.key"
    assert kept.read_text().strip() == member_token(old.pair)
    assert mode(kept) == mode(tmp_path / "keys" / "mesh.key") == 0o600


@pytest.mark.parametrize("load", [join, lambda token, home: member_credentials(token, home=home, env={})])
def test_a_client_token_makes_no_member(tmp_path: Path, load: Callable[[str, Path], Credentials]) -> None:
    with pytest.raises(ConfigError, match=r"token of client 'alice'.*token --member"):
        load(CLIENT_TOKEN, tmp_path)


def test_on_one_machine_everything_finds_the_key_by_itself(tmp_path: Path) -> None:
    made = member_credentials(home=tmp_path, env={})
    assert client_credentials(home=tmp_path, env={}) == made


def test_a_client_without_a_key_is_told_what_to_do_and_makes_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"phi3-broker token --client NAME.*PHI3_MESH_TOKEN"):
        client_credentials(home=tmp_path, env={})
    assert os.listdir(tmp_path) == []


def test_argument_before_environment_before_file_before_key(tmp_path: Path) -> None:
    own = find_or_make_member(tmp_path)
    tokens = {name: client_token(OTHER.mesh_public, KeyPair.new(), name) for name in ("argument", "env", "file")}
    file = tmp_path / "token"
    file.write_text(tokens["file"] + "\n")
    env = {"PHI3_MESH_TOKEN": tokens["env"], "PHI3_MESH_TOKEN_FILE": str(file)}

    assert client_credentials(tokens["argument"], home=tmp_path, env=env).name == "argument"
    assert client_credentials(home=tmp_path, env=env).name == "env"
    assert client_credentials(home=tmp_path, env=env | {"PHI3_MESH_TOKEN": ""}).name == "file"
    assert client_credentials(home=tmp_path, env={}) == own


def test_a_token_file_that_is_not_there_names_itself(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"PHI3_MESH_TOKEN_FILE \(/nowhere/x\): cannot be read"):
        client_credentials(home=tmp_path, env={"PHI3_MESH_TOKEN_FILE": "/nowhere/x"})


def test_keys_are_not_kept_in_a_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PHI3_MESH_HOME", raising=False)
    assert "cache" not in str(keys_folder()).lower()
    monkeypatch.setenv("PHI3_MESH_HOME", str(tmp_path / "home"))
    assert keys_folder() == tmp_path / "home" / "keys"


def test_a_token_need_not_stand_on_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(CLIENT_TOKEN)
    monkeypatch.setattr(sys, "stdin", io.StringIO(CLIENT_TOKEN + "\n"))
    assert token_argument("-").strip() == token_argument(f"@{file}") == token_argument(CLIENT_TOKEN) == CLIENT_TOKEN
    with pytest.raises(ConfigError, match="--join @/nowhere: cannot be read"):
        token_argument("@/nowhere")
