"""Programs written for Anthropic's API: everything here goes through the `anthropic` package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="needs the gateway extra")
anthropic = pytest.importorskip("anthropic", reason="needs the anthropic package")

from tests.gateway.conftest import MODEL  # noqa: E402

ASK = {
    "model": MODEL,
    "max_tokens": 12,
    "extra_body": {"temperature": 0},
    "messages": [{"role": "user", "content": "Hello!"}],
}


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none needed", max_retries=0) as client:
        yield client


def test_a_message_is_answered(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ASK, system="Be brief.")
    assert message.role == "assistant"
    assert message.content[0].text
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 12
    assert message.usage.input_tokens > 0


def test_a_stream_joins_to_the_same_message(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**ASK)
    with client.messages.stream(**ASK) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert message.content[0].text == whole.content[0].text
    assert message.stop_reason == whole.stop_reason
    assert message.usage.output_tokens == whole.usage.output_tokens
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


def test_the_stop_sequence_that_ended_it_is_told(client: anthropic.Anthropic) -> None:
    text = client.messages.create(**ASK).content[0].text
    ask = {**ASK, "stop_sequences": ["no such words", text[10:16]]}
    message = client.messages.create(**ask)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", text[10:16])
    assert message.content[0].text == text[: text.index(text[10:16])]
    with client.messages.stream(**ask) as stream:
        assert stream.get_final_message().stop_sequence == text[10:16]


def test_text_blocks_are_text(client: anthropic.Anthropic) -> None:
    blocks = [{"type": "text", "text": "Hello!", "cache_control": {"type": "ephemeral"}}]
    message = client.messages.create(**{**ASK, "messages": [{"role": "user", "content": blocks}]})
    assert message.content[0].text == client.messages.create(**ASK).content[0].text


def test_errors_are_the_package_s_own(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="served"):
        client.messages.create(**{**ASK, "model": "nobody/has-this"})
    with pytest.raises(anthropic.BadRequestError, match="tools"):
        client.messages.create(**ASK, tools=[{"name": "f", "input_schema": {"type": "object"}}])
    image = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}}
    with pytest.raises(anthropic.BadRequestError, match="image"):
        client.messages.create(**{**ASK, "messages": [{"role": "user", "content": [image]}]})
