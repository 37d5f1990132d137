"""What a caller may say, and what it turns into, before anything is sent."""

from __future__ import annotations

import pytest

from mesh import ChatMessage, ConfigError, InvalidRequest
from mesh.client.options import ENV_BROKER, addresses_from
from mesh.client.params import CallParameters, Parameters, asks_of, values_of
from mesh.request import MAX_SEED


def test_an_unknown_parameter_is_named_beside_the_known_ones():
    with pytest.raises(
        InvalidRequest, match=r"temprature: unknown parameter; known are prompt, .*temperature.*timeout_s"
    ):
        asks_of({"prompt": "x", "temprature": 1})


def test_every_wrong_value_is_named():
    with pytest.raises(InvalidRequest, match=r"top_p: .*; n: ") as caught:
        asks_of({"prompt": "x", "top_p": 2, "n": 0})
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("values", [{}, {"prompt": "x", "messages": [{"role": "user", "content": "y"}]}])
def test_exactly_one_input_is_taken(values):
    with pytest.raises(InvalidRequest, match="give exactly one of prompt and messages"):
        asks_of(values)


def test_client_side_parameters_stay_out_of_the_body():
    ask = asks_of({"prompt": "x", "timeout_s": 3, "priority": -2, "affinity": "a", "model": "m", "top_k": 4})[0]

    assert ask.body == {"prompt": "x", "top_k": 4}
    assert (ask.timeout_s, ask.priority, ask.affinity, ask.model) == (3.0, -2, "a", "m")


def test_sampling_without_a_seed_gets_one_and_greedy_none():
    assert asks_of({"prompt": "x", "temperature": 1.0}, mint=lambda bits: 7)[0].body["seed"] == 7
    assert asks_of({"prompt": "x"})[0].seed is None


def test_n_choices_are_n_requests_with_seeds_in_a_row_that_wrap():
    asks = asks_of({"prompt": "x", "temperature": 1.0, "seed": MAX_SEED, "n": 3})

    assert [ask.seed for ask in asks] == [ask.body["seed"] for ask in asks] == [MAX_SEED, 0, 1]
    assert [ask.choice for ask in asks] == [0, 1, 2]


def test_a_batch_entry_may_be_text_a_chat_or_parameters_of_its_own():
    shared = {"max_tokens": 5, "top_k": 1}

    assert values_of("x", shared) == {**shared, "prompt": "x"}
    assert values_of({"prompt": "x", "top_k": 2}, shared) == {"prompt": "x", "max_tokens": 5, "top_k": 2}
    chat = [ChatMessage(role="user", content="x"), {"role": "assistant", "content": "y"}]
    assert len(asks_of(values_of(chat, shared))[0].body["messages"]) == 2
    with pytest.raises(InvalidRequest, match="not int"):
        values_of(3, shared)  # type: ignore[arg-type]


def test_the_typed_parameters_are_those_that_are_checked():
    assert set(Parameters.__annotations__) == set(CallParameters.model_fields) - {"prompt", "messages"}


def test_an_argument_goes_before_the_environment_and_that_before_discovery(monkeypatch):
    monkeypatch.setenv(ENV_BROKER, "tcp://env:1, other:2")
    assert addresses_from("arg:3") == ("tcp://arg:3",)
    assert addresses_from(["a:1", "b:2"]) == ("tcp://a:1", "tcp://b:2")
    assert addresses_from(None) == ("tcp://env:1", "tcp://other:2")
    monkeypatch.delenv(ENV_BROKER)
    assert addresses_from(None) == ()


def test_a_wrong_address_is_an_error_that_says_where_it_came_from(monkeypatch):
    monkeypatch.setenv(ENV_BROKER, "nowhere")
    with pytest.raises(ConfigError, match=f"{ENV_BROKER}: 'nowhere' has no port"):
        addresses_from(None)


@pytest.mark.parametrize(
    "values",
    [
        {"prompt": "broken \ud800 text"},
        {"messages": [{"role": "user", "content": "\udcff"}]},
        {"prompt": "x", "stop": ["\ud800"]},
        {"prompt": "x", "affinity": "\ud800"},
    ],
)
def test_text_that_no_wire_format_can_hold_is_refused_before_anything_is_sent(values: dict[str, object]) -> None:
    """A lone surrogate once passed, broke the packing of its whole batch, and left every request in it waiting."""
    with pytest.raises(InvalidRequest, match="not valid Unicode"):
        asks_of(values)
