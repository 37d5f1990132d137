"""`phi3-node`: one command on each GPU host."""

from __future__ import annotations

import logging
import os
import sys

import uvloop

from mesh.errors import ConfigError
from mesh.file_limit import raise_file_limit
from mesh.options import load_options
from node.config import NodeConfig
from node.server import NodeServer

DESCRIPTION = "Serve a model on this host and join the mesh. Runs until Ctrl-C or SIGTERM, then hands its work over."


def main(argv: list[str] | None = None) -> int:
    """Entry point. Returns the exit status: 0 after a clean stop, 2 for a wrong option."""
    try:
        config = load_options(NodeConfig, sys.argv[1:] if argv is None else argv, "phi3-node", os.environ, DESCRIPTION)
        logging.basicConfig(
            level=config.log_level.upper(), format="%(asctime)s %(levelname).1s %(message)s", datefmt="%H:%M:%S"
        )
        if config.trust_remote_code:
            logging.getLogger(__name__).warning("trust_remote_code is on: the model's own Python code will run here")
        raise_file_limit()
        uvloop.run(NodeServer(config).run())
    except ConfigError as error:
        print(f"phi3-node: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
