"""The bytes of every message, pinned. A change here is a change of the protocol: PROTOCOL.md and the version go along."""

# ruff: noqa: E501

from __future__ import annotations

import pytest

from mesh import bodies
from mesh import messages as m
from mesh.bodies import End, TokenEntry
from mesh.codec import decode, encode

GOLDEN: list[tuple[m.Message, str]] = [
    (
        m.Hello(role="client", name="notebook", epoch=7, mesh="default", codecs=("zstd",)),
        "970101a6636c69656e74a86e6f7465626f6f6b07a764656661756c7491a47a737464",
    ),
    (m.Ping(sequence=3), "93010203"),
    (
        m.Submit(
            requests=(
                m.RequestHead(
                    request_id=1,
                    attempt=1,
                    model="demo",
                    prompt_tokens=12,
                    max_tokens=256,
                    affinity="user-1",
                    priority=-5,
                    deadline_s=30.0,
                    stream=True,
                ),
                m.RequestHead(
                    request_id=2,
                    attempt=1,
                    model="",
                    prompt_tokens=0,
                    max_tokens=0,
                    affinity="",
                    priority=0,
                    deadline_s=0.0,
                    stream=True,
                ),
            ),
            codecs=("zstd",),
        ),
        "94010392990101a464656d6f0ccd0100a6757365722d31fbcb403e000000000000c3990201a00000a000cb0000000000000000c391a47a737464",
    ),
    (m.Cancel(request_ids=(1, 2)), "930104920102"),
    (m.Query(query_id=9, what="status"), "94010509a6737461747573"),
    (m.Admin(query_id=10, action="drain", target="gpu-1"), "9501060aa5647261696ea56770752d31"),
    (m.Bye(), "920107"),
    (
        m.Welcome(
            kind="node",
            name="gpu-1",
            node_id="5f3a",
            epoch=8,
            mesh="default",
            heartbeat_s=0.5,
            liveness=3,
            max_batch=256,
            max_body_bytes=16777216,
            codecs=("zstd",),
            models=(
                m.ModelLoad(name="demo", max_model_len=2048, slots_total=16, num_running=3, num_waiting=1, num_yours=2),
            ),
        ),
        "9d0110a46e6f6465a56770752d31a43566336108a764656661756c74cb3fe000000000000003cd0100ce0100000091a47a7374649196a464656d6fcd080010030102",
    ),
    (
        m.Pong(
            sequence=3,
            epoch=8,
            state="ready",
            num_steps=1000,
            last_step_age_s=0.01,
            models=(
                m.ModelLoad(name="demo", max_model_len=2048, slots_total=16, num_running=3, num_waiting=1, num_yours=2),
            ),
            facts=m.NodeFacts(
                engine="transformers",
                device="cpu",
                dtype="float32",
                version="0.1.0",
                tokens_per_s=41.5,
                ttft_p50_s=0.25,
                ttft_p99_s=0.5,
                memory_used_bytes=1,
                memory_total_bytes=2,
                busy_fraction=0.75,
                uptime_s=60.0,
                note="",
                itl_p50_s=0.02,
                itl_p99_s=0.03,
                target_itl_s=0.05,
                devices=(m.DeviceFacts("GPU", 0.5, 1, 2, 61.0, 300.0),),
                counters=(("finished", 3),),
            ),
        ),
        "9901110308a57265616479cd03e8cb3f847ae147ae147b9196a464656d6fcd080010030102dc0011ac7472616e73666f726d657273a3637075a7666c6f61743332a5302e312e30cb4044c00000000000cb3fd0000000000000cb3fe00000000000000102cb3fe8000000000000cb404e000000000000a0cb3f947ae147ae147bcb3f9eb851eb851eb8cb3fa999999999999a9196a3475055cb3fe00000000000000102cb404e800000000000cb4072c000000000009192a866696e697368656403",
    ),
    (m.Accepted(request_ids=(1, 2)), "930112920102"),
    (m.Tokens(finished=((1, 1),), num_tokens=4), "9401139192010104"),
    (
        m.Rejected(request_id=2, attempt=1, code="prompt_too_long", text="too long", retry_after_s=0.0, node="gpu-1"),
        "9801140201af70726f6d70745f746f6f5f6c6f6e67a8746f6f206c6f6e67cb0000000000000000a56770752d31",
    ),
    (
        m.Lost(requests=((1, 1),), node="gpu-1", reason="connection lost"),
        "95011591920101a56770752d31af636f6e6e656374696f6e206c6f7374",
    ),
    (
        m.Failed(request_id=1, attempt=1, code="engine_failed", text="out of memory", node="gpu-1"),
        "9701160101ad656e67696e655f6661696c6564ad6f7574206f66206d656d6f7279a56770752d31",
    ),
    (m.Report(query_id=9), "93011709"),
    (m.Done(query_id=10, ok=True, text="drained"), "9501180ac3a7647261696e6564"),
    (
        m.Refused(code="wrong_mesh", text="this is mesh 'a'"),
        "940119aa77726f6e675f6d657368b074686973206973206d65736820276127",
    ),
]

ENTRIES = [
    TokenEntry(1, 1, 0, (5, 6), " Paris", (-0.5, -0.25), End("stop", 12, 2, 0, "gpu-1", "demo", 0.25)),
    TokenEntry(2, 1, 3, (7,), ""),
]
# What was appended later: the pieces, "é" and the second byte of one, and the stop string.
LATER_ENTRIES = [
    TokenEntry(
        1, 1, 0, (5, 6), "é", (-0.5, -0.25), End("stop", 12, 2, 0, "n", "m", 0.25, "END"), ("é".encode(), b"\xa9")
    ),
]
GOLDEN_ENTRIES = "009297010100920506a620506172697392cbbfe0000000000000cbbfd000000000000097a473746f700c0200a56770752d31a464656d6fcb3fd0000000000000970201039107a0c0c0"
GOLDEN_LATER_ENTRIES = "009198010100920506a2c3a992cbbfe0000000000000cbbfd000000000000098a473746f700c0200a16ea16dcb3fd0000000000000a3454e4492a2c3a991cca9"
GOLDEN_REQUEST = "0082a670726f6d7074a26869aa6d61785f746f6b656e7304"


@pytest.mark.parametrize(("message", "hexadecimal"), GOLDEN, ids=lambda value: type(value).__name__)
def test_each_message_has_the_bytes_that_the_contract_pins(message: m.Message, hexadecimal: str) -> None:
    assert encode(message).hex() == hexadecimal
    assert decode(bytes.fromhex(hexadecimal)) == message


def test_every_message_of_the_protocol_is_pinned() -> None:
    assert {type(message) for message, _ in GOLDEN} == set(m.MESSAGES.values())


def test_the_body_of_tokens_has_the_bytes_that_the_contract_pins() -> None:
    assert bodies.pack_entries(ENTRIES).hex() == GOLDEN_ENTRIES
    assert bodies.unpack_entries(bytes.fromhex(GOLDEN_ENTRIES)) == ENTRIES
    assert bodies.pack_entries(LATER_ENTRIES).hex() == GOLDEN_LATER_ENTRIES
    assert bodies.unpack_entries(bytes.fromhex(GOLDEN_LATER_ENTRIES)) == LATER_ENTRIES


def test_the_body_of_a_request_has_the_bytes_that_the_contract_pins() -> None:
    assert bodies.pack({"prompt": "hi", "max_tokens": 4}).hex() == GOLDEN_REQUEST
