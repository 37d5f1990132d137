"""The client against a scripted server, over real sockets: what its callers are promised."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import uvloop

from mesh import (
    AsyncClient,
    BrokerUnreachable,
    Cancelled,
    Client,
    Completion,
    ConfigError,
    DeadlineExceeded,
    EngineFailed,
    InvalidRequest,
    NoSuchModel,
    PromptTooLong,
    Refused,
    Rejected,
)
from mesh import messages as wire
from mesh.discovery import find as find_module
from tests.support.eventually import eventually
from tests.support.fake_server import FakeServer, Request
from tests.support.story import text_of, tokens_of

pytestmark = pytest.mark.usefixtures("plain_text")


def whole_text(prompt: str, count: int) -> str:
    return text_of(tokens_of({"prompt": prompt}, count), is_whole=True)


def stay_silent(request: Request) -> None:
    """Takes the request in and never answers it."""


def no_leftover_threads() -> bool:
    return not any(thread.name == "mesh-client" for thread in threading.enumerate())


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client
    assert no_leftover_threads()


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else None

    def run(coroutine: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(coroutine, 20))

    return run


async def soon(probe: Callable[[], Any]) -> Any:
    """`eventually` for a coroutine: the loop under test must go on."""
    return await asyncio.to_thread(eventually, probe)


# --- plain use --------------------------------------------------------------------------------------------------------


def test_a_completion_comes_back_whole(client):
    completion = client.generate("hello", max_tokens=4)

    assert str(completion) == whole_text("hello", 4)
    assert completion.usage.completion_tokens == 4
    assert completion.attempts == 1


def test_a_chat_is_sent_as_messages(client, server):
    client.chat([{"role": "user", "content": "hello"}], max_tokens=2)
    assert server.requests[0].body["messages"] == ({"role": "user", "content": "hello"},)


def test_a_stream_gives_the_text_in_pieces_and_then_the_result(client, server):
    server.script = lambda request: request.finish(in_steps_of=2)
    stream = client.stream("hello", max_tokens=7)
    with pytest.raises(RuntimeError, match="has not ended"):
        stream.result  # noqa: B018  # the access is the test

    chunks = list(stream)
    assert [len(chunk.token_ids) for chunk in chunks] == [2, 2, 2, 1]
    assert "".join(map(str, chunks)) == str(stream.result) == whole_text("hello", 7)


def test_a_batch_keeps_its_order_and_leaves_in_as_few_messages_as_allowed(client, server):
    held: list[Request] = []
    server.script = held.append

    def answer_backwards() -> None:
        eventually(lambda: len(held) == 100)
        server.do(lambda: [request.finish() for request in reversed(held)])

    helper = threading.Thread(target=answer_backwards)
    helper.start()
    progress: list[tuple[int, int]] = []
    completions = client.generate_batch(
        [f"p{n}" for n in range(100)], max_tokens=3, on_progress=lambda done, total: progress.append((done, total))
    )
    helper.join()

    assert [str(completion) for completion in completions] == [whole_text(f"p{n}", 3) for n in range(100)]
    assert progress == [(n, 100) for n in range(1, 101)]
    assert [len(submit.requests) for submit in server.received(wire.Submit)] == [64, 36]  # max_batch is 64


def test_a_batch_entry_may_have_parameters_of_its_own(client):
    completions = client.generate_batch(["a", {"prompt": "b", "max_tokens": 2}], max_tokens=5)
    assert [len(completion.token_ids) for completion in completions] == [5, 2]


def test_one_bad_answer_is_raised_or_returned(client, server):
    server.script = lambda request: (
        request.reject("no_such_model", "there is only fake-model")
        if request.body["prompt"] == "b"
        else request.finish()
    )
    with pytest.raises(NoSuchModel, match="only fake-model"):
        client.generate_batch(["a", "b", "c"])
    outcomes = client.generate_batch(["a", "b", "c"], return_errors=True)
    assert [type(outcome) for outcome in outcomes] == [Completion, NoSuchModel, Completion]


def test_answers_can_be_taken_as_they_come(client, server):
    held: list[Request] = []
    server.script = held.append
    results = client.as_completed(["a", "b"], max_tokens=1)
    eventually(lambda: len(held) == 2)

    server.do(held[1].finish)
    assert next(results)[0] == 1
    server.do(held[0].finish)
    assert next(results)[0] == 0
    assert list(results) == []


def test_several_choices_differ_by_their_seeds(client, server):
    completion = client.generate("hello", n=3, temperature=1.0, seed=10, max_tokens=4)

    assert [choice.seed for choice in completion.choices] == [10, 11, 12]
    assert len({choice.text for choice in completion.choices}) == 3
    assert completion.usage.completion_tokens == 12


def test_an_empty_batch_needs_no_server():
    with Client("127.0.0.1:9") as client:
        assert client.generate_batch([]) == []


def test_a_wrong_parameter_is_refused_before_anything_is_sent(client, server):
    with pytest.raises(InvalidRequest, match="temprature: unknown parameter"):
        client.generate("hello", temprature=1)
    with pytest.raises(InvalidRequest, match="max_tokens"):
        client.stream("hello", max_tokens=0)
    assert server.messages == []


def test_a_prompt_over_the_limit_of_the_server_stays_here(client, server):
    with pytest.raises(PromptTooLong, match="at most 1048576"):
        client.generate("x" * (2 << 20))
    assert client.generate("small", max_tokens=1).attempts == 1


def test_status_models_and_drain(client):
    assert client.status().name == "fake"
    assert [model.name for model in client.models()] == ["fake-model"]
    assert client.drain("n1") == "drain n1"
    with pytest.raises(Rejected, match="no such node"):
        client.undrain("n2")


def test_threads_share_one_client(client):
    texts: dict[int, str] = {}

    def ask(number: int) -> None:
        texts[number] = str(client.generate(f"p{number}", max_tokens=2))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {number: whole_text(f"p{number}", 2) for number in range(8)}


def test_the_async_client_does_the_same_on_either_loop(server, run):
    server.script = lambda request: request.finish(in_steps_of=1)

    async def scenario() -> None:
        async with AsyncClient(server.address) as client:
            assert str(await client.generate("a", max_tokens=2)) == whole_text("a", 2)
            stream = client.stream("b", max_tokens=3)
            assert "".join([chunk.text async for chunk in stream]) == str(stream.result)
            texts = await asyncio.gather(*(client.generate(f"p{n}", max_tokens=2) for n in range(50)))
            assert [str(text) for text in texts] == [whole_text(f"p{n}", 2) for n in range(50)]

    run(scenario())


def test_the_blocking_client_works_under_a_running_loop_as_in_a_notebook(server):
    async def cell() -> str:
        with Client(server.address) as client:
            return str(client.generate("a", max_tokens=2))

    assert asyncio.run(cell()) == whole_text("a", 2)


# --- leaving early ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", ["close", "break", "with", "error"])
def test_leaving_a_stream_cancels_its_request(client, server, leave):
    server.script = lambda request: request.tokens(2)
    stream = client.stream("hello")
    if leave == "close":
        next(stream)
        stream.close()
    elif leave == "break":
        for _ in stream:
            break
        del stream, _
        gc.collect()
    elif leave == "with":
        with stream:
            next(stream)
    else:
        with contextlib.suppress(ZeroDivisionError), stream:
            next(stream)
            raise ZeroDivisionError
    eventually(lambda: server.cancelled == [1])


def test_breaking_out_of_an_async_stream_cancels_its_request(server, run):
    server.script = lambda request: request.tokens(2)

    async def scenario() -> None:
        async with AsyncClient(server.address) as client:
            async for _ in client.stream("hello"):
                break
            await soon(lambda: server.cancelled == [1])

    run(scenario())


def test_cancelling_the_task_cancels_the_request(server, run):
    server.script = stay_silent

    async def scenario() -> None:
        async with AsyncClient(server.address) as client:
            tasks = [
                asyncio.create_task(client.generate("a")),
                asyncio.create_task(client.generate_batch(["b", "c"])),
            ]
            await soon(lambda: len(server.requests) == 3)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await soon(lambda: sorted(server.cancelled) == [1, 2, 3])

    run(scenario())


def test_leaving_a_batch_cancels_the_rest_in_one_message(client, server):
    server.script = lambda request: request.finish() if request.body["prompt"] == "p0" else None
    with client.as_completed([f"p{n}" for n in range(10)], max_tokens=1) as results:
        assert next(results)[0] == 0
    eventually(lambda: len(server.cancelled) == 9)
    assert len(server.received(wire.Cancel)) == 1


def test_closing_the_client_ends_what_is_unfinished_and_says_bye(server):
    server.script = stay_silent
    client = Client(server.address)
    errors: list[str] = []

    def wait() -> None:
        with pytest.raises(Cancelled) as caught:
            client.generate("hello")
        errors.append(str(caught.value))

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: server.requests)
    client.close()
    waiting.join(5)
    assert errors == ["the client was closed"]
    eventually(lambda: server.received(wire.Bye))
    with pytest.raises(ConfigError, match="closed"):
        client.generate("more")


def test_a_client_that_is_dropped_frees_its_thread(server):
    Client(server.address).generate("hello", max_tokens=1)
    gc.collect()
    eventually(no_leftover_threads)
    eventually(lambda: server.received(wire.Bye))


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_deadline_ends_the_wait_and_cancels_on_the_server(client, server):
    server.script = lambda request: request.tokens(2)
    with pytest.raises(DeadlineExceeded, match=r"timeout_s=0\.3: 2 of at most 256 tokens"):
        client.generate("hello", timeout_s=0.3)
    eventually(lambda: server.cancelled == [1])
    assert 0 < server.requests[0].head.deadline_s <= 0.3


def test_a_dead_port_is_an_error_in_time_that_says_what_was_tried():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    began = time.monotonic()
    with Client(address, connect_timeout_s=0.5) as client, pytest.raises(BrokerUnreachable) as caught:
        client.generate("hello")
    assert time.monotonic() - began < 1.5
    assert f"{address}: connection refused" in str(caught.value)
    assert "phi3-mesh doctor" in str(caught.value)


def test_a_port_that_does_not_answer_is_an_error_in_time():
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        with (
            Client(address, connect_timeout_s=0.5) as client,
            pytest.raises(BrokerUnreachable, match="no answer within"),
        ):
            client.status()


def test_a_server_that_is_still_starting_is_waited_for():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{unused.getsockname()[1]}"
    with Client(address) as client:
        results: list[Completion] = []
        asking = threading.Thread(target=lambda: results.append(client.generate("hello", max_tokens=1)))
        asking.start()
        with FakeServer(address=address):
            asking.join(5)
        assert [str(result) for result in results] == [whole_text("hello", 1)]


def test_another_mesh_refuses_at_once_and_says_why(server):
    server.hello_answer = lambda hello: wire.Refused("wrong_mesh", f"this is mesh blue, not {hello.mesh}")
    began = time.monotonic()
    with Client(server.address, mesh="red") as client, pytest.raises(Refused, match="mesh blue, not red") as caught:
        client.generate("hello")
    assert caught.value.code == "wrong_mesh"
    assert time.monotonic() - began < 1.5


def test_a_name_is_tried_at_each_of_its_addresses(server):
    """localhost is ::1 first on many hosts, and the server listens on 127.0.0.1 alone."""
    with Client(server.address.replace("127.0.0.1", "localhost")) as client:
        assert client.status().name == "fake"


def test_without_an_address_the_network_is_searched(server, monkeypatch):
    monkeypatch.delenv("PHI3_MESH_BROKER", raising=False)
    asked: list[str] = []

    async def find(mesh: str, timeout_s: float, interfaces: list[str] | None) -> find_module.Found:
        asked.append(mesh)
        return find_module.Found([server.address] if mesh == "default" else [], [], [f"mDNS for mesh {mesh!r}: nobody"])

    monkeypatch.setattr(find_module, "find_broker", find)
    with Client() as client:
        assert client.status().name == "fake"
    with (
        Client(mesh="blue", connect_timeout_s=0.2) as client,
        pytest.raises(BrokerUnreachable, match="mDNS for mesh 'blue': nobody"),
    ):
        client.status()
    assert asked[:2] == ["default", "blue"]


# --- failures that no caller sees -------------------------------------------------------------------------------------


def test_a_node_lost_in_mid_stream_is_a_pause_and_not_an_error(client, server):
    def script(request: Request) -> None:
        if request.head.attempt < 3:
            request.tokens(3)
            request.lost()
        else:
            request.finish()

    server.script = script
    stream = client.stream("hello", max_tokens=10)
    assert "".join(map(str, stream)) == whole_text("hello", 10)
    assert stream.result.attempts == 3
    assert [len(request.body.get("resume", ())) for request in server.requests] == [0, 3, 6]


def test_repeated_and_missing_frames_do_not_show(client, server):
    def script(request: Request) -> None:
        request.tokens(2)
        if request.head.attempt == 1:
            request.tokens(2, start=0)
            request.tokens(2, start=5)  # a gap
            request.tokens(2, start=2)  # of an attempt that is over by now
        else:
            request.finish()

    server.script = script
    assert str(client.generate("hello", max_tokens=8)) == whole_text("hello", 8)
    assert len(server.requests) == 2


def test_an_overloaded_server_is_asked_again(client, server):
    server.script = lambda request: (
        request.reject("overloaded", "full", 0.01) if request.head.attempt < 4 else request.finish()
    )
    assert client.generate("hello", max_tokens=1).attempts == 4


def test_a_poison_request_ends_after_max_attempts_with_its_story(server):
    server.script = lambda request: request.fail("engine_failed", "CUDA error")
    with Client(server.address, max_attempts=2) as client, pytest.raises(EngineFailed) as caught:
        client.generate("hello")
    assert caught.value.attempts == ("attempts 1-2: engine_failed: node n1: CUDA error",)


def test_a_restarted_server_gets_the_unfinished_requests_again(run):
    async def scenario() -> None:
        with FakeServer(lambda request: request.tokens(3)) as first:
            client = AsyncClient(first.address)
            stream = client.stream("hello", max_tokens=9)
            texts = [(await anext(stream)).text]
            await asyncio.to_thread(first.stop)
        with FakeServer(address=first.address) as second:
            texts += [chunk.text async for chunk in stream]
            assert len(second.requests[0].body["resume"]) == 3
            await client.close()
        assert "".join(texts) == whole_text("hello", 9)
        assert stream.result.attempts == 2

    run(scenario())


def test_the_second_broker_takes_over_from_the_first():
    with (
        FakeServer(lambda request: request.tokens(3)) as first,
        FakeServer() as second,
        Client([first.address, second.address]) as client,
    ):
        stream = client.stream("hello", max_tokens=9)
        text = str(next(stream))
        first.stop()
        text += "".join(map(str, stream))
        assert text == whole_text("hello", 9)
        assert client.generate("more", max_tokens=1).attempts == 1
        assert len(second.received(wire.Hello)) == 1


def test_a_silent_server_is_given_up_though_its_connection_stands():
    with (
        FakeServer(stay_silent, heartbeat_s=0.1) as first,
        FakeServer() as second,
        Client([first.address, second.address]) as client,
    ):
        stream = client.stream("hello", max_tokens=3)
        eventually(lambda: first.requests)
        first.is_silent = True
        assert "".join(map(str, stream)) == whole_text("hello", 3)


def test_garbage_costs_the_session_and_not_the_answer(client, server):
    def script(request: Request) -> None:
        server.num_garbled = 1 if request.head.attempt == 1 else 0
        request.finish()

    server.script = script
    assert client.generate("hello", max_tokens=3).attempts == 2
    assert len(server.received(wire.Hello)) == 2


def test_a_server_that_has_forgotten_the_client_is_greeted_again(client, server):
    def script(request: Request) -> None:
        if request.head.attempt == 1:
            server.send(request.route, wire.Refused("no_hello", "who are you?"))
        else:
            request.finish()

    server.script = script
    assert client.generate("hello", max_tokens=3).attempts == 2


def test_a_question_to_a_server_that_has_forgotten_the_client_is_asked_again(client, server):
    server.num_forgotten = 1

    assert client.status().name == "fake"
    assert len(server.received(wire.Hello)) == 2


def test_long_prompts_leave_in_messages_of_a_bounded_size(client, server):
    """Behind one of a hundred megabytes, heartbeats would wait until the session is given up."""
    answers = client.generate_batch(["x" * 100_000 for _ in range(40)], max_tokens=1)

    assert [answer.attempts for answer in answers] == [1] * 40
    assert max(len(submit.requests) for submit in server.received(wire.Submit)) <= 11  # a mebibyte, and the last one


def test_a_process_that_stood_still_begins_again():
    """The server has cancelled our requests meanwhile, and says no word about them."""

    async def scenario(server: FakeServer) -> None:
        async with AsyncClient(server.address, max_attempts=1) as client:
            asking = asyncio.create_task(client.generate("hello", max_tokens=2))
            await soon(lambda: server.requests)
            time.sleep(0.5)  # noqa: ASYNC251  # the loop is meant to stand still: the lease is 0.3 s
            assert (await asking).attempts >= 2

    with FakeServer(lambda request: request.finish() if request.head.attempt > 1 else None, heartbeat_s=0.1) as server:
        asyncio.run(scenario(server))


def test_brokers_that_stay_away_end_the_wait():
    with FakeServer(stay_silent) as server, Client(server.address, reconnect_timeout_s=0.3) as client:
        stream = client.stream("hello")
        eventually(lambda: server.requests)
        server.stop()
        with pytest.raises(BrokerUnreachable, match=r"within 0\.3 s"):
            list(stream)


# --- the interpreter --------------------------------------------------------------------------------------------------


def python(code: str, address: str, *, send: int | None = None) -> subprocess.CompletedProcess[str]:
    """A program that ends by itself within seconds, or the test fails."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), address],
        capture_output=True,
        text=True,
        timeout=10,
    )


