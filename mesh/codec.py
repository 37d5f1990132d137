"""Header messages to and from bytes: `[version, tag, field, …]` in MessagePack, checked field by field.

Whatever arrives, `decode` returns a well-typed message or raises BadMessage or VersionMismatch; nothing else escapes.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
import typing
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from mesh.errors import BadMessage, VersionMismatch
from mesh.messages import MESSAGES, PROTOCOL_VERSION, Message
from mesh.shape import check_shape, is_harmless

MAX_HEADER_BYTES = 1 << 20
MAX_ITEMS = 65_536  # of one array in a header
MAX_PARTS = 4_096  # of one array of arrays with names, such as the heads in a Submit: each costs some microseconds
MAX_TEXT = 4_096  # bytes of one string in a header
_MAX_VALUES = 2 * MAX_ITEMS  # in a header, all levels together
_FEW_BYTES = 48
_INT_END, _PRIORITY_END, _FLOAT_END = 1 << 63, 1 << 31, 1e18

# For people: how long it is depends on what it tells of, such as a parameter's name. It is cut to what may travel.
_FREE_TEXT = ("text", "reason", "note")

_Check = Callable[[Any, str], Any]
_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


def encode(message: Message) -> bytes:
    """The header frame of a message."""
    frame: bytes = _pack((PROTOCOL_VERSION, message.tag, *_PLAIN[type(message)](message)))
    return frame


def decode(frame: bytes) -> Message:
    """The message in a header frame.

    Raises: BadMessage naming the field; VersionMismatch when the peer speaks another version.
    """
    values = _unpack(frame)
    if len(values) < 2 or type(values[0]) is not int or type(values[1]) is not int:
        raise BadMessage("header", "must be an array that starts with version and tag")
    if values[0] != PROTOCOL_VERSION:
        raise VersionMismatch(f"peer speaks protocol {values[0]}, this side {PROTOCOL_VERSION}: upgrade the older")
    build = _BUILDERS.get(values[1])
    if build is None:
        raise BadMessage("tag", f"{values[1]} is unknown")
    message: Message = build(values[2:], "")
    return message


def _unpack(frame: bytes) -> Sequence[Any]:
    if len(frame) > _FEW_BYTES:  # fewer hold no more arrays than is_harmless lets through
        if len(frame) > MAX_HEADER_BYTES:
            raise BadMessage("header", f"{len(frame)} bytes, at most {MAX_HEADER_BYTES}")
        if not is_harmless(frame, MAX_HEADER_BYTES):
            check_shape(frame, "header", max_items=_MAX_VALUES)
    try:
        values = msgpack.unpackb(
            frame,
            use_list=False,
            max_array_len=MAX_ITEMS,
            max_str_len=MAX_TEXT,
            max_bin_len=0,
            max_map_len=0,
            max_ext_len=0,
        )
    except Exception as error:  # msgpack raises ValueError and several of its own; all mean the same here
        raise BadMessage("header", f"not MessagePack within the limits ({type(error).__name__})") from None
    if type(values) is not tuple:
        raise BadMessage("header", "must be an array")
    return values


# --- checkers, built once from the annotations ------------------------------------------------------------------------


def _check_int(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value < _INT_END:
        raise BadMessage(where, "must be an integer from 0 to 2**63 - 1")
    return value


def _check_priority(value: Any, where: str) -> int:
    if type(value) is not int or not -_PRIORITY_END <= value < _PRIORITY_END:
        raise BadMessage(where, "must be a 32-bit integer")
    return value


def _check_float(value: Any, where: str) -> float:
    if type(value) not in (int, float) or not -_FLOAT_END <= value < _FLOAT_END:  # the comparison is False for NaN too
        raise BadMessage(where, "must be a finite number")
    return float(value)


def _check_str(value: Any, where: str) -> str:
    if type(value) is not str:
        raise BadMessage(where, "must be text")
    return value


def _check_bool(value: Any, where: str) -> bool:
    if type(value) is not bool:
        raise BadMessage(where, "must be true or false")
    return value


_SCALARS: dict[Any, _Check] = {int: _check_int, float: _check_float, str: _check_str, bool: _check_bool}


def _field_checker(name: str, annotation: Any) -> _Check:
    return _check_priority if name == "priority" else _checker(annotation)  # the one signed field


def _checker(annotation: Any) -> _Check:
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if _is_part(annotation):
        return _builder(annotation)
    args = typing.get_args(annotation)
    if typing.get_origin(annotation) is not tuple:
        raise TypeError(f"no wire form for {annotation}")
    if len(args) == 2 and args[1] is Ellipsis:
        return _sequence_of(_checker(args[0]), _shortcut(args[0]), MAX_PARTS if _is_part(args[0]) else MAX_ITEMS)
    return _exactly([_checker(arg) for arg in args])


def _is_part(annotation: Any) -> bool:
    return dataclasses.is_dataclass(annotation) or hasattr(annotation, "_fields")


def _fields_of(cls: type) -> tuple[dict[str, Any], int]:
    """The names and types of a part's or a message's fields, in order, and how many of them have no default."""
    hints = typing.get_type_hints(cls)
    if hasattr(cls, "_fields"):
        return {name: hints[name] for name in cls._fields}, len(cls._fields) - len(cls._field_defaults)  # type: ignore[attr-defined]
    fields = dataclasses.fields(cls)
    return {f.name: hints[f.name] for f in fields}, sum(f.default is dataclasses.MISSING for f in fields)


def _sequence_of(check: _Check, shortcut: _Shortcut, max_items: int) -> _Check:
    def sequence(value: Any, where: str) -> tuple[Any, ...]:
        if type(value) is not tuple:
            raise BadMessage(where, "must be an array")
        if len(value) > max_items:
            raise BadMessage(where, f"{len(value)} of them, at most {max_items}")
        return value if shortcut(value) else tuple([check(item, where) for item in value])

    return sequence


def _exactly(checks: list[_Check]) -> _Check:
    def fixed(value: Any, where: str) -> tuple[Any, ...]:
        if type(value) is not tuple or len(value) != len(checks):
            raise BadMessage(where, f"must be an array of {len(checks)}")
        return tuple([check(item, where) for check, item in zip(checks, value, strict=True)])

    return fixed


def _builder(cls: type) -> _Check:
    """A positional decoder. Missing trailing fields take their defaults (an older peer); surplus ones are ignored (a
    newer one)."""
    fields, required = _fields_of(cls)
    checks = [(f"{cls.__name__}.{name}", _field_checker(name, hint)) for name, hint in fields.items()]
    usual_types = tuple([hint if hint in _SCALARS else tuple for hint in fields.values()])
    limits = [(i, *_limits(name, hint)) for i, (name, hint) in enumerate(fields.items()) if hint in (int, float)]
    arrays = [(i, *checks[i]) for i, hint in enumerate(fields.values()) if hint not in _SCALARS]
    new: Any = tuple.__new__
    make = functools.partial(new, cls) if issubclass(cls, tuple) else lambda values: cls(*values)

    def build(values: Any, where: str) -> Any:
        # What a peer of this version sends, looked at with few calls: a third of the time (measured on a Submit of 64).
        # All else goes through the checkers one by one, which say what is wrong.
        if type(values) is tuple and tuple(map(type, values)) == usual_types:
            for index, lowest, end in limits:
                if not lowest <= values[index] < end:  # False for NaN too
                    break
            else:
                if arrays:
                    values = list(values)
                    for index, name, check in arrays:
                        values[index] = check(values[index], name)
                return make(values)
        if type(values) is not tuple or len(values) < required:
            raise BadMessage(where or cls.__name__, f"must be an array of at least {required}")
        return cls(*[check(value, name) for (name, check), value in zip(checks, values, strict=False)])

    return build


def _limits(name: str, hint: type) -> tuple[float, float]:
    if hint is float:
        return -_FLOAT_END, _FLOAT_END
    return (-_PRIORITY_END, _PRIORITY_END) if name == "priority" else (0, _INT_END)


# --- shortcuts for long arrays ----------------------------------------------------------------------------------------
# Each looks at a whole array with a few calls into C and says whether it is what it should be. If not, the checkers
# look item by item, and say what is wrong.

_Shortcut = Callable[[tuple[Any, ...]], bool]


def _shortcut(item: Any) -> _Shortcut:
    if item is int:
        return _are_ints
    return _are_pairs if item == tuple[int, int] else lambda items: not items


def _are_ints(items: tuple[Any, ...]) -> bool:
    return not items or (set(map(type, items)) == {int} and min(items) >= 0 and max(items) < _INT_END)


def _are_pairs(pairs: tuple[Any, ...]) -> bool:
    if not pairs:
        return True
    if set(map(type, pairs)) != {tuple} or set(map(len, pairs)) != {2}:
        return False
    return _are_ints(tuple(itertools.chain.from_iterable(pairs)))


# --- and back: dataclasses become arrays ------------------------------------------------------------------------------


def _flattener(cls: type) -> Callable[[Any], Sequence[Any]]:
    """The fields of a dataclass in order. Only those that hold dataclasses themselves cost a call each; a NamedTuple is
    an array already."""
    hints, _ = _fields_of(cls)
    names = list(hints)
    if not names:
        return lambda value: ()
    pick = operator.attrgetter(*names) if len(names) > 1 else _single(names[0])
    nested = [(index, _nested(hints[name])) for index, name in enumerate(names)]
    inner = [(index, *found) for index, found in nested if found is not None]
    inner += [(index, _cut, False) for index, name in enumerate(names) if name in _FREE_TEXT]
    if not inner:
        return pick

    def flatten(value: Any) -> list[Any]:
        values = list(pick(value))
        for index, flat, is_many in inner:
            values[index] = [flat(item) for item in values[index]] if is_many else flat(values[index])
        return values

    return flatten


def _cut(text: str) -> str:
    """To MAX_TEXT bytes: the other side would take a longer one for a broken message, and us for a broken peer."""
    if len(text) * 4 <= MAX_TEXT:
        return text
    encoded = text.encode(errors="replace")
    if len(encoded) <= MAX_TEXT:
        return text
    return encoded[: MAX_TEXT - 3].decode(errors="ignore") + "…"


def _single(name: str) -> Callable[[Any], tuple[Any]]:
    get = operator.attrgetter(name)
    return lambda value: (get(value),)


def _nested(annotation: Any) -> tuple[Callable[[Any], Sequence[Any]], bool] | None:
    """How to flatten what a field holds, and whether that is many; None for what MessagePack knows itself."""
    if dataclasses.is_dataclass(annotation):
        return _flattener(typing.cast(type, annotation)), False
    args = typing.get_args(annotation)
    if args and dataclasses.is_dataclass(args[0]):
        return _flattener(typing.cast(type, args[0])), True
    return None


_PLAIN: dict[type, Callable[[Any], Sequence[Any]]] = {cls: _flattener(cls) for cls in MESSAGES.values()}
_BUILDERS: dict[int, _Check] = {tag: _builder(cls) for tag, cls in MESSAGES.items()}
