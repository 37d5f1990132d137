"""Finds a server that answers: the given addresses in turn, or what discovery finds, until one welcomes us."""

from __future__ import annotations

import asyncio
import random

from mesh.client.options import ClientOptions
from mesh.client.session import DialFailed, Owner, Session
from mesh.discovery.addresses import is_loopback, parse_endpoint
from mesh.discovery.dns import resolve
from mesh.errors import BrokerUnreachable, MeshError, Refused
from mesh.link import Context
from mesh.messages import Hello

_FIRST_PAUSE_S = 0.05
_MAX_PAUSE_S = 1.0
_MIN_SLICE_S = 0.25  # for one address, however many there are
# A stopped process still accepts connections, so an address that says nothing must not hold up the next one for long.
# Who is only slow gets twice the time in each further round.
_FIRST_SLICE_S, _MAX_SLICE_S = 0.5, 4.0
_SHORT_LIVED_S = 2.0  # a session that broke sooner
_SEARCH_SHARE = 0.6  # of the time left; the rest is for the handshake


class Dialer:
    """Remembers which address is next: after a loss the search goes on behind the one that was lost."""

    def __init__(self, context: Context, options: ClientOptions, hello: Hello, rng: random.Random) -> None:
        self._context = context
        self._options = options
        self._hello = hello
        self._rng = rng
        self._next = 0
        self._num_short_lived = 0  # sessions, in a row

    async def dial(self, owner: Owner, timeout_s: float) -> Session:
        """A session with the first server that says Welcome.

        A server that is not there yet may be starting, so the round is repeated, with growing pauses, until the time is
        over. It ends early when every address has given an answer that will not change.

        Raises: Refused when that is all there was; else BrokerUnreachable, with what was tried.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + timeout_s
        pause_s = _FIRST_PAUSE_S
        patience_s = _FIRST_SLICE_S
        if self._num_short_lived > 1:
            await asyncio.sleep(self._spread(min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._num_short_lived, 8))))
        last_codes: dict[str, str] = {}
        while True:
            addresses, searched = await self._addresses(give_up_at - loop.time())
            failures: dict[str, DialFailed] = {}
            for address in self._in_turn(addresses):
                left_s = give_up_at - loop.time()
                slice_s = min(left_s, patience_s, max(_MIN_SLICE_S, timeout_s / len(addresses)))
                try:
                    session = await self._open(address, owner, slice_s)
                except DialFailed as failure:
                    failures[address] = failure
                    continue
                self._next = addresses.index(address)
                return session
            is_final = bool(failures) and all(
                failure.down.code or (failure.down.suspicion and last_codes.get(address) == failure.down.suspicion)
                for address, failure in failures.items()
            )
            last_codes = {address: failure.down.suspicion for address, failure in failures.items()}
            if is_final or loop.time() + pause_s >= give_up_at:
                raise _story(failures, searched, timeout_s)
            await asyncio.sleep(self._spread(pause_s))
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            patience_s = min(2 * patience_s, _MAX_SLICE_S)

    def on_lost(self, lived_s: float) -> None:
        """The session of now is gone: begin with the next address, and not in haste if sessions keep breaking."""
        self._next += 1
        self._num_short_lived = self._num_short_lived + 1 if lived_s < _SHORT_LIVED_S else 0

    def _spread(self, pause_s: float) -> float:
        """So that the clients of one broker do not all return in the same instant."""
        return pause_s * self._rng.uniform(0.5, 1.0)

    def _in_turn(self, addresses: list[str]) -> list[str]:
        first = self._next % len(addresses) if addresses else 0
        return addresses[first:] + addresses[:first]

    async def _open(self, address: str, owner: Owner, timeout_s: float) -> Session:
        return await Session.open(
            self._context,
            address,
            self._hello,
            owner,
            timeout_s=max(timeout_s, 0.01),
            configure=self._options.access.configure,
        )

    async def _addresses(self, timeout_s: float) -> tuple[list[str], list[str]]:
        """Those to try now, and what was done to find them. Asked again in every round: brokers move."""
        if not self._options.addresses:
            return await self._discover(timeout_s * _SEARCH_SHARE)
        found: list[str] = []
        problems: list[str] = []
        for address in self._options.addresses:
            if parse_endpoint(address).ip is not None:
                found.append(address)
                continue
            try:
                async with asyncio.timeout(timeout_s * _SEARCH_SHARE):
                    found += await resolve(address)
            except OSError as error:
                reason = "no answer from the name server" if isinstance(error, TimeoutError) else error.strerror
                problems.append(f"{address}: {reason or error}")
        return list(dict.fromkeys(found)), problems

    async def _discover(self, timeout_s: float) -> tuple[list[str], list[str]]:
        """Imported here: zeroconf costs a tenth of a second, and whoever names an address does not need it."""
        from mesh.discovery.find import find_broker

        access = self._options.access
        found = await find_broker(access.mesh, timeout_s=timeout_s, interfaces=access.interfaces)
        here = [address for address in found.addresses if not access.is_insecure or is_loopback(address)]
        return here, found.tried


def _story(failures: dict[str, DialFailed], searched: list[str], timeout_s: float) -> MeshError:
    """The error that says what was tried and how it went."""
    told = [f"{address}: {failure}" for address, failure in failures.items()]
    tried = "".join(f"\n  {line}" for line in (*searched, *told))
    first = next(iter(failures.values()), None)
    codes = [failure.down.code or failure.down.suspicion for failure in failures.values()]
    if first is not None and all(code not in ("", "address") for code in codes):
        return Refused(codes[0], f"no broker or node accepted this client:{tried}")
    return BrokerUnreachable(
        f"no broker or node answered within {timeout_s:g} s:{tried}\n"
        "is one running, and is the address right? `phi3-mesh doctor` tests each step"
    )
