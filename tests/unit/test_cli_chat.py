"""What a chat remembers."""

from __future__ import annotations

import json

from mesh.cli.chat.conversation import Conversation


def test_the_whole_conversation_is_sent_with_each_question() -> None:
    conversation = Conversation("be brief")
    conversation.answered("one", "1")

    assert [(said["role"], said["content"]) for said in conversation.messages("two")] == [
        ("system", "be brief"),
        ("user", "one"),
        ("assistant", "1"),
        ("user", "two"),
    ]


def test_a_question_without_an_answer_leaves_no_trace_but_can_be_asked_again() -> None:
    conversation = Conversation()
    conversation.answered("one", "1")
    conversation.answered("two", "")

    assert len(conversation.messages("three")) == 3
    assert conversation.take_back() == "two"
    assert len(conversation.messages("two")) == 3


def test_asking_again_forgets_the_answer() -> None:
    conversation = Conversation()
    conversation.answered("one", "1")

    assert conversation.take_back() == "one"
    assert conversation.messages("one") == [{"role": "user", "content": "one"}]
    assert conversation.take_back() is None


def test_clearing_keeps_the_system_message() -> None:
    conversation = Conversation("be brief")
    conversation.answered("one", "1")
    conversation.answered("two", "")
    conversation.clear()

    assert conversation.messages("x")[0] == {"role": "system", "content": "be brief"}
    assert conversation.take_back() is None


def test_it_is_saved_for_programs_and_for_people() -> None:
    conversation = Conversation()
    conversation.answered("héllo", " hi\n")

    assert json.loads(conversation.to_json())[1] == {"role": "assistant", "content": " hi\n"}
    assert conversation.to_markdown() == "**user**\n\nhéllo\n\n**assistant**\n\nhi\n"
