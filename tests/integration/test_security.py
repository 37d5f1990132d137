"""Real sockets on loopback: who gets in and as whom; who does not, and that both sides know why within a second."""

from __future__ import annotations

import asyncio
import logging
import re
import socket as posix
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import zmq

from mesh.connection import ConfigureSocket, Connection
from mesh.errors import ConfigError
from mesh.link import Context, Frames, Link, new_socket
from mesh.security.gatekeeper import Gatekeeper
from mesh.security.identified import server_link
from mesh.security.keys import MEMBER, Credentials, KeyPair, Secret
from mesh.security.reasons import DownReason
from mesh.security.registry import ClientRegistry
from mesh.security.sockets import secure_client, secure_server
from mesh.security.tokens import member_token, parse_token

MESH = Credentials.of_member(KeyPair.new())
OTHER_MESH = Credentials.of_member(KeyPair.new())
STRANGER = Credentials(MESH.mesh_public, KeyPair.new(), "stranger")
PROMPT = b"the words of a prompt that nobody else may read"


class Server:
    """A ROUTER that answers each message with who sent it, and the message."""

    def __init__(self, context: Context, registry: ClientRegistry | None, member: Credentials | None = MESH) -> None:
        self.users: list[str] = []
        self.gate = Gatekeeper(context, member, registry) if member is not None else None
        socket = new_socket(context, zmq.ROUTER)
        if self.gate is not None:
            self.gate.guard(socket)
        socket.bind("tcp://127.0.0.1:*")
        self.address = bytes(socket.last_endpoint).decode()
        self.port = int(self.address.rpartition(":")[2])
        self.link = server_link(socket, self.gate, self._on_frames)

    @property
    def counters(self) -> dict[str, int]:
        assert self.gate is not None
        return dict(self.gate.counters)

    def _on_frames(self, user: str, frames: Frames) -> None:
        self.users.append(user)
        self.link.send([frames[0], b"", user.encode(), *frames[2:]])

    def close(self) -> None:
        self.link.close()
        if self.gate is not None:
            self.gate.close()


@dataclass
class Answer:
    """What a caller experienced."""

    user: str = ""
    body: bytes = b""
    down: DownReason | None = None
    after_s: float = 0.0

    @property
    def code(self) -> str:
        assert self.down is not None
        return self.down.code


