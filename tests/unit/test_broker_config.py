"""The broker's options: defaults that work, and one clear line for each that does not."""

from __future__ import annotations

import pytest

from broker.config import DEFAULT_PORT, BrokerConfig
from broker.nodes_source import sources_for
from mesh.errors import ConfigError
from mesh.options import load_options


def test_the_defaults_need_nothing() -> None:
    config = BrokerConfig()

    assert config.endpoint.is_wildcard
    assert (config.endpoint.port, config.is_default_port) == (DEFAULT_PORT, True)
    assert config.lease_s == 1.5


@pytest.mark.parametrize(
    ("bind", "endpoint", "is_default"),
    [
        ("127.0.0.1", f"tcp://127.0.0.1:{DEFAULT_PORT}", True),
        ("127.0.0.1:7000", "tcp://127.0.0.1:7000", False),
        ("tcp://[::1]:7000", "tcp://[::1]:7000", False),
        ("*:0", "tcp://*:0", False),
    ],
)
def test_where_to_bind(bind: str, endpoint: str, is_default: bool) -> None:
    config = BrokerConfig(bind=bind)

    assert (str(config.endpoint), config.is_default_port) == (endpoint, is_default)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"name": ""}, "--name"),
        ({"mesh": "a\nb"}, "--mesh"),
        ({"policy": "best"}, "--policy"),
        ({"heartbeat_s": 0.0}, "--heartbeat"),
        ({"liveness": 1}, "--liveness"),
        ({"stall_s": 1.0}, "--stall"),
        ({"max_queued": 0}, "--max-queued"),
        ({"max_queued_bytes": 0}, "--max-queued-bytes"),
        ({"max_batch": 0}, "--max-batch"),
        ({"max_body_bytes": 0}, "--max-body-bytes"),
        ({"prefetch": -1}, "--prefetch"),
        ({"bind": "nowhere:port"}, "--bind"),
        ({"advertise": ("*",)}, "--advertise"),
        ({"node": ("a", "b:c")}, "--node"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named}:"):
        BrokerConfig(**options)  # type: ignore[arg-type]  # wrong on purpose


def test_options_come_from_the_command_line_and_the_environment() -> None:
    env = {"PHI3_BROKER_POLICY": "hash", "PHI3_BROKER_NODE": "a,b:1"}
    config = load_options(BrokerConfig, ["--heartbeat", "0.2", "--no-mdns"], "phi3-broker serve", env)

    assert (config.policy, config.heartbeat_s, config.mdns, config.node) == ("hash", 0.2, False, ("a", "b:1"))


def test_nodes_are_looked_for_where_the_options_say() -> None:
    config = BrokerConfig(node=("127.0.0.1", "[::1]:7", "localhost:8", "nodes.local:9"), mdns=False)
    sources = sources_for(config, None)

    assert set(sources) == {"static", "dns nodes.local:9"}
    assert sources["static"].describe() == "static list: tcp://127.0.0.1:5560, tcp://[::1]:7, tcp://127.0.0.1:8"
