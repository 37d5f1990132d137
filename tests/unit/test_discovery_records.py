"""Records from the network are read with suspicion, and written so that any DNS responder can carry them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.discovery.records import Advert, BadRecord, advert_from_txt

NODE = Advert(
    kind="node",
    instance_id="gpu-1",
    epoch="5f3a9c",
    addresses=("tcp://192.168.1.7:5560", "tcp://[2001:db8::7]:5560"),
    mesh="team",
    version=1,
    models=("microsoft/Phi-3-mini-4k-instruct",),
)


def wire(advert: Advert, **changes: bytes | None) -> dict[bytes, bytes | None]:
    txt: dict[bytes, bytes | None] = {key.encode(): value.encode() for key, value in advert.to_txt().items()}
    return txt | {key.encode(): value for key, value in changes.items()}


def test_a_record_comes_back_as_it_was() -> None:
    assert advert_from_txt("node", wire(NODE)) == NODE


def test_properties_of_a_newer_version_are_ignored() -> None:
    assert advert_from_txt("node", wire(NODE, new=b"\xff")) == NODE


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"id": None}, "missing_key"),
        ({"mesh": b"\xff\xfe"}, "bad_text"),
        ({"id": b""}, "bad_text"),
        ({"id": b"a\x1b[2J"}, "bad_text"),
        ({"epoch": b"x" * 201}, "too_long"),
        ({"v": b"one"}, "bad_version"),
        ({"v": "١".encode()}, "bad_version"),
        ({"a0": b"tcp://10.0.0.1:0"}, "bad_address"),
        ({"a0": b"tcp://*:5560"}, "bad_address"),
        ({"a1": b"ipc:///tmp/x"}, "bad_address"),
    ],
)
def test_a_hostile_record_is_refused_with_a_reason_to_count(changes: dict[str, bytes | None], reason: str) -> None:
    with pytest.raises(BadRecord) as raised:
        advert_from_txt("node", wire(NODE, **changes))
    assert raised.value.reason == reason


def test_a_record_without_addresses_is_refused() -> None:
    with pytest.raises(BadRecord, match="no_address"):
        advert_from_txt("node", wire(replace(NODE, addresses=())))


@given(st.dictionaries(st.binary(max_size=5) | st.sampled_from([b"v", b"id", b"a0"]), st.none() | st.binary()))
def test_no_record_breaks_the_reader(txt: dict[bytes, bytes | None]) -> None:
    try:
        advert = advert_from_txt("broker", txt)
    except BadRecord:
        return
    assert advert.addresses


def test_many_models_are_cut_so_that_the_record_fits_a_packet() -> None:
    txt = replace(NODE, models=tuple(f"model-{index}-" + "x" * 100 for index in range(100))).to_txt()

    assert sum(len(key) + len(value) + 2 for key, value in txt.items()) < 1000


def test_two_nodes_with_one_name_have_different_instance_names() -> None:
    first, second = NODE, replace(NODE, epoch="77aa01")

    assert first.instance_name == "gpu-1-5f3a9c"
    assert first.instance_name != second.instance_name


@given(st.text(min_size=1, max_size=60), st.text(min_size=1, max_size=60))
def test_an_instance_name_fits_a_dns_label(instance_id: str, epoch: str) -> None:
    assert len(replace(NODE, instance_id=instance_id, epoch=epoch).instance_name.encode()) <= 63
