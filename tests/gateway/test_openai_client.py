"""Programs written for OpenAI work unchanged: everything here goes through the `openai` package."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="needs the gateway extra")
openai = pytest.importorskip("openai", reason="needs the openai package")

from broker.gateway.clients import share_of_user  # noqa: E402
from mesh import Client  # noqa: E402
from node.engine.synthetic_vocab import (  # noqa: E402
    FIRST_WORD,
    encode,
    expected_text,
    expected_tokens,
    piece_bytes,
)
from tests.gateway.conftest import MODEL  # noqa: E402

HELLO = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none needed", max_retries=0) as client:
        yield client


def test_models_are_listed_and_found_by_name(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody/has-this")


def test_a_completion_is_exactly_what_the_engine_says(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="exactly", max_tokens=20, temperature=0)
    assert answer.choices[0].text == expected_text(encode("exactly"), 20)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 20)
    assert answer.model == MODEL


def test_several_prompts_and_several_answers_keep_their_order(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["a", "b"], n=2, seed=5, max_tokens=6)
    expected = [expected_text(encode(prompt), 6, seed=5 + choice) for prompt in "ab" for choice in range(2)]
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]


def test_a_streamed_chat_joins_to_the_whole_one_and_tells_its_usage(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=60, seed=9)
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=60, seed=9, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert len([delta for delta in deltas if delta.content]) >= 3
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage


def test_streamed_choices_are_told_apart(client: openai.OpenAI) -> None:
    texts = ["", ""]
    for chunk in client.completions.create(model=MODEL, prompt="many", n=2, seed=3, max_tokens=9, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [expected_text(encode("many"), 9, seed=3 + choice) for choice in range(2)]


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    whole = expected_text(encode("halt"), 40)
    answer = client.completions.create(model=MODEL, prompt="halt", max_tokens=40, temperature=0, stop=whole[30:36])
    assert answer.choices[0].text == whole[: whole.index(whole[30:36])]
    assert answer.choices[0].finish_reason == "stop"


def test_max_completion_tokens_and_text_parts_are_understood(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "Hello!"}]
    answers = [
        client.chat.completions.create(model=MODEL, temperature=0, messages=messages, max_completion_tokens=7)
        for messages in (HELLO, [{"role": "user", "content": parts}])
    ]
    assert [answer.usage.completion_tokens for answer in answers if answer.usage] == [7, 7]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content


def test_each_token_has_its_log_probability_whole_and_streamed(client: openai.OpenAI) -> None:
    ask = {"model": MODEL, "messages": HELLO, "max_tokens": 5, "temperature": 0, "logprobs": True, "top_logprobs": 1}
    whole = client.chat.completions.create(**ask).choices[0].logprobs.content
    streamed = []
    for chunk in client.chat.completions.create(**ask, stream=True):
        if chunk.choices[0].logprobs is not None:
            streamed += chunk.choices[0].logprobs.content
    assert len(whole) == 5
    assert streamed == whole
    assert whole[0].top_logprobs[0].logprob == whole[0].logprob
    assert whole[0].top_logprobs[0].token == whole[0].token


def with_a_split_character(num_tokens: int) -> tuple[str, list[int]]:
    """A prompt whose answer has a character that is spread over several tokens, and that answer."""
    for number in range(100):
        tokens = expected_tokens(encode(f"split {number}"), num_tokens)
        if any(token < FIRST_WORD for token in tokens) and len(tokens) == num_tokens:
            return f"split {number}", tokens
    raise AssertionError("no such prompt")


def test_the_tokens_of_a_chat_join_to_its_text_by_their_bytes(client: openai.OpenAI) -> None:
    ask = {"model": MODEL, "messages": HELLO, "max_tokens": 120, "temperature": 0, "logprobs": True}
    choice = client.chat.completions.create(**ask, extra_body={"ignore_eos": True}).choices[0]
    tokens = choice.logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == choice.message.content
    whole = [token for token in tokens if bytes(token.bytes).decode(errors="replace") == token.token]
    parts = [token for token in tokens if token.token == "".join(f"\\x{byte:02x}" for byte in token.bytes)]
    assert len(whole) + len(parts) == 120
    assert parts


def test_the_tokens_of_a_completion_have_their_text_and_their_place_in_it(client: openai.OpenAI) -> None:
    prompt, token_ids = with_a_split_character(40)
    ask = {"model": MODEL, "prompt": prompt, "max_tokens": 40, "temperature": 0, "logprobs": 1}
    choice = client.completions.create(**ask).choices[0]
    told = choice.logprobs
    pieces = [piece_bytes(token_id) for token_id in token_ids]
    before = [b"".join(pieces[:number]).decode(errors="ignore") for number in range(40)]
    assert told.text_offset == [len(text) for text in before]
    for name, piece, offset in zip(told.tokens, pieces, told.text_offset, strict=True):
        if not name.startswith("bytes:"):
            assert name == piece.decode()
            assert choice.text[offset:].startswith(name)
    assert len([name for name in told.tokens if name.startswith("bytes:\\x")]) >= 2
    assert told.top_logprobs == [{name: value} for name, value in zip(told.tokens, told.token_logprobs, strict=True)]
    streamed = [chunk.choices[0] for chunk in client.completions.create(**ask, stream=True)]
    assert [offset for one in streamed if one.logprobs for offset in one.logprobs.text_offset] == told.text_offset
    assert [name for one in streamed if one.logprobs for name in one.logprobs.tokens] == told.tokens


def test_the_async_client_streams_many_at_once(url: str) -> None:
    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        stream = await client.completions.create(
            model=MODEL, prompt=f"p{number}", max_tokens=10, temperature=0, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def scenario() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(40)))

    assert asyncio.run(scenario()) == [expected_text(encode(f"p{number}"), 10) for number in range(40)]


@pytest.mark.parametrize(
    ("error", "param", "given"),
    [
        (openai.NotFoundError, "model", {"model": "nobody/has-this"}),
        (openai.BadRequestError, "temperature", {"temperature": 3}),
        (openai.BadRequestError, "tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        (openai.BadRequestError, "response_format", {"response_format": {"type": "json_object"}}),
        (openai.BadRequestError, "top_logprobs", {"logprobs": True, "top_logprobs": 5}),
        (openai.BadRequestError, "presence_penalty", {"presence_penalty": 0.5}),
        (openai.BadRequestError, "temprature", {"extra_body": {"temprature": 1}}),
        (openai.BadRequestError, None, {"max_tokens": 1_000_000}),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else None,
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_what_is_wrong_is_said_by_name(
    client: openai.OpenAI, error: type[openai.APIStatusError], param: str | None, given: dict[str, object], stream: bool
) -> None:
    ask = {"model": MODEL, "messages": HELLO, "stream": stream, **given}
    with pytest.raises(error) as caught:
        client.chat.completions.create(**ask)
    assert caught.value.param == param
    assert caught.value.body["message"]


def test_parameters_without_effect_are_not_refused(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=2, presence_penalty=0, frequency_penalty=0, user="someone",
        response_format={"type": "text"}, tools=[], tool_choice="none", logit_bias={},
    )  # fmt: skip
    assert answer.choices[0].message.content


def test_a_user_takes_turns_of_its_own(client: openai.OpenAI, broker: str) -> None:
    """Without keys it is the user whom the mesh shares fairly by: the broker sees a client for each."""
    for user in ("alice", "bob", "alice"):
        client.completions.create(model=MODEL, prompt="x", max_tokens=1, user=user)
    with Client(broker) as mesh:
        names = {caller.name for caller in mesh.status().clients}
    assert {f"gateway:{share_of_user(user)}" for user in ("alice", "bob")} <= names
    assert share_of_user("alice") != share_of_user("bob")


def test_embeddings_are_said_not_to_be_served(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="not served"):
        client.embeddings.create(model=MODEL, input="x")


def test_a_deadline_of_the_caller_s_own_is_a_408(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(
            model=MODEL, prompt="slow", max_tokens=5000, extra_body={"timeout_s": 0.2, "ignore_eos": True}
        )
    assert caught.value.status_code == 408
