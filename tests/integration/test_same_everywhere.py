"""One protocol: the same promises hold before a lone node, a broker, and a broker behind a broker. Real processes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from mesh import Client
from mesh.errors import DeadlineExceeded, InvalidRequest, NoSuchModel, PromptTooLong
from node.engine.synthetic_vocab import encode, expected_text, expected_tokens
from tests.support.eventually import eventually
from tests.support.processes import mesh_in, wait_for_nodes

SLOW = ("--synthetic", "step_base_s=0.005")
LONG = {"max_tokens": 5000, "ignore_eos": True}


@pytest.fixture(scope="module", params=["node", "broker", "broker behind a broker"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with mesh_in(tmp_path_factory.mktemp("mesh")) as mesh:
        server = mesh.node("n1", *SLOW)
        if request.param != "node":
            server = mesh.broker("b1", server, mesh.node("n2", *SLOW))
        if request.param == "broker behind a broker":
            server = mesh.broker("b2", server)
        with Client(server.address) as client:
            wait_for_nodes(client, 1)
            yield client


def test_a_completion_is_exactly_what_the_engine_says(client: Client) -> None:
    answer = client.generate("exactly", max_tokens=30)
    assert answer.text == expected_text(encode("exactly"), 30)
    assert list(answer.token_ids) == expected_tokens(encode("exactly"), 30)
    assert answer.finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 30)
    assert answer.node in ("n1", "n2")
    assert 0 < answer.ttft_s < answer.total_s


def test_the_pieces_of_a_stream_join_to_the_answer_and_none_splits_a_character(client: Client) -> None:
    stream = client.stream("pieces", max_tokens=120)
    pieces = [chunk.text for chunk in stream]
    assert "".join(pieces) == expected_text(encode("pieces"), 120)
    assert len([piece for piece in pieces if piece]) > 10
    assert "\ufffd" not in "".join(pieces)
    assert stream.result is not None
    assert stream.result.text == "".join(pieces)


def test_a_batch_comes_back_in_order_with_progress(client: Client) -> None:
    told: list[tuple[int, int]] = []
    prompts = [f"prompt {number}" for number in range(300)]
    answers = client.generate_batch(prompts, max_tokens=5, on_progress=lambda done, total: told.append((done, total)))
    assert [answer.text for answer in answers] == [expected_text(encode(prompt), 5) for prompt in prompts]
    assert told == [(number, 300) for number in range(1, 301)]


def test_a_stop_string_ends_the_text_before_it(client: Client) -> None:
    whole = expected_text(encode("halt"), 60)
    stop = whole[40:47]
    answer = client.generate("halt", max_tokens=60, stop=[stop])
    assert answer.text == whole[: whole.index(stop)]
    assert answer.finish_reason == "stop"


def test_sampling_is_decided_by_the_seed(client: Client) -> None:
    once = client.generate("dice", temperature=1.0, seed=7, max_tokens=20)
    again, other = (client.generate("dice", temperature=1.0, seed=seed, max_tokens=20) for seed in (7, 8))
    assert once.text == again.text == expected_text(encode("dice"), 20, seed=7)
    assert other.text != once.text
    assert client.generate("dice", temperature=1.0, max_tokens=20).seed is not None


def test_n_answers_are_n_seeds(client: Client) -> None:
    answer = client.generate("many", temperature=1.0, seed=100, n=3, max_tokens=10)
    assert [c.text for c in answer.choices] == [expected_text(encode("many"), 10, seed=100 + i) for i in range(3)]


def test_logprobs_come_with_each_token(client: Client) -> None:
    answer = client.generate("sure", logprobs=True, max_tokens=9)
    assert answer.logprobs is not None
    assert len(answer.logprobs) == 9
    assert client.generate("sure", max_tokens=9).logprobs is None


def test_a_chat_is_answered(client: Client) -> None:
    answer = client.chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], max_tokens=5)
    assert answer.text


def test_leaving_a_stream_frees_its_slot(client: Client) -> None:
    with client.stream("endless", **LONG) as stream:
        next(iter(stream))
        eventually(lambda: client.status().num_in_flight >= 1)
    eventually(lambda: client.status().num_in_flight == 0)
    eventually(lambda: sum(node.num_running for node in client.status().nodes) == 0)


def test_a_deadline_ends_a_request_with_a_typed_error(client: Client) -> None:
    with pytest.raises(DeadlineExceeded):
        client.generate("too slow", timeout_s=0.3, **LONG)
    eventually(lambda: client.status().num_in_flight == 0)


def test_what_is_wrong_is_said_by_name_and_harms_no_other(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="temprature"):
        client.generate("x", temprature=1.0)  # type: ignore[call-arg]
    with pytest.raises(NoSuchModel, match="served"):
        client.generate("x", model="nobody/has-this")
    with pytest.raises(PromptTooLong, match="max_tokens"):
        client.generate("x" * 20_000)
    mixed = client.generate_batch(
        ["good", {"prompt": "bad", "max_tokens": 10**6}, "fine"], max_tokens=4, return_errors=True
    )
    assert isinstance(mixed[1], PromptTooLong)
    assert [str(mixed[i]) for i in (0, 2)] == [expected_text(encode(p), 4) for p in ("good", "fine")]


def test_many_threads_may_share_one_client(client: Client) -> None:
    prompts = [f"thread {number}" for number in range(40)]
    with ThreadPoolExecutor(20) as pool:
        texts = list(pool.map(lambda prompt: client.generate(prompt, max_tokens=8).text, prompts))
    assert texts == [expected_text(encode(prompt), 8) for prompt in prompts]


def test_models_and_status_tell_what_is_served(client: Client) -> None:
    (model,) = client.models()
    assert model.slots_total >= 64
    report = client.status()
    assert report.num_ready >= 1
    assert all(node.state in ("ready", "busy") for node in report.nodes)
