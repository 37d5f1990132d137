"""What the driver says of the GPUs of this node, read about once a second in a thread of its own.

A call of NVML takes from microseconds to hundreds of milliseconds, and never returns when a GPU falls off the bus. So
the agent's loop only ever looks at the last reading, and one that is too old is none. The thread is a daemon: one that
hangs in the driver keeps no process from leaving.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from mesh.messages import DeviceFacts

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
STALE_AFTER_S = 5.0
AGAIN_AFTER_S = 30.0  # how soon a driver that failed, or a GPU that was lost, is looked for again


class NoDriver(Exception):
    """There is no NVIDIA driver on this host, and there will be none."""


class DriverFailed(Exception):
    """The driver is there and does not answer as it should; it may later."""


class Reader(Protocol):
    """Every method may block. Raises NoDriver or DriverFailed."""

    def open(self) -> None:
        """Find the devices, again if need be."""

    def read(self) -> tuple[DeviceFacts, ...]: ...

    @property
    def is_whole(self) -> bool:
        """False when a device was lost, so that it may be looked for again."""


class Telemetry:
    """`latest` is what a reader read; it never blocks and never raises."""

    def __init__(
        self, reader: Reader, *, interval_s: float = INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reader = reader
        self._interval_s = interval_s
        self._clock = clock
        self._reading: tuple[float, tuple[DeviceFacts, ...]] = (float("-inf"), ())  # replaced whole, so no lock
        self._opened_at: float | None = None
        self._complaint = ""  # said once, not every AGAIN_AFTER_S
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait: the thread may hang in the driver."""
        self._stopping.set()

    def latest(self) -> tuple[DeviceFacts, ...]:
        """Nothing when there is no reading, or when it is STALE_AFTER_S old."""
        read_at, devices = self._reading
        return devices if self._clock() - read_at < STALE_AFTER_S else ()

    def _run(self) -> None:
        wait_s: float | None = 0.0
        while wait_s is not None and not self._stopping.wait(wait_s):
            wait_s = self.sample()

    def sample(self) -> float | None:
        """Reads once. Returns in how many seconds to do so again; None for never."""
        try:
            now = self._clock()
            if self._opened_at is None or (not self._reader.is_whole and now - self._opened_at >= AGAIN_AFTER_S):
                self._reader.open()
                self._opened_at = now
            devices = self._reader.read()
        except NoDriver as error:
            logger.debug("no_telemetry reason=%s", error)
            return None
        except DriverFailed as error:
            if str(error) != self._complaint:
                logger.warning("telemetry_failed reason=%s again_in_s=%d", error, AGAIN_AFTER_S)
            self._complaint = str(error)
            self._opened_at = None
            self._reading = (float("-inf"), ())
            return AGAIN_AFTER_S
        self._reading = (self._clock(), devices)
        return self._interval_s
