"""Flag > environment > file > default, and errors that name the source of a wrong value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from mesh.errors import ConfigError
from mesh.options import load_options, option


@dataclass(frozen=True, slots=True)
class NodeOptions:
    slots: int = option(4, help="sequences at a time", metavar="N")
    memory_fraction: float = option(0.9, help="share of the memory, as in 90%")
    model: str = option("demo", help="what to serve")
    engine: str = option("transformers", help="what runs it", choices=["transformers", "synthetic"])
    verbose: bool = option(False, help="say more")
    bind: tuple[str, ...] = option((), help="where to listen", flag="--listen")
    cache: Path | None = option(None, help="where to keep files", env="CACHE_HOME")

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ConfigError("slots must be at least 1")


@dataclass(frozen=True, slots=True)
class NeedsName:
    name: str = option(help="who")


def load(*argv: str, **env: str) -> NodeOptions:
    return load_options(NodeOptions, argv, "phi3-node", env, "Serve a model.")


def test_without_anything_the_defaults_hold() -> None:
    assert load() == NodeOptions()


def test_a_flag_goes_before_the_environment_before_the_file_before_the_default(tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text('slots = 1\nmodel = "file"\nmemory-fraction = 1\n')

    options = load("--config", str(config), "--slots", "3", PHI3_NODE_SLOTS="2", PHI3_NODE_MODEL="environment")

    assert (options.slots, options.model, options.memory_fraction, options.engine) == (
        3,
        "environment",
        1.0,
        "transformers",
    )


def test_every_type_can_be_given_in_every_way(tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text('slots = 8\nverbose = true\nbind = ["a:1", "b:2"]\ncache = "/c"\nmemory_fraction = 0.5\n')
    expected = NodeOptions(slots=8, memory_fraction=0.5, verbose=True, bind=("a:1", "b:2"), cache=Path("/c"))

    flags = ["--slots=8", "--memory-fraction=0.5", "--verbose", "--listen", "a:1", "--listen=b:2", "--cache", "/c"]
    prefix = "PHI3_NODE_"
    env = {"SLOTS": "8", "MEMORY_FRACTION": "0.5", "VERBOSE": "Yes", "BIND": "a:1, b:2"}

    assert load(*flags) == expected
    assert load(CACHE_HOME="/c", **{prefix + name: value for name, value in env.items()}) == expected
    assert load(PHI3_NODE_CONFIG=str(config)) == expected


def test_a_flag_can_switch_off_what_the_environment_switches_on() -> None:
    assert load("--no-verbose", PHI3_NODE_VERBOSE="1").verbose is False


@pytest.mark.parametrize(
    ("argv", "env", "says"),
    [
        (["--slots", "many"], {}, "--slots: expected a whole number, not 'many'"),
        ([], {"PHI3_NODE_SLOTS": "1.5"}, "environment variable PHI3_NODE_SLOTS: expected a whole number, not '1.5'"),
        ([], {"PHI3_NODE_VERBOSE": "maybe"}, "PHI3_NODE_VERBOSE: expected true or false, not 'maybe'"),
        (["--engine", "synthetics"], {}, "--engine: 'synthetics' is none of .* did you mean 'synthetic'"),
        (["--slot", "3"], {}, "unrecognized arguments: --slot 3; did you mean '--slots'"),
        (["--slots"], {}, "argument --slots: expected one argument"),
        (["--config", "/no/such.toml"], {}, "--config: cannot read /no/such.toml: No such file"),
        (["--slots", "0"], {}, "slots must be at least 1"),
    ],
)
def test_a_wrong_value_is_told_with_its_source(argv: list[str], env: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        load(*argv, **env)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("slot = 3", "unknown option 'slot'; did you mean 'slots'"),
        ("slots = 1.5", "node.toml: slots: expected a whole number, not 1.5"),
        ("slots = true", "slots: expected a whole number, not True"),
        ("model = 5", "model: expected text, not 5"),
        ("bind = [1]", "bind: expected a list of strings"),
        ("slots = ", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_told_with_the_key(tmp_path: Path, content: str, says: str) -> None:
    config = tmp_path / "node.toml"
    config.write_text(content)

    with pytest.raises(ConfigError, match=says):
        load("--config", str(config))


def test_what_has_no_default_must_be_given() -> None:
    with pytest.raises(ConfigError, match=r"--name is required \(or set PHI3_MESH_NAME\)"):
        load_options(NeedsName, [], "phi3-mesh generate", {})
    assert load_options(NeedsName, [], "phi3-mesh generate", {"PHI3_MESH_NAME": "a"}).name == "a"


def test_help_shows_defaults_and_environment_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load("--help")
    shown = " ".join(capsys.readouterr().out.split())

    assert "--slots N sequences at a time (default: 4; env: PHI3_NODE_SLOTS)" in shown
    assert "share of the memory, as in 90% (default: 0.9" in shown
    assert "--engine {transformers,synthetic}" in shown