class Caller:
    """A Connection that says one thing when it is up."""

    def __init__(self, context: Context, address: str, configure: ConfigureSocket | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._answer: asyncio.Future[Answer] = self._loop.create_future()
        self.connection = Connection(
            context,
            address,
            on_up=self.ask,
            on_down=lambda reason: self._end(Answer(down=reason)),
            on_frames=lambda frames: self._end(Answer(frames[1].decode(), frames[2])),
            configure=configure,
        )

    def ask(self) -> None:
        self.connection.send([b"", PROMPT])

    async def answer(self, within_s: float = 1.0) -> Answer:
        async with asyncio.timeout(within_s):
            answer = await self._answer
        self._answer = self._loop.create_future()
        return answer

    def _end(self, answer: Answer) -> None:
        answer.after_s = self._loop.time() - self._began_at
        if not self._answer.done():
            self._answer.set_result(answer)


@dataclass
class Net:
    """One context for servers and one for callers, as if they were processes of their own."""

    home: Path
    servers: Context
    callers: Context
    stack: ExitStack

    @property
    def registry(self) -> ClientRegistry:
        return ClientRegistry(self.home)

    def server(self, *, registry: ClientRegistry | None = None, member: Credentials | None = MESH) -> Server:
        return self.stack.enter_context(closing(Server(self.servers, registry or self.registry, member)))

    def caller(self, address: str, configure: ConfigureSocket | None) -> Caller:
        caller = Caller(self.callers, address, configure)
        self.stack.callback(caller.connection.close)
        return caller

    async def call(self, address: str, configure: ConfigureSocket | None, within_s: float = 1.0) -> Answer:
        return await self.caller(address, configure).answer(within_s)


def run(test: Callable[[Net], Coroutine[None, None, None]], home: Path) -> None:
    """Runs it on a loop of its own, and sees to it that no socket is left open."""

    async def main() -> None:
        with ExitStack() as stack:
            net = Net(home, zmq.Context(), zmq.Context(), stack)
            await test(net)
        for context in (net.callers, net.servers):
            ending = threading.Thread(target=context.term, daemon=True)
            ending.start()
            await asyncio.to_thread(ending.join, 5)
            assert not ending.is_alive(), "a socket was left open"

    asyncio.run(main())


async def soon(probe: Callable[[], bool], within_s: float = 1.0) -> None:
    """Waits for something that the loop does meanwhile."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + within_s
    while not probe():
        assert loop.time() < give_up_at, f"not within {within_s} s"
        await asyncio.sleep(0.002)


# --- who gets in, and as whom -----------------------------------------------------------------------------------------


def test_a_member_and_a_client_get_in_as_what_they_are(tmp_path: Path) -> None:
    async def test(net: Net) -> None:
        server = net.server()
        alice = parse_token(net.registry.add("alice", MESH))
        assert (await net.call(server.address, secure_client(MESH))).user == MEMBER
        assert (await net.call(server.address, secure_client(alice))).user == "client:alice"

    run(test, tmp_path)


def test_two_servers_of_one_context_share_a_gatekeeper(tmp_path: Path) -> None:
    async def test(net: Net) -> None:
        server = net.server()
        assert server.gate is not None
        second = new_socket(net.servers, zmq.ROUTER)
        server.gate.guard(second)
        second.bind("tcp://127.0.0.1:*")
        users: list[str] = []
        link = server_link(second, server.gate, lambda user, frames: users.append(user))
        net.caller(bytes(second.last_endpoint).decode(), secure_client(MESH))
        await soon(lambda: users == [MEMBER])
        link.close()
        answer = await net.call(server.address, secure_client(STRANGER))
        assert answer.code == "unknown_key"

    run(test, tmp_path)


def test_with_insecure_everyone_on_this_machine_is_a_member(tmp_path: Path) -> None:
    async def test(net: Net) -> None:
        server = net.server(member=None)
        assert (await net.call(server.address, None)).user == MEMBER

    run(test, tmp_path)


# --- who does not, and what both sides hear ---------------------------------------------------------------------------


def _revoked(net: Net) -> Credentials:
    token = net.registry.add("carol", MESH)
    net.registry.revoke("carol")
    return parse_token(token)


def _pretender(net: Net) -> Credentials:
    """Says that its key is the mesh's, which it cannot prove."""
    return Credentials(MESH.mesh_public, KeyPair(MESH.mesh_public, KeyPair.new().secret))


REFUSED: dict[str, tuple[Callable[[Net], ConfigureSocket], str]] = {
    "of another mesh": (lambda net: secure_client(OTHER_MESH), "wrong_mesh"),
    "of an unknown client": (lambda net: secure_client(STRANGER), "unknown_key"),
    "of a revoked client": (lambda net: secure_client(_revoked(net)), "revoked_key"),
    "that is only the mesh's public half": (lambda net: secure_client(_pretender(net)), "wrong_mesh"),
}


@pytest.mark.parametrize(("who", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_both_sides_know_within_a_second_why_a_key_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, who: Callable[[Net], ConfigureSocket], code: str
) -> None:
    async def test(net: Net) -> None:
        server = net.server()
        answer = await net.call(server.address, who(net))
        assert answer.code == code
        assert answer.after_s < 1.0
        await soon(lambda: server.counters == {code: 1})
        # The address of one that libzmq refuses by itself is asked of the operating system, and may come too late.
        address = r"127\.0\.0\.1" if code.endswith("key") else r"(127\.0\.0\.1|\?)"
        assert re.fullmatch(f"refused address={address} reason={code}", caplog.messages[-1])
        assert server.users == []

    run(test, tmp_path)


@pytest.mark.parametrize("is_server_closed", [True, False])
def test_plain_text_and_encryption_never_meet(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_server_closed: bool
) -> None:
    """Both hang up at once; whether they have read why before the other did is a matter of microseconds."""
    caplog.set_level(logging.INFO)

    async def test(net: Net) -> None:
        server = net.server(member=MESH if is_server_closed else None)
        answer = await net.call(server.address, None if is_server_closed else secure_client(MESH))
        assert answer.code in (("encrypted", "no_handshake") if is_server_closed else ("not_encrypted", "wrong_mesh"))
        assert "--insecure" in str(answer.down)
        if is_server_closed:
            await soon(lambda: list(server.counters) in (["not_encrypted"], ["no_handshake"]))
            assert "reason=" + next(iter(server.counters)) in caplog.text
        assert server.users == []

    run(test, tmp_path)


def test_an_impostor_with_the_public_key_of_the_mesh_hears_nothing(tmp_path: Path) -> None:
    """A client knows that key, and mDNS would let it advertise itself."""

    async def test(net: Net) -> None:
        impostor = new_socket(net.servers, zmq.ROUTER)
        secure_server(impostor, Credentials(MESH.mesh_public, KeyPair(MESH.mesh_public, KeyPair.new().secret)))
        impostor.zap_enforce_domain = False  # it lets everyone in
        impostor.bind("tcp://127.0.0.1:*")
        heard: list[Frames] = []
        link = Link(impostor, heard.append)
        answer = await net.call(bytes(impostor.last_endpoint).decode(), secure_client(MESH))
        assert answer.code == "wrong_mesh"
        assert heard == []
        link.close()

    run(test, tmp_path)


def test_a_server_whose_gatekeeper_is_missing_lets_nobody_in(tmp_path: Path) -> None:
    """libzmq's default is the opposite."""

    async def test(net: Net) -> None:
        socket = new_socket(net.servers, zmq.ROUTER)
        secure_server(socket, MESH)
        socket.bind("tcp://127.0.0.1:*")
        answer = await net.call(bytes(socket.last_endpoint).decode(), secure_client(MESH))
        assert answer.down is not None
        socket.close()

    run(test, tmp_path)


def test_a_node_takes_no_clients_when_it_has_no_registry(tmp_path: Path) -> None:
    async def test(net: Net) -> None:
        alice = parse_token(net.registry.add("alice", MESH))
        node = Server(net.servers, None)
        net.stack.callback(node.close)
        answer = await net.call(node.address, secure_client(alice))
        assert answer.code == "unknown_key"
        assert "a node takes members only" in str(answer.down)

    run(test, tmp_path)


def test_a_caller_cannot_write_who_it_is(tmp_path: Path) -> None:
    """Metadata of the same name may come with the handshake, and the Gatekeeper's must win. libzmq's own clients cannot
    send it, so this one is made by hand; without encryption, because libzmq treats metadata the same with it."""

    async def test(net: Net) -> None:
        gate = Gatekeeper(net.servers, MESH)
        socket = new_socket(net.servers, zmq.ROUTER)
        socket.zap_domain = b"mesh"
        socket.bind("tcp://127.0.0.1:*")
        users: list[str] = []
        link = server_link(socket, gate, lambda user, frames: users.append(user))
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(bytes(socket.last_endpoint).rpartition(b":")[2])
        )
        writer.write(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL".ljust(55, b"\0"))
        await reader.readuntil(b"ROUTER")
        properties = {b"Socket-Type": b"DEALER", b"User-Id": b"member"}
        ready = b"\x05READY" + b"".join(
            bytes([len(name)]) + name + len(value).to_bytes(4) + value for name, value in properties.items()
        )
        writer.write(bytes([4, len(ready)]) + ready + b"\x01\x00" + b"\x00\x02hi")
        await soon(lambda: bool(users))
        writer.close()
        assert users == ["anonymous"]
        link.close()
        gate.close()

    run(test, tmp_path)


def test_a_client_key_cannot_be_a_server(tmp_path: Path) -> None:
    async def test(net: Net) -> None:
        with pytest.raises(ConfigError, match="only a member"):
            Gatekeeper(net.servers, STRANGER)
        socket = new_socket(net.servers, zmq.ROUTER)
        with pytest.raises(ConfigError, match="only a member"):
            secure_server(socket, STRANGER)
        socket.close()

    run(test, tmp_path)


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 100], ids=["nothing", "HTTP"])
def test_what_is_no_server_of_ours_is_an_error_too(tmp_path: Path, greeting: bytes) -> None:
    async def test(net: Net) -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(greeting)
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_server(greet, "127.0.0.1", 0) as other:
            port = other.sockets[0].getsockname()[1]
            answer = await net.call(f"tcp://127.0.0.1:{port}", secure_client(MESH))
            assert answer.down is not None

    run(test, tmp_path)


