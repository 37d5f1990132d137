"""zstd and plain on the bodies that travel: bytes, CPU, and the bandwidth below which compressing saves time.

A body goes over two lines, client to broker to node or back, and the broker does not read it: it is compressed once and
decompressed once. CPU is measured, that of CURVE for the bytes saved as well; what the lines take is computed from
their bandwidth. Times are of one body that travels alone; the GPU's own time is left out, which is far more.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import msgpack
import zmq
import zstandard

from mesh import bodies
from mesh.bodies import End, TokenEntry
from mesh.security.keys import Credentials, KeyPair
from mesh.security.sockets import secure_client, secure_server
from scripts.benchmarks.prose import prose
from scripts.benchmarks.table import Row, median

ROUNDS = 7
BUDGET_S = 0.03  # of each take
VOCABULARY = 32_000  # Phi-3's
LINES = 2
GBIT = (1.0, 10.0)
LEVELS = (-1, 1, 3)


def run(options: argparse.Namespace) -> list[Row]:
    del options
    curve_us_per_byte = _curve_us_per_byte()
    return [
        _row(name, level, payload, curve_us_per_byte)
        for name, payload in _payloads().items()
        for level in (LEVELS if name == "prompt of 128K tokens" else (bodies_level(),))
    ]


def bodies_level() -> int:
    """What mesh.bodies uses."""
    return int(bodies._ZSTD_LEVEL)


def _payloads() -> dict[str, Any]:
    """What is packed. Text is English; token ids are drawn as text draws them, the frequent ones often (Zipf)."""
    rng = random.Random(1)

    def ids(count: int) -> list[int]:
        return [min(VOCABULARY - 1, int(rng.paretovariate(0.6))) for _ in range(count)]

    def prompt(num_characters: int) -> dict[str, Any]:
        return {"prompt": prose(num_characters, 5000), "max_tokens": 256}

    answers = []
    for number in range(16):
        end = End("stop", 500, 64, 0, "node-1", "microsoft/Phi-3-mini-4k-instruct", 0.1)
        text = prose(260, number * 3000)
        answers.append(TokenEntry(number, 1, 0, ids(64), text, None, end))
    step = [TokenEntry(number, 1, 100, ids(1), prose(5, number * 3000)) for number in range(64)]
    return {
        "prompt of 500 tokens": prompt(2_000),
        "prompt of 4K tokens": prompt(16_000),
        "prompt of 128K tokens": prompt(520_000),
        "prompt of 500 tokens, resumed at 1000": {**prompt(2_000), "resume": ids(1000)},
        "answers of 64 tokens, 16 in a frame": _rows_of(answers),
        "one token each of 64 streams": _rows_of(step),
    }


def _rows_of(entries: list[TokenEntry]) -> Any:
    return msgpack.unpackb(bodies.pack_entries(entries)[1:])


def _row(name: str, level: int, payload: Any, curve_us_per_byte: float) -> Row:
    plain = bodies.pack(payload)[1:]
    packed = zstandard.ZstdCompressor(level=level).compress(plain)
    saved = max(0, len(plain) - len(packed))
    compress_us = _us(lambda: zstandard.ZstdCompressor(level=level).compress(plain))
    decompress_us = _us(lambda: zstandard.ZstdDecompressor().decompress(packed))
    curve_us = LINES * saved * curve_us_per_byte
    cost_us = compress_us + decompress_us - curve_us
    row: Row = {
        "body": name,
        "level": f"{level}",
        "bytes": f"{len(plain)}",
        "zstd": f"{len(packed)}",
        "ratio": len(plain) / len(packed),
        "compress us": compress_us,
        "decompress us": decompress_us,
        "new object us": _object_us(level),
        "CURVE saved us": curve_us,
        "pays below Gbit/s": f"{LINES * saved * 8 / cost_us / 1000:.3g}" if cost_us > 0 else "any",
    }
    for gbit in GBIT:
        row[f"us sooner at {gbit:g} Gbit/s"] = LINES * saved * 8 / (gbit * 1000) - cost_us
    row["default"] = "zstd" if len(plain) >= bodies.COMPRESS_FROM_BYTES and saved else "plain"
    return row


def _object_us(level: int) -> float:
    """A compressor made for each body, beyond one that is kept."""
    data, kept = b"x" * 2000, zstandard.ZstdCompressor(level=level)
    return _us(lambda: zstandard.ZstdCompressor(level=level).compress(data)) - _us(lambda: kept.compress(data))


def _us(work: Callable[[], object]) -> float:
    """Microseconds of CPU for one call, median of the rounds."""
    began = time.thread_time()
    work()
    count = max(1, min(2000, int(BUDGET_S / max(1e-6, time.thread_time() - began))))
    takes = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        for _ in range(count):
            work()
        takes.append((time.thread_time() - began) / count)
    return 1e6 * median(takes)


def _curve_us_per_byte() -> float:
    """CPU of both ends for one byte more in an encrypted message, over loopback."""
    small, large = 50_000, 550_000
    takes = [(_send_us(large) - _send_us(small)) / (large - small) for _ in range(ROUNDS)]
    return max(0.0, median(takes))


def _send_us(num_bytes: int, num_messages: int = 40) -> float:
    member = Credentials.of_member(KeyPair.new())
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    server, client = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    secure_server(server, member)
    server.zap_enforce_domain = False  # nobody is turned away here; what is measured is the cipher
    secure_client(member)(client)
    port = server.bind_to_random_port("tcp://127.0.0.1")
    client.connect(f"tcp://127.0.0.1:{port}")
    client.send(b"")
    server.recv()  # the handshake is over
    message = b"x" * num_bytes
    began = time.process_time()
    reader = threading.Thread(target=lambda: [server.recv(copy=False) for _ in range(num_messages)])
    reader.start()
    for _ in range(num_messages):
        client.send(message, copy=False)
    reader.join()
    took = time.process_time() - began
    context.destroy(linger=0)
    return 1e6 * took / num_messages
