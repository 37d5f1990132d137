"""How large and how deep a MessagePack value is, found out before anything of it is built.

A library that builds values allocates what an array claims to hold, one level after another, and an empty map takes
eighty times the memory of its one byte. So a few kilobytes from a stranger may cost as much as many messages of ours.
"""

from __future__ import annotations

from mesh.errors import BadMessage

MAX_DEPTH = 8  # containers in containers; the deepest message of the protocol has five
MAX_ITEMS = 1 << 20  # values of all kinds together, which is room for the longest `resume`
MAX_CONTAINERS = 1 << 16  # of these, arrays and maps

_FEW_BYTES = 16 << 10
_FEW_ARRAYS = 16

# By first byte: what follows it in one piece. Those missing here have a length of their own.
_PAYLOAD_BYTES = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4,
    0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
_LENGTH_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_CONTAINERS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}  # bytes of the count; values per entry
_EXTENSIONS = (0xC7, 0xC8, 0xC9)


def is_harmless(payload: bytes, few_bytes: int = _FEW_BYTES) -> bool:
    """Whether it cannot do harm for want of bytes, at the price of three looks: most messages are like that."""
    return len(payload) <= few_bytes and payload.count(b"\xdc") + payload.count(b"\xdd") <= _FEW_ARRAYS


def check_shape(
    payload: bytes, where: str, *, max_items: int = MAX_ITEMS, max_containers: int = MAX_CONTAINERS
) -> None:
    """Raises BadMessage when the value has too many items or levels. Whether it is whole and valid is for the library
    that builds it; here, what is cut off just ends."""
    at, size = 0, len(payload)
    num_items = num_containers = 0
    left, outer = 1, list[int]()  # values still to come here, and in the containers around
    while True:
        while not left:
            if not outer:
                return
            left = outer.pop()
        if at >= size:
            return
        left -= 1
        num_items += 1
        if num_items > max_items:
            raise BadMessage(where, f"more than {max_items} values")
        lead = payload[at]
        at += 1
        if lead < 0x80 or lead >= 0xE0:
            continue
        if lead < 0xA0:
            count = lead & 15 if lead >= 0x90 else 2 * (lead & 15)
        elif lead < 0xC0:
            at += lead & 31
            continue
        elif lead in _CONTAINERS:
            count_bytes, per_entry = _CONTAINERS[lead]
            count = per_entry * int.from_bytes(payload[at : at + count_bytes])
            at += count_bytes
        else:
            at += _scalar_bytes(payload, lead, at)
            continue
        num_containers += 1
        if num_containers > max_containers:
            raise BadMessage(where, f"more than {max_containers} arrays and maps")
        outer.append(left)
        left = count
        if len(outer) > MAX_DEPTH:
            raise BadMessage(where, f"nested more than {MAX_DEPTH} deep")


def _scalar_bytes(payload: bytes, lead: int, at: int) -> int:
    length_bytes = _LENGTH_BYTES.get(lead)
    if length_bytes is None:
        return _PAYLOAD_BYTES.get(lead, 0)
    length = int.from_bytes(payload[at : at + length_bytes])
    return length_bytes + length + (1 if lead in _EXTENSIONS else 0)  # an extension has a type besides
