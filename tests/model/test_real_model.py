"""The whole mesh with the demo model: a broker and two nodes, as a newcomer runs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mesh import Client, PromptTooLong
from tests.support.eventually import eventually
from tests.support.processes import Member, Mesh, mesh_in, wait_for_nodes

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # two nodes share this machine's cores
STORY = [{"role": "user", "content": "Tell me a short story about a lighthouse."}]


class Place:
    """One mesh for all tests of this file; a node that a test kills is started again."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self.nodes = {name: self._start(name, "127.0.0.1:0") for name in ("one", "two")}
        self.broker = mesh.broker("b", *self.nodes.values())

    def _start(self, name: str, bind: str) -> Member:
        return self._mesh.node(name, "--model", "demo", bind=bind, env=ONE_THREAD)

    def restart(self, name: str) -> None:
        """At the same address, under the same name."""
        self.nodes[name] = self._start(name, self.nodes[name].address.removeprefix("tcp://"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with mesh_in(tmp_path_factory.mktemp("real")) as mesh:
        yield Place(mesh)


@pytest.fixture
def client(place: Place) -> Iterator[Client]:
    with Client(place.broker.address) as client:
        wait_for_nodes(client, 2, within_s=180)
        yield client


def test_the_capital_of_france_is_paris(client: Client) -> None:
    answer = client.chat([{"role": "user", "content": "What is the capital of France?"}], max_tokens=20)
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"
    assert answer.model == "demo"


def test_a_streamed_answer_joins_to_the_whole_one(client: Client) -> None:
    stream = client.stream(messages=STORY, max_tokens=24)
    pieces = [chunk.text for chunk in stream]
    assert len(pieces) > 5
    assert "".join(pieces) == client.chat(STORY, max_tokens=24).text


def test_the_seed_decides_on_any_node_alone_or_in_a_batch(client: Client) -> None:
    dice = {"max_tokens": 16, "temperature": 1.0, "top_p": 0.95, "seed": 11}
    alone = client.chat(STORY, **dice).text
    batch = client.generate_batch([{"messages": STORY, **dice} for _ in range(4)])
    assert [answer.text for answer in batch] == [alone] * 4
    assert {answer.node for answer in batch} == {"one", "two"}
    assert client.chat(STORY, **{**dice, "seed": 12}).text != alone


def test_logprobs_stop_and_n_work_with_a_real_tokenizer(client: Client) -> None:
    answer = client.chat(STORY, max_tokens=12, logprobs=True, n=2, temperature=0.8, seed=3)
    assert [len(choice.logprobs or ()) for choice in answer.choices] == [12, 12]
    assert all(logprob <= 0 for choice in answer.choices for logprob in choice.logprobs or ())
    whole = client.chat(STORY, max_tokens=16).text
    stop = whole.split()[4]
    assert client.chat(STORY, max_tokens=16, stop=[stop]).text == whole[: whole.index(stop)]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_k": 40, "seed": 5}], ids=["greedy", "sampled"])
def test_killing_the_node_that_answers_changes_nothing(
    place: Place, client: Client, sampling: dict[str, float]
) -> None:
    undisturbed = client.chat(STORY, max_tokens=40, **sampling)  # type: ignore[arg-type]

    def answering() -> list[str]:
        return [node.name for node in client.status().nodes if node.num_running]

    stream = client.stream(messages=STORY, max_tokens=40, **sampling)  # type: ignore[arg-type]
    pieces = [next(stream).text for _ in range(8)]
    (name,) = eventually(answering)
    place.nodes[name].kill()
    pieces += [chunk.text for chunk in stream]

    assert "".join(pieces) == undisturbed.text
    assert stream.result is not None
    assert stream.result.token_ids == undisturbed.token_ids
    assert stream.result.node != name
    assert stream.result.attempts == 2
    place.restart(name)


def test_a_request_that_the_cache_cannot_hold_is_turned_away_and_harms_no_other(client: Client) -> None:
    stream = client.stream(messages=STORY, max_tokens=20)
    next(stream)
    with pytest.raises(PromptTooLong, match="holds"):
        client.generate("too long " * 6000, max_tokens=100)
    list(stream)
    assert stream.result is not None
    assert stream.result.usage.completion_tokens == 20
