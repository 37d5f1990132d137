"""Other servers of the demo model, each a front door and an engine: `transformers serve`, and vLLM's where it is."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scripts.benchmarks.peers.routers import free_port
from scripts.benchmarks.processes import BIN

_START_S = 600.0  # vLLM compiles the model when it starts for the first time
_ANSWER_S = 300.0
_STOP_S = 30.0
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",  # as in our worker: threads of an engine that waits leave the cores to the others
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # or its engine would leave half of two cores alone
}


@dataclass(frozen=True, slots=True)
class Peer:
    """What it is called, how it is started on a port, and what its requests need to run to their last token."""

    name: str
    command: Callable[[int], Sequence[str]]
    model: str
    more: dict[str, object]


def transformers_serve(folder: Path, num_tokens: int) -> Peer:
    """With continuous batching, which it has by option. Without its model's settings it knows no token that ends."""
    config = json.dumps({"do_sample": False, "max_new_tokens": num_tokens})
    command = [str(BIN / "transformers"), "serve", str(folder), "--continuous-batching", "--device", "cpu"]
    command += ["--dtype", "float32", "--log-level", "error", "--host", "127.0.0.1", "--port"]
    return Peer("transformers serve", lambda port: [*command, f"{port}"], str(folder), {"generation_config": config})


def vllm_server(python: str, folder: Path) -> Peer:
    """`python` is that of an environment with vllm or vllm-cpu."""
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--dtype", "float32", "--max-model-len", "2048", "--host", "127.0.0.1", "--port"]
    more: dict[str, object] = {"ignore_eos": True, "temperature": 0}
    return Peer("vllm serve", lambda port: [*command, f"{port}"], str(folder), more)


class PeerServer:
    """One running peer."""

    def __init__(self, peer: Peer, log: Path) -> None:
        """Start it. Raises RuntimeError with its last words if it ends, TimeoutError if it is not ready in time."""
        self._peer = peer
        self._port = free_port()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                list(peer.command(self._port)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **_ENVIRONMENT},
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_S
        try:
            while not self._is_healthy():
                if self._process.poll() is not None:
                    raise RuntimeError(f"{peer.name} did not start:\n{log.read_text(errors='replace')[-2000:]}")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{peer.name} was not ready within {_START_S:g} s")
                time.sleep(0.5)
        except BaseException:
            self.stop()
            raise

    def answer(self, prompts: Sequence[str], num_tokens: int) -> float:
        """All at once, a caller for each. Returns seconds. Raises RuntimeError for a short answer."""
        with ThreadPoolExecutor(len(prompts)) as callers:
            began = time.perf_counter()
            counts = list(callers.map(lambda prompt: self._complete(prompt, num_tokens), prompts))
            took = time.perf_counter() - began
        if set(counts) != {num_tokens}:
            raise RuntimeError(f"{self._peer.name} generated {sorted(counts)} tokens where {num_tokens} were asked for")
        return took

    def stop(self) -> None:
        """It and all the processes that it has started."""
        if self._process.poll() is None:
            self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _complete(self, prompt: str, num_tokens: int) -> int:
        peer = self._peer
        body = json.dumps({"model": peer.model, "prompt": prompt, "max_tokens": num_tokens, **peer.more})
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_S)
        try:
            connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise RuntimeError(f"{peer.name} answered {response.status}: {text[:500]!r}")
        return int(json.loads(text)["usage"]["completion_tokens"])

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()
