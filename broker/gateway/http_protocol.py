"""uvicorn's HTTP parser with bounds on the head of a request, which it has none for: size, and time to arrive."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_WITHIN_S = 10.0
_MAX_HEAD_BYTES = 256 << 10  # of a head that is still coming; the entrance is stricter with one that has come
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\ncontent-length: 26\r\n"
    b"connection: close\r\n\r\nThe headers are too large."
)


class BoundedHttpProtocol(HttpToolsProtocol):
    """Closes a connection whose head does not end. Bodies are bounded by those who read them."""

    _head_bytes = 0
    _is_in_head = False
    _head_timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
                self.transport.write(_TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._head_bytes = 0
        if (
            self._head_timer is None
        ):  # a pipelined head that comes whole is not worth a timer, but that is not known yet
            self._head_timer = self.loop.call_later(HEAD_WITHIN_S, self._on_head_timeout)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_ended()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_ended()
        super().connection_lost(exc)

    def _head_ended(self) -> None:
        self._is_in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self._is_in_head and not self.transport.is_closing():
            self.transport.close()