# --- revoking ---------------------------------------------------------------------------------------------------------


def test_a_revoked_client_is_out_at_once_and_nobody_else(tmp_path: Path) -> None:
    async def test(net: Net) -> None:
        server = net.server()
        assert server.gate is not None
        command = ClientRegistry(net.home)  # another process
        alice, bob = (parse_token(command.add(name, MESH)) for name in ("alice", "bob"))
        connected = net.caller(server.address, secure_client(alice))
        assert (await connected.answer()).user == "client:alice"
        assert server.gate.unwelcome([MEMBER, "client:alice", "client:bob"]) == set()

        command.revoke("alice")

        assert (await net.call(server.address, secure_client(alice))).code == "revoked_key"
        # And this is how the server knows that it has to end what she has open.
        assert server.gate.unwelcome([MEMBER, "client:alice", "client:bob"]) == {"client:alice"}
        assert (await net.call(server.address, secure_client(bob))).user == "client:bob"
        strangers = {"", "client:", "client:nobody", "Member", "anonymous"}
        assert server.gate.unwelcome(strangers) == strangers

    run(test, tmp_path)


def test_a_registry_that_cannot_be_read_lets_members_in_and_no_clients(tmp_path: Path) -> None:
    async def test(net: Net) -> None:
        server = net.server()
        alice = parse_token(net.registry.add("alice", MESH))
        net.registry.folder.chmod(0o777)
        assert (await net.call(server.address, secure_client(alice))).code == "unknown_key"
        assert (await net.call(server.address, secure_client(MESH))).user == MEMBER
        with pytest.raises(ConfigError, match="chmod 700"):
            net.registry.clients()

    run(test, tmp_path)


