"""The gateway's options, checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mesh.discovery.addresses import BadAddress, Endpoint, parse_endpoint
from mesh.errors import ConfigError
from mesh.options import option

DEFAULT_PORT = 8000
DEFAULT_GRPC_PORT = 8001


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Every option of `phi3-broker gateway`; `--help` shows these texts."""

    bind: str = option(
        f"127.0.0.1:{DEFAULT_PORT}",
        help="where to listen; port 0: any free one; beyond loopback only with --api-key-file",
        metavar="HOST:PORT",
    )
    grpc_bind: str = option(
        "",
        help="where to listen for gRPC, such as 127.0.0.1:8001; default: nowhere",
        metavar="HOST:PORT",
    )
    broker: str = option(
        "",
        help="the broker or node to use, several with commas; default: look for one on the network",
        env="PHI3_MESH_BROKER",
        metavar="HOST[:PORT]",
    )
    mesh: str = option("default", help="name of the mesh", metavar="NAME")
    name: str = option("gateway", help="how operators see this client", metavar="NAME")
    api_key_file: Path | None = option(None, help="who may call: `name key` on each line; re-read when it changes")
    cors: tuple[str, ...] = option((), help="origin whose pages may call, such as https://chat.example; repeatable")
    tls_cert: Path | None = option(None, help="certificate chain (PEM); with --tls-key")
    tls_key: Path | None = option(None, help="its private key (PEM)")
    metrics_port: int = option(0, help="serve /metrics here too, without a key; 0: no", metavar="PORT")
    max_waiting: int = option(
        1024,
        help="answers that may wait here for their first token; more are told 429",
        metavar="N",
    )
    max_request_bytes: int = option(8 << 20, help="size of a request", metavar="BYTES")
    max_header_bytes: int = option(32 << 10, help="size of its headers", metavar="BYTES")
    default_max_tokens: int = option(
        1024,
        help="tokens of an answer when the caller sets no limit; never more than a quarter of the context",
        metavar="N",
    )
    timeout_s: float = option(
        0.0,
        flag="--timeout",
        help="seconds a request may take if it does not say so itself; 0: as long as it takes",
        metavar="S",
    )
    patience_s: float = option(
        60.0,
        flag="--patience",
        help="how long a running request waits for a node when the last one has gone",
        metavar="S",
    )
    overload_patience_s: float = option(
        2.0,
        flag="--overload-patience",
        help="how long a request that has not begun is tried again while the mesh is overloaded; then 429",
        metavar="S",
    )
    keep_alive_s: float = option(
        15.0,
        flag="--keep-alive",
        help="a stream that has nothing to say for so long says that it lives, for proxies on the way; 0: never",
        metavar="S",
    )
    drain_s: float = option(
        30.0,
        flag="--drain",
        help="how long running answers may go on after SIGTERM",
        metavar="S",
    )
    log_level: str = option(
        "info",
        choices=("debug", "info", "warning", "error"),
        help="how much to tell",
    )

    def __post_init__(self) -> None:
        for flag, endpoint in (("--bind", self.endpoint), ("--grpc-bind", self.grpc_endpoint)):
            if endpoint is not None and not endpoint.is_loopback and self.api_key_file is None:
                raise ConfigError(
                    f"{flag}: {endpoint.host} can be reached from outside, so say who may call with --api-key-file "
                    "(or bind to 127.0.0.1)"
                )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key: give both or neither")
        for flag, path in (
            ("--api-key-file", self.api_key_file),
            ("--tls-cert", self.tls_cert),
            ("--tls-key", self.tls_key),
        ):
            if path is not None and not path.is_file():
                raise ConfigError(f"{flag}: there is no file {path}")
        if not 0 <= self.metrics_port <= 65535:
            raise ConfigError(f"--metrics-port: must be from 0 to 65535, not {self.metrics_port}")
        for flag, number, lowest in (
            ("--max-waiting", self.max_waiting, 1),
            ("--max-request-bytes", self.max_request_bytes, 1024),
            ("--max-header-bytes", self.max_header_bytes, 1024),
            ("--default-max-tokens", self.default_max_tokens, 1),
            ("--timeout", self.timeout_s, 0),
            ("--patience", self.patience_s, 0),
            ("--overload-patience", self.overload_patience_s, 0),
            ("--keep-alive", self.keep_alive_s, 0),
            ("--drain", self.drain_s, 0),
        ):
            if not number >= lowest:
                raise ConfigError(f"{flag}: must be at least {lowest}, not {number}")

    @property
    def endpoint(self) -> Endpoint:
        """Where to listen. Raises ConfigError."""
        return _endpoint("--bind", self.bind, DEFAULT_PORT)

    @property
    def grpc_endpoint(self) -> Endpoint | None:
        """Where to listen for gRPC, if at all. Raises ConfigError."""
        return _endpoint("--grpc-bind", self.grpc_bind, DEFAULT_GRPC_PORT) if self.grpc_bind else None


def _endpoint(flag: str, text: str, default_port: int) -> Endpoint:
    try:
        return parse_endpoint(text, default_port, bind=True)
    except BadAddress as error:
        raise ConfigError(f"{flag}: {error}") from None
