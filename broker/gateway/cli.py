"""`phi3-broker gateway`: reads the command line and hands over. Heavy imports wait until it is known to be right."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from broker.gateway.config import GatewayConfig
from mesh.errors import ConfigError
from mesh.options import load_options

_DESCRIPTION = """HTTP in front of the mesh: the APIs of OpenAI, Anthropic and Triton (KServe v2), and /metrics.
With --grpc-bind also gRPC. Any number may run side by side."""
_USAGE = 2
ENV_PREFIX = "PHI3_GATEWAY_"  # `phi3-broker serve` may run with its own on the same host


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM. Returns the exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        config = load_options(
            GatewayConfig, given, "phi3-broker gateway", os.environ, _DESCRIPTION, env_prefix=ENV_PREFIX
        )
        try:
            from broker.gateway.serve import serve

            if config.grpc_bind:
                import_module("broker.gateway.grpc_api.server")
        except ModuleNotFoundError as error:
            if (error.name or "").startswith(("broker", "mesh")):
                raise
            raise ConfigError(
                f"the gateway needs {error.name}: install it with pip install 'phi3-mesh[gateway]'"
            ) from None
        serve(config)
    except ConfigError as error:
        sys.stderr.write(f"phi3-broker gateway: {error}\n")
        return _USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main())
