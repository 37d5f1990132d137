"""An OpenAI server without a model, as lean as one can be: what it costs is not measured, so it must not be in the way.

    python -m scripts.benchmarks.peers.backend [--step S]

A completion is answered at once with one token. A streamed one gets its first token at once and one more for each
step, as many as `max_tokens` says: all streams step together, and each gets an event of its own, as in any server of
this kind. It also answers what routers ask to find out whether it lives and what it serves.
"""

from __future__ import annotations

import argparse
import asyncio
import json

import httptools
import uvloop

MODEL = "trivial"
_HEAD = "HTTP/1.1 200 OK\r\ncontent-type: {}\r\n"
_STREAM_HEAD = (
    _HEAD.format("text/event-stream; charset=utf-8") + "x-accel-buffering: no\r\ntransfer-encoding: chunked\r\n\r\n"
).encode()
_TOKEN = {"id": "cmpl-1", "object": "text_completion", "created": 0, "model": MODEL}
_USAGE = {"prompt_tokens": 8, "completion_tokens": 1, "total_tokens": 9}


def _event(text: str, finish_reason: str | None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return b"data: " + json.dumps({**_TOKEN, "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_MORE = _chunk(_event(" word", None))
_LAST = _chunk(_event(" word", "length") + b"data: [DONE]\n\n") + b"0\r\n\r\n"
_COMPLETION = {
    **_TOKEN,
    "choices": [{"index": 0, "text": " word", "logprobs": None, "finish_reason": "length"}],
    "usage": _USAGE,
}
_FACTS = {
    "/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "bench"}]},
    "/get_load": [{"load": 0}],
}
_ABOUT = {"served_model_name": MODEL, "is_generation": True, "load": 0}


def _whole(value: object) -> bytes:
    body = json.dumps(value, separators=(",", ":")).encode()
    return (_HEAD.format("application/json") + f"content-length: {len(body)}\r\n\r\n").encode() + body


class Backend:
    """All streams of this process and their common step."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.left: dict[Caller, int] = {}  # tokens still to come
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, caller: Caller, num_tokens: int) -> None:
        caller.transport.write(_STREAM_HEAD + (_MORE if num_tokens > 1 else _LAST))
        if num_tokens > 1:
            self.left[caller] = num_tokens - 1
            if self._timer is None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_at(loop.time() + self.step_s, self._step, loop.time() + self.step_s)

    def _step(self, due: float) -> None:
        for caller, num_left in list(self.left.items()):
            if num_left > 1:
                self.left[caller] = num_left - 1
                caller.transport.write(_MORE)
            else:
                del self.left[caller]
                caller.transport.write(_LAST)
        loop = asyncio.get_running_loop()
        due = max(due + self.step_s, loop.time())
        self._timer = loop.call_at(due, self._step, due) if self.left else None


class Caller(asyncio.Protocol):
    """One connection."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._path = ""
        self._body = b""
        self.transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a TCP server's transport can be written to
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._backend.left.pop(self, None)

    def on_message_begin(self) -> None:
        self._path, self._body = "", b""

    def on_url(self, url: bytes) -> None:
        self._path += url.decode()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._parser.get_method() != b"POST":
            self.transport.write(_whole(_FACTS.get(self._path, _ABOUT)))
            return
        asked = json.loads(self._body)
        if asked.get("stream"):
            self._backend.begin(self, asked.get("max_tokens", 1))
        else:
            self.transport.write(_whole(_COMPLETION))


async def serve(step_s: float) -> None:
    backend = Backend(step_s)
    server = await asyncio.get_running_loop().create_server(lambda: Caller(backend), "127.0.0.1", 0, backlog=1024)
    print(f"address=127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--step", type=float, default=0.02)
    uvloop.run(serve(parser.parse_args().step))


if __name__ == "__main__":
    main()