# --- noise ------------------------------------------------------------------------------------------------------------


def test_five_hundred_half_open_connections_do_not_stop_a_good_client(tmp_path: Path) -> None:
    async def test(net: Net) -> None:
        server = net.server()
        greeting = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01CURVE".ljust(54, b"\0")
        with ExitStack() as stack:
            strangers = [
                stack.enter_context(posix.create_connection(("127.0.0.1", server.port), timeout=5)) for _ in range(500)
            ]
            for number, stranger in enumerate(strangers):
                stranger.sendall(greeting[: number % 65])
            answer = await net.call(server.address, secure_client(MESH))
            assert answer.user == MEMBER

            # And they are gone when their time is up, so that their number is bounded by their rate.
            await soon(lambda: server.counters.get("no_handshake", 0) == 500, within_s=8)
            assert (await net.call(server.address, secure_client(MESH))).user == MEMBER

    run(test, tmp_path)


def test_a_flood_while_the_loop_stands_still_does_not_stop_the_server(tmp_path: Path) -> None:
    """At the limit of an ordinary monitor socket, some 2,000 events, libzmq's I/O thread would wait for this loop."""

    async def test(net: Net) -> None:
        server = net.server()
        for _ in range(3000):
            posix.create_connection(("127.0.0.1", server.port), timeout=2).close()
        assert (await net.call(server.address, secure_client(MESH), within_s=5)).user == MEMBER

    run(test, tmp_path)


def test_garbage_is_counted_and_harms_nobody(tmp_path: Path) -> None:
    async def test(net: Net) -> None:
        server = net.server()
        with closing(posix.create_connection(("127.0.0.1", server.port))) as stranger:
            stranger.sendall(
                (b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01CURVE".ljust(54, b"\0")) + b"\x04\x64" + bytes(100)
            )
            await soon(lambda: bool(server.counters))
        assert sum(server.counters.values()) == 1
        assert (await net.call(server.address, secure_client(MESH))).user == MEMBER

    run(test, tmp_path)


# --- nothing leaks ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def wiretap(port: int) -> AsyncIterator[tuple[str, bytearray]]:
    """The address of a relay to that port, and all that goes through it."""
    seen = bytearray()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            seen.extend(data)
            writer.write(data)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer), return_exceptions=True)

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as relay_server:
        yield f"tcp://127.0.0.1:{relay_server.sockets[0].getsockname()[1]}", seen


@pytest.mark.parametrize("is_secure", [True, False])
def test_the_words_of_a_prompt_are_not_on_the_wire(tmp_path: Path, is_secure: bool) -> None:
    """Without encryption they are: else this would prove nothing."""

    async def test(net: Net) -> None:
        server = net.server(member=MESH if is_secure else None)
        async with wiretap(server.port) as (address, seen):
            caller = net.caller(address, secure_client(MESH) if is_secure else None)
            assert (await caller.answer()).body == PROMPT
            caller.connection.close()
            assert (PROMPT in seen) is not is_secure
            assert MESH.pair.secret.reveal().encode() not in seen

    run(test, tmp_path)


def test_no_secret_is_in_any_log_at_any_level(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secrets: list[Secret] = [MESH.pair.secret, STRANGER.pair.secret, OTHER_MESH.pair.secret]
    tokens: list[str] = [member_token(MESH.pair)]

    async def test(net: Net) -> None:
        server = net.server()
        tokens.append(net.registry.add("alice", MESH))
        alice = parse_token(tokens[-1])
        secrets.append(alice.pair.secret)
        for credentials in (MESH, alice, STRANGER, OTHER_MESH, _revoked(net)):
            await net.call(server.address, secure_client(credentials))

    run(test, tmp_path)
    told = caplog.text
    assert "ALLOWED (CURVE auth_callback)" in told  # pyzmq's own lines are among them
    assert not any(secret.reveal() in told for secret in secrets)
    assert not any(token in told for token in tokens)
    assert PROMPT.decode() not in told
