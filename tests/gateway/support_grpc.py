"""The gRPC side of a gateway process."""

from __future__ import annotations

import re

from tests.support.eventually import eventually
from tests.support.processes import Member

GRPC = ("--grpc-bind", "127.0.0.1:0")


def grpc_address(gateway: Member) -> str:
    """HOST:PORT, once it listens."""

    def address() -> str:
        found = re.search(r"serving_grpc address=(\S+)", gateway.log_text())
        return found[1] if found else ""

    return eventually(address, within_s=30)
