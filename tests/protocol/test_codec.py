"""Whatever bytes arrive, decoding gives a well-typed message or one of two errors, and bounded memory."""

from __future__ import annotations

import contextlib

import msgpack
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mesh import bodies
from mesh import messages as m
from mesh.codec import decode, encode
from mesh.errors import BadMessage, VersionMismatch
from tests.protocol.test_golden import ENTRIES, GOLDEN, GOLDEN_ENTRIES, GOLDEN_LATER_ENTRIES, LATER_ENTRIES

MSGPACK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def decodes_or_refuses(frame: bytes) -> None:
    with contextlib.suppress(BadMessage, VersionMismatch):
        assert decode(encode(decode(frame))) == decode(frame)


@given(st.binary())
def test_random_bytes_are_refused_or_decoded(frame: bytes) -> None:
    decodes_or_refuses(frame)


@given(st.sampled_from(sorted(m.MESSAGES)), st.lists(MSGPACK))
def test_any_fields_behind_a_good_tag_are_refused_or_decoded(tag: int, fields: list[object]) -> None:
    decodes_or_refuses(msgpack.packb([m.PROTOCOL_VERSION, tag, *fields]))


@given(st.sampled_from([bytes.fromhex(pinned) for _, pinned in GOLDEN]), st.data())
def test_a_golden_message_with_changed_bytes_is_refused_or_decoded(frame: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(frame) - 1))
    decodes_or_refuses(frame[:at] + data.draw(st.binary(max_size=4)) + frame[at + 1 :])


@given(st.binary() | st.builds(lambda value: b"\0" + msgpack.packb(value), MSGPACK))
def test_any_body_of_tokens_is_refused_or_decoded(frame: bytes) -> None:
    with contextlib.suppress(BadMessage):
        bodies.unpack_entries(frame)


@given(st.sampled_from([bytes.fromhex(pinned) for pinned in (GOLDEN_ENTRIES, GOLDEN_LATER_ENTRIES)]), st.data())
def test_golden_entries_with_changed_bytes_are_refused_or_decoded(frame: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(frame) - 1))
    with contextlib.suppress(BadMessage):
        bodies.unpack_entries(frame[:at] + data.draw(st.binary(max_size=4)) + frame[at + 1 :])


@pytest.mark.parametrize("pieces", ["ab", 2, {}, ["a"], ["a", 5], ["a", [256]], ["a", ["b"]], ["a", None]], ids=str)
def test_pieces_that_are_none_are_refused(pieces: object) -> None:
    with pytest.raises(BadMessage, match="tokens: an entry"):
        bodies.unpack_entries(bodies.pack([[1, 1, 0, [5, 6], "", None, None, pieces]]))


def test_an_older_peer_s_entries_are_read_and_a_newer_one_s_too() -> None:
    rows = bodies.unpack(bodies.pack_entries(LATER_ENTRIES))
    newer = [[*row[:6], [*row[6], "something new"], row[7], "something new"] for row in rows]
    assert bodies.unpack_entries(bodies.pack(newer)) == LATER_ENTRIES
    (row,) = rows
    (older,) = bodies.unpack_entries(bodies.pack([[*row[:6], row[6][:7]]]))
    assert (older.pieces, older.end.stop_string) == (None, "")
    assert all(len(row) == 7 for row in bodies.unpack(bodies.pack_entries(ENTRIES)))


def test_another_version_is_told_apart_from_garbage() -> None:
    with pytest.raises(VersionMismatch, match="protocol 2, this side 1"):
        decode(msgpack.packb([2, 1, "anything"]))


def test_an_unknown_tag_is_named() -> None:
    with pytest.raises(BadMessage, match="tag: 99 is unknown"):
        decode(msgpack.packb([1, 99]))


def test_a_wrong_field_is_named() -> None:
    with pytest.raises(BadMessage, match=r"Ping\.sequence: must be an integer"):
        decode(msgpack.packb([1, 2, "three"]))


def test_an_older_peer_may_leave_out_fields_and_a_newer_one_may_add_some() -> None:
    assert decode(msgpack.packb([1, 5, 9])) == m.Query(9, "status")
    assert decode(msgpack.packb([1, 5, 9, "status", "something new"])) == m.Query(9, "status")


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(BadMessage):
        decode(b"\x91" * 100_000 + b"\xc0")


def test_an_array_that_only_claims_to_be_long_allocates_nothing() -> None:
    with pytest.raises(BadMessage):
        decode(b"\xdd\xff\xff\xff\xff")


def test_extension_types_are_refused() -> None:
    with pytest.raises(BadMessage):
        decode(msgpack.packb([1, 2, msgpack.ExtType(5, b"x")]))
    with pytest.raises(BadMessage):
        bodies.unpack(b"\0" + msgpack.packb(msgpack.ExtType(5, b"x")))


def test_long_bodies_are_compressed_when_asked_and_only_then() -> None:
    value = {"prompt": "to be or not to be " * 1000}
    plain, packed = bodies.pack(value), bodies.pack(value, codec="zstd")
    assert len(packed) < len(plain) / 10
    assert bodies.unpack(packed) == bodies.unpack(plain) == value
    assert bodies.pack({"prompt": "short"}, codec="zstd")[0] == bodies.PLAIN


def test_a_body_that_decompresses_past_the_limit_is_refused_before_it_is_decompressed() -> None:
    bomb = bytes([bodies.ZSTD]) + zstandard.compress(bytes(64 << 20))
    assert len(bomb) < 10_000
    with pytest.raises(BadMessage, match="decompressed, at most"):
        bodies.unpack(bomb)


def test_a_compressed_body_that_hides_its_size_is_refused() -> None:
    stream = zstandard.ZstdCompressor().compressobj()
    hidden = bytes([bodies.ZSTD]) + stream.compress(b"x" * 5000) + stream.flush()
    with pytest.raises(BadMessage, match="states"):
        bodies.unpack(hidden)


def test_a_body_over_the_limit_is_refused_when_packed_and_when_unpacked() -> None:
    with pytest.raises(BadMessage, match="at most 100"):
        bodies.pack("x" * 200, max_bytes=100)
    with pytest.raises(BadMessage, match="at most 100"):
        bodies.unpack(bodies.pack("x" * 200), max_bytes=100)


def test_golden_entries_survive_compression() -> None:
    entries = bodies.unpack_entries(bytes.fromhex(GOLDEN_ENTRIES)) * 100
    assert bodies.unpack_entries(bodies.pack_entries(entries, codec="zstd")) == entries


def test_what_cannot_be_packed_is_an_error_of_that_body_alone() -> None:
    for value in ("\ud800", 1 << 70, object()):
        with pytest.raises(BadMessage, match="cannot be packed"):
            bodies.pack(value)
