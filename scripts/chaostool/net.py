"""A cable that loses packets. Classic BPF on the card, because many kernels come without the netem module."""

from __future__ import annotations

import subprocess

from tests.support.netns import Host

_OK, _SHOT = 0, 2  # what a tc filter may say of a packet


def lose_packets(host: Host, share: float) -> None:
    """Of both directions, at random, until `heal_packets`. Raises RuntimeError when the kernel cannot."""
    threshold = int(share * 2**32)
    # ld random; jge threshold, +0, +1; ret OK; ret SHOT
    program = f"4,32 0 0 {2**32 - 0x1000 + 56},53 0 1 {threshold},6 0 0 {_OK},6 0 0 {_SHOT},"
    _tc(host, "qdisc", "replace", "dev", host.link, "clsact")
    for direction in ("egress", "ingress"):
        _tc(host, "filter", "add", "dev", host.link, direction, "bpf", "da", "bytecode", program)


def heal_packets(host: Host) -> None:
    _tc(host, "qdisc", "del", "dev", host.link, "clsact")


def _tc(host: Host, *arguments: str) -> None:
    done = subprocess.run(host.command("tc", *arguments), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"tc {' '.join(arguments)}: {done.stderr.strip()}")
