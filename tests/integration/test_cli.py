"""`phi3-mesh` as a person or a script uses it: real processes, a real terminal, and a server that does what we say."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mesh.messages import Refused
from tests.support.environment import clean_environment
from tests.support.eventually import eventually
from tests.support.fake_server import FakeServer, Request, answer
from tests.support.story import text_of, tokens_of

pytestmark = pytest.mark.usefixtures("plain_text")

WITHIN_S = 30
NOBODY = "127.0.0.1:9"  # the discard port: nothing listens there


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


def started(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    # Unbuffered: what a read here took in advance, communicate() would not see.
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}
    return subprocess.Popen(
        [sys.executable, "-m", "mesh.cli.main", *arguments], env=clean_environment(), **(pipes | options)
    )


def ran(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    with started(*arguments, stdin=subprocess.PIPE) as process:
        out, err = process.communicate(stdin, timeout=WITHIN_S)
    return process.returncode, out.decode(), err.decode()


def hold(request: Request) -> None:
    """Begin, and never end by itself."""
    request.tokens(1)


def whole(request: Request) -> str:
    return text_of(tokens_of(request.body, request.max_tokens), is_whole=True)


# --- generate ---------------------------------------------------------------------------------------------------------


def test_tokens_are_shown_as_they_come(server: FakeServer) -> None:
    server.script = hold
    with started("generate", "--broker", server.address, "--max-tokens", "3", "hi") as process:
        assert process.stdout is not None
        begun = process.stdout.read(2)  # blocks until the first token is there; the rest is not even sent
        server.do(server.requests[0].finish)
        rest, errors = process.communicate(timeout=WITHIN_S)

    assert (begun + rest).decode() == whole(server.requests[0]) + "\n"
    assert (process.returncode, errors) == (0, b"")


def test_a_prompt_is_a_users_message_unless_it_is_raw(server: FakeServer) -> None:
    ran("generate", "--broker", server.address, "--system", "be brief", "What", "is", "this?")
    ran("generate", "--broker", server.address, "--raw", "--stop", "\n", "--temperature", "0.5", stdin="héllo".encode())

    chat, raw = (request.body for request in server.requests)
    assert [(said["role"], said["content"]) for said in chat["messages"]] == [
        ("system", "be brief"),
        ("user", "What is this?"),
    ]
    assert (raw["prompt"], raw["stop"], raw["temperature"]) == ("héllo", ("\n",), 0.5)


def test_json_has_all_that_is_known(server: FakeServer) -> None:
    code, out, _ = ran("generate", "--broker", server.address, "--json", "--max-tokens", "2", "hi")

    told = json.loads(out)
    assert code == 0
    assert told["text"] == whole(server.requests[0])
    assert told["usage"] == {"prompt_tokens": 7, "completion_tokens": 2, "cached_tokens": 0}
    assert {"token_ids", "finish_reason", "model", "node", "seed", "ttft_s", "total_s", "attempts"} <= told.keys()


def test_the_summary_is_on_standard_error(server: FakeServer) -> None:
    code, out, err = ran("generate", "--broker", server.address, "--no-stream", "-v", "--max-tokens", "2", "hi")

    assert (code, out) == (0, whole(server.requests[0]) + "\n")
    assert re.fullmatch(r"fake · 2 tokens in \S+ s · \S+ tok/s · first after \S+ s · length\n", err)


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "told"),
    [
        (["--temperature", "99", "hi"], b"", 2, "phi3-mesh: temperature: Input should be less than or equal to 10\n"),
        (["--raw", "--system", "x", "hi"], b"", 2, "phi3-mesh: --system needs the chat format"),
        ([], b"  \n", 2, "phi3-mesh: the prompt is empty\n"),
        ([], b"\xff", 2, "phi3-mesh: standard input is not UTF-8 text"),
        (["caf\udce9"], b"", 2, "phi3-mesh: the prompt is not UTF-8 text\n"),
        (["--broker", "nowhere", "hi"], b"", 2, "phi3-mesh: address: 'nowhere' has no port"),
        (["--broker", NOBODY, "hi"], b"", 3, "phi3-mesh: no broker or node answered"),
        (["--model", "other", "hi"], b"", 1, "phi3-mesh: no\n"),
    ],
)
def test_an_error_is_one_message_and_an_exit_code(
    server: FakeServer, arguments: list[str], stdin: bytes, code: int, told: str
) -> None:
    server.script = lambda request: request.reject("no_such_model")

    done = ran("generate", "--broker", server.address, *arguments, stdin=stdin)

    assert done[:2] == (code, "")
    assert done[2].startswith(told)
    assert "Traceback" not in done[2]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopping_cancels_the_request(server: FakeServer, number: signal.Signals, code: int) -> None:
    server.script = hold
    with started("generate", "--broker", server.address, "hi") as process:
        assert process.stdout is not None
        process.stdout.read(2)
        process.send_signal(number)
        _, errors = process.communicate(timeout=WITHIN_S)

    assert (process.returncode, errors) == (code, b"")
    assert eventually(lambda: server.cancelled) == [server.requests[0].head.request_id]


def test_a_reader_that_leaves_is_no_crash(server: FakeServer) -> None:
    server.script = hold
    with started("generate", "--broker", server.address, "--max-tokens", "3", "hi") as process:
        assert process.stdout is not None
        process.stdout.read(2)
        process.stdout.close()
        server.do(server.requests[0].finish)
        assert process.wait(WITHIN_S) == 1
        assert process.stderr is not None
        assert process.stderr.read() == b""


# --- batch ------------------------------------------------------------------------------------------------------------


def given(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def records(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    whole_lines, _, _torn = path.read_text().rpartition("\n")
    return [json.loads(line) for line in whole_lines.splitlines()]


def test_each_line_gets_its_answer_and_a_bad_one_stops_nothing(server: FakeServer, tmp_path: Path) -> None:
    source = given(
        tmp_path / "in.jsonl",
        {"prompt": "a", "id": "first", "max_tokens": 2},
        "not json",
        {"messages": [{"role": "user", "content": "b"}]},
        {"prompt": "c", "temprature": 1},
    )
    target = tmp_path / "out.jsonl"

    code, out, err = ran("batch", "--broker", server.address, "--max-tokens", "3", str(source), str(target))

    by_line = {record["line"]: record for record in records(target)}
    assert (code, out, sorted(by_line)) == (1, "", [1, 2, 3, 4])
    assert (by_line[1]["id"], by_line[1]["usage"]["completion_tokens"]) == ("first", 2)
    assert by_line[3]["usage"]["completion_tokens"] == 3
    assert by_line[2]["error"]["code"] == "invalid_request"
    assert "temprature: unknown parameter" in by_line[4]["error"]["message"]
    assert f"{source}:2: invalid_request: not JSON" in err
    assert "2 answered" in err
    assert "\x1b" not in err


def test_a_killed_run_goes_on_where_it_was(server: FakeServer, tmp_path: Path) -> None:
    source = given(tmp_path / "in.jsonl", *({"prompt": f"p{number}"} for number in range(20)))
    target = tmp_path / "out.jsonl"
    arguments = ("batch", "--broker", server.address, "--max-tokens", "2", str(source), str(target))
    server.script = lambda request: answer(request) if len(server.requests) <= 7 else hold(request)
    with started(*arguments) as process:
        eventually(lambda: len(records(target)) == 7, within_s=WITHIN_S)
        process.kill()
    server.requests.clear()
    server.script = answer

    code, _, err = ran(*arguments)

    assert code == 0
    assert "going on: 7 of 20 lines are done" in err
    assert len(server.requests) == 13
    assert sorted(record["line"] for record in records(target)) == list(range(1, 21))


def test_what_failed_for_a_passing_reason_is_tried_again(server: FakeServer, tmp_path: Path) -> None:
    source = given(tmp_path / "in.jsonl", {"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"})
    target = tmp_path / "out.jsonl"
    arguments = ("batch", "--broker", server.address, str(source), str(target))

    def script(request: Request) -> None:
        if request.body["prompt"] == "a":
            request.reject("prompt_too_long")
        elif request.body["prompt"] == "b":
            request.fail("engine_failed")
        else:
            answer(request)

    server.script = script
    assert ran(*arguments)[0] == 1
    server.requests.clear()
    server.script = answer

    code, _, err = ran(*arguments)

    assert [request.body["prompt"] for request in server.requests] == ["b"]
    assert code == 1, "one line has no answer still"
    assert "trying 1 failed lines again" in err
    assert ran(*arguments, "--retry-failed")[0] == 0
    assert sorted(record["line"] for record in records(target)) == [1, 2, 3]


def test_a_changed_input_is_not_mixed_with_old_answers(server: FakeServer, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    source = given(tmp_path / "in.jsonl", {"prompt": "a"}, {"prompt": "b"})
    arguments = ("batch", "--broker", server.address, str(source), str(target))
    assert ran(*arguments)[0] == 0
    before = target.read_bytes()

    given(source, {"prompt": "a"}, {"prompt": "other"})
    changed = ran(*arguments)
    given(source, {"prompt": "a"})
    shortened = ran(*arguments)

    assert (changed[0], shortened[0], target.read_bytes()) == (2, 2, before)
    assert f"line 2 of {source} is not what the answers" in changed[2]
    assert "--restart" in shortened[2]
    assert ran(*arguments, "--restart")[0] == 0
    assert len(records(target)) == 1


def test_the_window_bounds_what_is_in_flight(server: FakeServer, tmp_path: Path) -> None:
    server.script = hold
    source = given(tmp_path / "in.jsonl", *({"prompt": f"p{number}"} for number in range(50)))
    target = tmp_path / "out.jsonl"
    arguments = ("batch", "--broker", server.address, "--window", "4", str(source), str(target))
    with started(*arguments) as process:
        eventually(lambda: len(server.requests) == 4, within_s=WITHIN_S)
        server.do(server.requests[0].finish)
        eventually(lambda: len(server.requests) == 5, within_s=WITHIN_S)  # the place that became free, no more
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WITHIN_S)

    assert (process.returncode, len(server.requests)) == (130, 5)
    assert b"stopped: 1 of 50 lines are done; run the same command again to go on" in err
    assert len(eventually(lambda: len(server.cancelled) >= 4 and server.cancelled)) == 4


def test_without_a_broker_a_batch_stops_and_says_how_to_go_on(tmp_path: Path) -> None:
    source = given(tmp_path / "in.jsonl", {"prompt": "a"})

    code, _, err = ran("batch", "--broker", NOBODY, str(source), str(tmp_path / "out.jsonl"))

    assert code == 3
    assert "run the same command again to go on" in err
    assert records(tmp_path / "out.jsonl") == []


# --- chat -------------------------------------------------------------------------------------------------------------


def said(request: Request) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in request.body["messages"]]


def test_piped_lines_are_a_conversation(server: FakeServer, tmp_path: Path) -> None:
    saved = tmp_path / "chat.json"
    lines = f"one\n/system be brief\n//two\n/save {saved}\n/quit\nnever asked\n"

    code, out, err = ran("chat", "--broker", server.address, "--max-tokens", "2", stdin=lines.encode())

    first, second = server.requests
    assert (code, out) == (0, whole(first) + "\n" + whole(second) + "\n")
    assert said(second) == [
        ("system", "be brief"),
        ("user", "one"),
        ("assistant", whole(first)),
        ("user", "/two"),
    ]
    assert len(json.loads(saved.read_text())) == 5
    assert "\x1b" not in err


def test_a_script_learns_of_failures_from_the_exit_code(server: FakeServer) -> None:
    server.script = lambda request: request.fail("invalid_request", "too silly")

    code, out, err = ran("chat", "--broker", server.address, stdin=b"one")

    assert (code, out) == (1, "")
    assert err.startswith("phi3-mesh: too silly")


class Terminal:
    """A chat at a pseudo-terminal."""

    READY = "\x1b[?2004h"  # bracketed paste goes on when the prompt waits for a line

    def __init__(self, screen: int) -> None:
        self._screen = screen
        self._seen = ""

    def types(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def shows(self, text: str) -> str:
        """Everything up to and with this text. Fails if it does not come."""
        give_up_at = time.monotonic() + WITHIN_S
        while text not in self._seen:
            readable, _, _ = select.select([self._screen], [], [], max(0.0, give_up_at - time.monotonic()))
            assert readable, f"{text!r} was not shown, but {self._seen!r}"
            self._seen += os.read(self._screen, 65536).decode(errors="replace")
        before, _, self._seen = self._seen.partition(text)
        return before + text


# Makes standard input the controlling terminal, so that Ctrl-C becomes SIGINT, and then is the command.
_AT_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


@contextmanager
def chatting(server: FakeServer, *arguments: str) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    screen, end = pty.openpty()
    env = os.environ | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
    command = [sys.executable, "-m", "mesh.cli.main", "chat", "--broker", server.address, *arguments]
    process = subprocess.Popen(
        [sys.executable, "-c", _AT_TERMINAL, *command],
        stdin=end,
        stdout=end,
        stderr=end,
        env=env,
        start_new_session=True,
    )
    os.close(end)
    try:
        yield Terminal(screen), process
    finally:
        process.kill()
        process.wait()
        os.close(screen)


def test_ctrl_c_stops_the_answer_and_not_the_chat(server: FakeServer) -> None:
    server.script = hold
    with chatting(server, "--max-tokens", "9") as (terminal, process):
        terminal.shows(Terminal.READY)
        terminal.types("first\r")
        begun = text_of(tokens_of(eventually(lambda: server.requests, WITHIN_S)[0].body, 1), is_whole=False)
        terminal.shows(begun)
        terminal.types("\x03")
        terminal.shows("stopped")
        assert eventually(lambda: server.cancelled) == [server.requests[0].head.request_id]

        server.script = answer
        terminal.shows(Terminal.READY)
        terminal.types("\x1b[200~two\nlines\x1b[201~")
        terminal.shows("lines")
        terminal.types("\r")
        terminal.shows("fake · 9 tokens")
        assert said(server.requests[1]) == [("user", "first"), ("assistant", begun), ("user", "two\nlines")]

        terminal.shows(Terminal.READY)
        terminal.types("\x03")
        terminal.shows("Ctrl-C again or Ctrl-D leaves")
        terminal.shows(Terminal.READY)
        terminal.types("\x03")
        assert process.wait(WITHIN_S) == 0


def test_a_failure_leaves_the_chat_as_it_was(server: FakeServer) -> None:
    with chatting(server, "--max-tokens", "2") as (terminal, process):
        terminal.shows(Terminal.READY)
        terminal.types("one\r")
        terminal.shows("fake · 2 tokens")
        server.script = lambda request: request.reject("prompt_too_long", "too much")
        terminal.shows(Terminal.READY)
        terminal.types("two\r")
        terminal.shows("phi3-mesh: too much")
        server.script = answer
        terminal.shows(Terminal.READY)
        terminal.types("/retry\r")
        terminal.shows("fake · 2 tokens")
        assert said(server.requests[2]) == said(server.requests[1])
        terminal.shows(Terminal.READY)
        terminal.types("\x04")
        assert process.wait(WITHIN_S) == 0


# --- doctor -----------------------------------------------------------------------------------------------------------


def test_the_doctor_names_a_port_that_refuses() -> None:
    code, out, _ = ran("doctor", "--broker", NOBODY)

    assert code == 1
    assert "✗ port       tcp://127.0.0.1:9: refused" in out
    assert "– handshake  not tested" in out
    assert "\nport: the host is there, but nothing listens on this port" in out


def test_the_doctor_names_another_mesh(server: FakeServer) -> None:
    server.hello_answer = lambda hello: Refused("wrong_mesh", "this is mesh 'lab'")

    code, out, _ = ran("doctor", "--broker", server.address)

    assert code == 1
    assert "✗ handshake" in out
    assert "its name with --mesh NAME" in out


def test_the_doctor_finds_nobody_soon_and_says_what_to_do() -> None:
    began_at = time.monotonic()
    code, out, _ = ran("doctor", "--interface", "127.0.0.1", "--mesh", f"nobody-{os.getpid()}")

    assert code == 1
    assert time.monotonic() - began_at < 5
    assert "no broker found; start one with `phi3-broker serve`, or pass --broker HOST:PORT" in out


def test_the_doctor_is_content_with_a_node_that_answers(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    arguments = ("--insecure", "--engine", "synthetic", "--bind", "127.0.0.1:0", "--no-mdns", "--name", "alpha")
    with log.open("wb") as output:
        node = subprocess.Popen([sys.executable, "-m", "node.cli", *arguments], stdout=output, stderr=output)
    try:
        eventually(lambda: " ready " in log.read_text(), within_s=WITHIN_S)
        found = re.search(r"tcp://[\d.]+:\d+", log.read_text())
        assert found is not None
        code, out, _ = ran("doctor", "--broker", found[0])
    finally:
        node.terminate()
        node.wait(WITHIN_S)

    assert (code, out.splitlines()[-1]) == (0, "the mesh works from here")
    for step in ("interfaces", "address", "port", "handshake", "nodes", "models", "answer"):
        assert f"✓ {step}" in out