WAIT_IN_A_THREAD = """
import contextlib, threading
def wait():
    with contextlib.suppress(mesh.Cancelled):
        client.generate("silent")
threading.Thread(target=wait, daemon=True).start()
client.generate("a", max_tokens=1)  # by the end of it, the other call waits too
"""


@pytest.mark.parametrize(
    "code",
    ["client.generate('a', max_tokens=1)", "stream = client.stream('silent')", WAIT_IN_A_THREAD],
    ids=["idle", "unfinished", "waited for"],
)
def test_a_program_that_forgets_close_ends_quietly(server, code):
    server.script = lambda request: None if request.body["prompt"] == "silent" else request.finish()
    result = python(f"import sys, mesh\nclient = mesh.Client(sys.argv[1])\n{code}", server.address)
    assert (result.returncode, result.stderr) == (0, "")


def test_an_async_program_that_forgets_close_ends_quietly(server):
    code = """
        import asyncio, sys, mesh
        client = mesh.AsyncClient(sys.argv[1])
        print(asyncio.run(client.generate("a", max_tokens=1)))
    """
    result = python(code, server.address)
    assert (result.returncode, result.stderr, result.stdout.strip()) == (0, "", whole_text("a", 1).strip())


def test_a_forked_child_gets_an_error_instead_of_a_hang(server):
    code = """
        import os, sys, mesh
        client = mesh.Client(sys.argv[1])
        client.generate("a", max_tokens=1)
        child = os.fork()
        if child == 0:
            try:
                client.generate("b")
            except mesh.ConfigError as error:
                print(error, flush=True)
            with mesh.Client(sys.argv[1]) as own:
                print(own.generate("c", max_tokens=1), flush=True)
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        client.generate("d", max_tokens=1)
    """
    result = python(code, server.address)
    assert (result.returncode, result.stderr) == (0, "")
    assert "before fork()" in result.stdout
    assert whole_text("c", 1) in result.stdout


def test_ctrl_c_while_waiting_cancels_the_request_and_is_raised(server):
    server.script = stay_silent
    code = """
        import signal, sys, threading, mesh
        client = mesh.Client(sys.argv[1])
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            client.generate("a")
        except KeyboardInterrupt:
            print("interrupted")
        client.close()
    """
    result = python(code, server.address)
    assert (result.returncode, result.stdout, result.stderr) == (0, "interrupted\n", "")
    eventually(lambda: server.cancelled == [1])
