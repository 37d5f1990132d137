"""Join tokens: what they carry, and that a slip of the mouse is an error with a reason and without the secret."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.errors import ConfigError
from mesh.security.keys import MEMBER, Credentials, KeyPair, Secret, bytes_of
from mesh.security.tokens import client_token, member_token, parse_token

MESH = KeyPair.from_secret(bytes(range(32)))
ALICE = KeyPair.from_secret(bytes(range(32, 64)))
MEMBER_TOKEN = member_token(MESH)
CLIENT_TOKEN = client_token(MESH.public, ALICE, "alice")
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
SECRETS = (MESH.secret.reveal(), ALICE.secret.reveal())


def test_tokens_are_pinned() -> None:
    """They are pasted between hosts that may run different releases."""
    assert MEMBER_TOKEN == "phi3-member-1-AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh_nRh9k"
    assert CLIENT_TOKEN == (
        "phi3-client-1-j0DFrbaPJWJK5bIU6nZ6bslNgp09e14a0bpvPiE4KF8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0-P2FsaWNlahmBgg"
    )


def test_a_member_token_carries_the_mesh() -> None:
    found = parse_token(MEMBER_TOKEN)
    assert found == Credentials.of_member(MESH)
    assert found.is_member
    assert found.user == MEMBER


def test_a_client_token_carries_the_client_and_only_the_public_half_of_the_mesh() -> None:
    found = parse_token(CLIENT_TOKEN)
    assert found == Credentials(MESH.public, ALICE, "alice")
    assert not found.is_member
    assert found.user == "client:alice"
    assert found.fingerprint == Credentials.of_member(MESH).fingerprint


def test_line_breaks_of_a_mail_program_do_no_harm() -> None:
    assert parse_token(f"  {MEMBER_TOKEN[:30]}\r\n   {MEMBER_TOKEN[30:]}\n") == parse_token(MEMBER_TOKEN)


@given(st.sampled_from([MEMBER_TOKEN, CLIENT_TOKEN]), st.data())
def test_any_wrong_character_is_found(token: str, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(token) - 1))
    letter = data.draw(st.sampled_from([letter for letter in ALPHABET if letter != token[index]]))
    with pytest.raises(ConfigError):
        parse_token(token[:index] + letter + token[index + 1 :])


@pytest.mark.parametrize("token", [MEMBER_TOKEN, CLIENT_TOKEN])
def test_any_truncation_is_found(token: str) -> None:
    for length in range(len(token)):
        with pytest.raises(ConfigError):
            parse_token(token[:length])


@given(st.text(max_size=200))
def test_noise_is_an_error_that_names_its_source(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^PHI3_MESH_TOKEN: "):
        parse_token(text, "PHI3_MESH_TOKEN")


@given(st.sampled_from(["member", "client"]), st.text(ALPHABET, max_size=200))
def test_noise_that_begins_well_is_an_error_too(role: str, payload: str) -> None:
    with pytest.raises(ConfigError, match="damaged or incomplete"):
        parse_token(f"phi3-{role}-1-{payload}")


def test_a_role_cannot_be_changed() -> None:
    with pytest.raises(ConfigError, match="damaged"):
        parse_token(CLIENT_TOKEN.replace("client", "member"))


def test_a_later_version_says_so() -> None:
    with pytest.raises(ConfigError, match="version 2"):
        parse_token(MEMBER_TOKEN.replace("-1-", "-2-", 1))


@pytest.mark.parametrize("name", ["", "Alice", "../x", ".hidden", "a b", "a/b", "a\n", "é", "x" * 64, "-x"])
def test_names_that_are_no_file_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="client name"):
        client_token(MESH.public, ALICE, name)


def test_no_error_shows_any_part_of_the_token() -> None:
    for spoilt in (MEMBER_TOKEN[:-1] + "!", MEMBER_TOKEN[:-1], CLIENT_TOKEN[:-5], MEMBER_TOKEN.replace("-1-", "-9-")):
        try:
            parse_token(spoilt)
        except ConfigError as error:
            told = "".join(traceback.format_exception(error)) + repr(error)
            assert spoilt[20:40] not in told
        else:
            pytest.fail("no error")


def test_no_repr_shows_a_secret() -> None:
    for value in (MESH, parse_token(MEMBER_TOKEN), parse_token(CLIENT_TOKEN), MESH.secret):
        told = (
            f"{value} {value!r} {[value]!r} {value:>10}" if isinstance(value, str) else f"{value} {value!r} {[value]!r}"
        )
        if dataclasses.is_dataclass(value):
            told += repr(dataclasses.asdict(value))
        assert not any(secret in told for secret in SECRETS)
    assert repr(Secret("x")) == "<secret>"


def test_credentials_survive_a_copy_and_a_process() -> None:
    credentials = parse_token(CLIENT_TOKEN)
    assert copy.deepcopy(credentials) == credentials
    assert pickle.loads(pickle.dumps(credentials)) == credentials  # noqa: S301  # our own bytes: multiprocessing does it


def test_meshes_are_told_apart_by_name_and_by_key() -> None:
    ours, other = Credentials.of_member(MESH), Credentials.of_member(KeyPair.new())
    assert ours.mesh_id("default") == f"default-{ours.fingerprint}"
    assert len({ours.mesh_id("a"), ours.mesh_id("b"), other.mesh_id("a")}) == 3
    assert len(ours.fingerprint) == 16


@pytest.mark.parametrize("text", ["", "x" * 39, "~" * 40, "#" * 40, "é" * 40, "'" * 40])
def test_what_is_no_key_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="a key"):
        bytes_of(text)
