"""Options of a command, from a frozen dataclass: flag > environment > configuration file > default.

Each field is one option; `option()` gives its help. The dataclass checks its own values in `__post_init__`, with
ConfigError. Every error is one line that names where the wrong value came from.
"""

from __future__ import annotations

import argparse
import difflib
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from mesh.errors import ConfigError

_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Options = TypeVar("Options", bound=_Dataclass)


def option(
    default: Any = MISSING,
    *,
    help: str,
    flag: str = "",
    env: str = "",
    choices: Sequence[str] = (),
    words: Mapping[str, Any] | None = None,
    metavar: str = "",
) -> Any:
    """A dataclass field with help. Without a default it must be given; `flag` and `env` replace the derived names.
    `words` are said instead of values that say nothing by themselves: "auto" for 0."""
    told = {"help": help, "flag": flag, "env": env, "choices": tuple(choices), "words": words or {}, "metavar": metavar}
    return field(default=default, metadata=told)


def load_options(
    cls: type[Options],
    argv: Sequence[str],
    prog: str,
    env: Mapping[str, str],
    description: str = "",
    *,
    env_prefix: str = "",
) -> Options:
    """Raises ConfigError. `--help` prints and raises SystemExit(0), as argparse does.

    A field `max_tokens` of `phi3-node` is `--max-tokens`, `PHI3_NODE_MAX_TOKENS`, and `max_tokens` in the file.
    `env_prefix` is for a subcommand that shares no variables with the others of its program.
    """
    prefix = env_prefix or prog.split()[0].upper().replace("-", "_") + "_"
    options = [_Option(described, kind, prefix) for described, kind in _typed_fields(cls)]
    given = _parser(options, prog, prefix, description).parse_args(argv)
    config = given.config or env.get(f"{prefix}CONFIG")
    in_file = _read_file(Path(config), [one.name for one in options]) if config else {}
    values = {}
    for one in options:
        if (from_flag := getattr(given, one.name)) is not None:
            values[one.name] = one.convert(from_flag, one.flag)
        elif (from_env := env.get(one.env)) is not None:
            values[one.name] = one.convert(from_env, f"environment variable {one.env}")
        elif one.name in in_file:
            values[one.name] = one.convert(in_file[one.name], f"{config}: {one.name}")
        elif one.is_required:
            raise ConfigError(f"{one.flag} is required (or set {one.env})")
    return cls(**values)


def _typed_fields(cls: type[_Dataclass]) -> list[tuple[Field[Any], Any]]:
    hints = get_type_hints(cls)
    return [(described, hints[described.name]) for described in fields(cls)]


class _Option:
    """One field with its names, able to read a value from any source."""

    def __init__(self, described: Field[Any], kind: Any, env_prefix: str) -> None:
        told = described.metadata
        self.name = described.name
        self.flag: str = told.get("flag") or "--" + self.name.replace("_", "-")
        self.env: str = told.get("env") or env_prefix + self.name.upper()
        self.choices: tuple[str, ...] = told.get("choices", ())
        self.words: Mapping[str, Any] = told.get("words", {})
        self.is_required = described.default is MISSING and described.default_factory is MISSING
        default = described.default_factory() if described.default_factory is not MISSING else described.default
        spoken = {value: word for word, value in self.words.items()}
        shown = ",".join(default) if isinstance(default, tuple) else spoken.get(default, default)
        facts = [] if self.is_required or shown in (None, "") else [f"default: {shown}"]
        self.help = f"{told.get('help', '')} ({'; '.join([*facts, f'env: {self.env}'])})".replace("%", "%%")
        if get_origin(kind) in (Union, types.UnionType):  # X | None
            kind = next(inner for inner in get_args(kind) if inner is not type(None))
        self.kind = kind
        self.is_list = get_origin(kind) is tuple
        self.metavar: str = told.get("metavar") or ("LIST" if self.is_list else kind.__name__.upper())

    def convert(self, value: Any, source: str) -> Any:
        """Text from a flag or the environment, or a TOML value. Raises ConfigError."""
        if self.is_list:
            parts = value if isinstance(value, list) else [value]
            if not all(isinstance(part, str) for part in parts):
                raise ConfigError(f"{source}: expected a list of strings, not {value!r}")
            return tuple(item.strip() for part in parts for item in part.split(",") if item.strip())
        if isinstance(value, str) and value in self.words:
            return self.words[value]
        if self.choices and value not in self.choices:
            raise ConfigError(
                f"{source}: {value!r} is none of {', '.join(self.choices)}{_nearest(value, self.choices)}"
            )
        try:
            return self._scalar(value)
        except (ValueError, KeyError, TypeError):
            expected = " or ".join([_SPOKEN[self.kind], *self.words])
            raise ConfigError(f"{source}: expected {expected}, not {value!r}") from None

    def _scalar(self, value: Any) -> Any:
        if self.kind is bool:
            return value if isinstance(value, bool) else _BOOLEANS[value.strip().lower()]
        # In a TOML file 1.5 is no int, true is no number and 5 is no text; but 5 is a fine float.
        if not isinstance(value, str) and (isinstance(value, bool) or not isinstance(value, _IN_TOML[self.kind])):
            raise TypeError
        return self.kind(value)


_SPOKEN = {int: "a whole number", float: "a number", str: "text", bool: "true or false", Path: "a path"}
_IN_TOML: dict[type, tuple[type, ...]] = {int: (int,), float: (int, float), str: (), Path: ()}


def _parser(options: Sequence[_Option], prog: str, env_prefix: str, description: str) -> argparse.ArgumentParser:
    parser = _Parser(prog=prog, description=description, allow_abbrev=False, add_help=True)
    config_help = f"TOML file with options by name (env: {env_prefix}CONFIG)"
    parser.add_argument("--config", metavar="FILE", help=config_help)
    for one in options:
        if one.kind is bool:
            parser.add_argument(one.flag, dest=one.name, action=argparse.BooleanOptionalAction, help=one.help)
        else:
            metavar = "{" + ",".join(one.choices) + "}" if one.choices else one.metavar
            action = "append" if one.is_list else "store"
            parser.add_argument(one.flag, dest=one.name, action=action, metavar=metavar, help=one.help)
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ").split("=")[0].split()[:1]
        hint = _nearest(unknown[0], self._option_string_actions) if message.startswith("unrecognized") else ""
        raise ConfigError(f"{message}{hint}")


def _read_file(path: Path, names: Sequence[str]) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config: cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    values = {key.replace("-", "_"): value for key, value in content.items()}
    for key in values:
        if key not in names:
            raise ConfigError(f"{path}: unknown option {key!r}{_nearest(key, names)}")
    return values


def _nearest(word: object, names: Any) -> str:
    close = difflib.get_close_matches(str(word), list(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
