"""Tensors of KServe v2: in JSON, or in bytes behind it (Triton's binary extension). Pure; nothing here needs numpy."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from broker.gateway.problems import Problem, invalid

_FORMATS = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "FP32": "f", "FP64": "d",
}  # fmt: skip
_KINDS: dict[str, tuple[type, ...]] = {"BYTES": (str,), "BOOL": (bool,), "FP32": (int, float), "FP64": (int, float)}
_LENGTH = struct.Struct("<I")
_MAX_ELEMENTS = 4096


@dataclass(frozen=True, slots=True)
class Tensor:
    """`values` is flat; BYTES are text."""

    name: str
    shape: tuple[int, ...]
    values: tuple[Any, ...]


def tensors_of(inputs: Any, blob: bytes) -> list[Tensor]:
    """The inputs of a request; `blob` is what follows its JSON. Raises Problem 400."""
    if not isinstance(inputs, list) or not inputs:
        raise invalid("inputs", "must be a list of tensors")
    tensors = []
    offset = 0
    for number, told in enumerate(inputs):
        where = f"inputs[{number}]"
        if not isinstance(told, Mapping):
            raise invalid(where, "must be an object with name, datatype, shape and data")
        size = _binary_size(told, where)
        if size is None:
            tensors.append(_tensor(told, told.get("data"), where))
            continue
        if offset + size > len(blob):
            raise invalid(where, "binary_data_size goes past the end of the request")
        tensors.append(_tensor(told, blob[offset : offset + size], where))
        offset += size
    if offset != len(blob):
        raise Problem(400, f"{len(blob) - offset} bytes follow the last tensor", code="invalid_value")
    return tensors


def pack_texts(texts: list[str]) -> bytes:
    """A BYTES tensor: each element with its length before it."""
    encoded = [text.encode() for text in texts]
    return b"".join(part for text in encoded for part in (_LENGTH.pack(len(text)), text))


def _binary_size(told: Mapping[str, Any], where: str) -> int | None:
    parameters = told.get("parameters")
    size = parameters.get("binary_data_size") if isinstance(parameters, Mapping) else None
    if size is not None and (type(size) is not int or size < 0):
        raise invalid(f"{where}.parameters.binary_data_size", "must be a whole number")
    return size


def _tensor(told: Mapping[str, Any], data: Any, where: str) -> Tensor:
    name, datatype, shape = told.get("name"), told.get("datatype"), told.get("shape")
    if not isinstance(name, str):
        raise invalid(f"{where}.name", "must be text")
    if not isinstance(datatype, str) or (datatype != "BYTES" and datatype not in _FORMATS):
        raise invalid(f"{where}.datatype", f"must be BYTES or one of {', '.join(_FORMATS)}")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise invalid(f"{where}.shape", "must be a list of whole numbers")
    count = math.prod(shape)
    if count > _MAX_ELEMENTS:
        raise invalid(f"{where}.shape", f"holds {count} elements, at most {_MAX_ELEMENTS}")
    if isinstance(data, bytes):
        values = _unpacked(data, datatype, where)
    elif isinstance(data, list):
        kinds = _KINDS.get(datatype, (int,))
        values = tuple(_flat(data, where))
        if not all(isinstance(value, kinds) and (bool in kinds or type(value) is not bool) for value in values):
            raise invalid(f"{where}.data", f"has an element that is no {datatype}")
    else:
        raise invalid(f"{where}.data", "must be a list")
    if len(values) != count:
        raise invalid(f"{where}.data", f"has {len(values)} elements, the shape {shape} wants {count}")
    return Tensor(name, tuple(shape), values)


def _flat(data: list[Any], where: str, depth: int = 0) -> Iterator[Any]:
    """Nested lists are allowed: their shape is the stated one."""
    if depth > 8:
        raise invalid(f"{where}.data", "is nested too deeply")
    for item in data:
        if isinstance(item, list):
            yield from _flat(item, where, depth + 1)
        else:
            yield item


def _unpacked(data: bytes, datatype: str, where: str) -> tuple[Any, ...]:
    if datatype == "BYTES":
        return tuple(_texts(data, where))
    size = struct.calcsize(_FORMATS[datatype])
    if len(data) % size:
        raise invalid(f"{where}.data", f"{len(data)} bytes are no whole number of {datatype}")
    return struct.unpack(f"<{len(data) // size}{_FORMATS[datatype]}", data)


def _texts(data: bytes, where: str) -> Iterator[str]:
    offset = 0
    while offset < len(data):
        end = offset + _LENGTH.size
        if end > len(data):
            raise invalid(f"{where}.data", "ends within the length of an element")
        offset, end = end, end + _LENGTH.unpack_from(data, offset)[0]
        if end > len(data):
            raise invalid(f"{where}.data", "ends within an element")
        try:
            yield data[offset:end].decode()
        except UnicodeDecodeError:
            raise invalid(f"{where}.data", "has an element that is not UTF-8 text") from None
        offset = end
