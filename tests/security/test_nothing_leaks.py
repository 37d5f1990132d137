"""Prompts, answers, tokens and keys: not in a log at its most talkative, not in status, not in what mDNS says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mesh import Client, InvalidRequest, PromptTooLong
from mesh.discovery.records import Advert
from mesh.security.loading import member_credentials
from mesh.security.tokens import parse_token
from tests.support.processes import Mesh, wait_for_nodes

WORDS = "the-orange-submarine-sings"


def phi3_broker(*arguments: str) -> str:
    command = [sys.executable, "-m", "broker.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def test_a_whole_session_at_log_level_debug_tells_no_secret(mesh: Mesh, home: Path) -> None:
    node = mesh.node("n", "--log-level", "debug", "--direct")
    broker = mesh.broker("b", node, options=("--log-level", "debug"))
    token = phi3_broker("token", "--client", "notebook")
    told = []
    for address in (broker.address, node.address):
        with Client(address, token=token) as client:
            wait_for_nodes(client, 1)
            answer = client.generate(WORDS, max_tokens=12).text
            chat = [{"role": "user", "content": WORDS}]
            list(client.stream(messages=chat, max_tokens=12))
            with pytest.raises(PromptTooLong) as too_long:
                client.generate(WORDS * 1000, max_tokens=12)
            with pytest.raises(InvalidRequest) as invalid:
                client.generate(WORDS, max_tokens=12, stop=[""])
            stream = client.stream(WORDS, max_tokens=3000)
            next(stream)
            stream.close()
            told += [str(too_long.value), str(invalid.value), client.status().model_dump_json()]
    phi3_broker("revoke", "notebook")
    mesh.stop()
    told += [member.log_text() for member in mesh.members]
    told.append(phi3_broker("clients"))
    everything = "\n".join(told)
    assert "client_joined" in everything
    secrets = {
        "the words of a prompt": WORDS,
        "an answer": answer,
        "a token": token,
        "the key of a client": parse_token(token).pair.secret.reveal(),
        "the key of the mesh": member_credentials().pair.secret.reveal(),
    }
    assert [what for what, text in secrets.items() if text in everything] == []


def test_what_mdns_says_has_the_fingerprint_and_nothing_secret(home: Path) -> None:
    credentials = member_credentials()
    mesh = credentials.mesh_id("default")
    advert = Advert(kind="node", instance_id="id", epoch="1", addresses=("tcp://127.0.0.1:1",), mesh=mesh, version=1)
    said = repr(advert) + repr(advert.to_txt()) + advert.service_name
    assert credentials.fingerprint in said
    assert credentials.pair.secret.reveal() not in said
    assert credentials.mesh_public not in said
