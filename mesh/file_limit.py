"""How many connections the system lets this process have."""

from __future__ import annotations

import sys


def raise_file_limit() -> int:
    """Take as many file descriptors as an ordinary user may, and say how many. Each connection is one, and the usual
    1,024 are there for the sake of old programs."""
    if sys.platform == "win32":
        return 0
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return soft


_MOST = 1 << 17
