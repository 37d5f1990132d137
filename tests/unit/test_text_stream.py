"""Streaming shows exactly the text, whatever the tokens, their grouping and the node they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from node.text.stream import TextStream, decode
from node.text.tokenizer import FolderTextCodec, TextCodec
from tests.support.tiny_tokenizers import byte_level_json, llama_json

TOKENIZERS = {"byte_level": byte_level_json, "llama": llama_json}
CODECS = {name: FolderTextCodec(Tokenizer.from_str(make()), None, ()) for name, make in TOKENIZERS.items()}
RAW = {name: Tokenizer.from_str(make()) for name, make in TOKENIZERS.items()}

kinds = st.sampled_from(sorted(CODECS))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.text("aeñ 你🙂\n#", max_size=40)
stops = st.lists(st.text("aeñ 你🙂\n#", min_size=1, max_size=4), max_size=3)


@st.composite
def any_token_ids(draw: st.DrawFn, kind: str) -> list[int]:
    """Not only what a tokenizer would write: a model may sample any token after any other."""
    size = RAW[kind].get_vocab_size()
    written = RAW[kind].encode(draw(texts), add_special_tokens=False).ids
    return draw(st.just(written) | st.lists(st.integers(0, size + 5), max_size=30))


def cut(text: str, stop: list[str]) -> str:
    """The definition, character by character: stop where the first stop string is complete, the longest if several."""
    for end in range(1, len(text) + 1):
        complete = [word for word in stop if text[:end].endswith(word)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


def pushed(stream: TextStream, token_ids: list[int], size: int) -> str:
    return "".join(stream.push(token_ids[i : i + size]).text for i in range(0, len(token_ids), size))


@given(kinds, texts)
def test_decoding_gives_what_the_tokenizers_library_gives(kind: str, text: str) -> None:
    token_ids = RAW[kind].encode(text, add_special_tokens=True).ids

    assert decode(CODECS[kind], token_ids) == RAW[kind].decode(token_ids, skip_special_tokens=True)


@given(st.data())
def test_so_it_does_for_arbitrary_tokens_of_a_byte_level_model(data: st.DataObject) -> None:
    token_ids = data.draw(any_token_ids("byte_level"))

    expected = RAW["byte_level"].decode(token_ids, skip_special_tokens=True)

    assert decode(CODECS["byte_level"], token_ids) == expected


@given(st.data(), kinds, stops, st.integers(1, 7))
def test_grouping_changes_nothing(data: st.DataObject, kind: str, stop: list[str], size: int) -> None:
    token_ids = data.draw(any_token_ids(kind))
    stream = TextStream(CODECS[kind], (), stop)

    shown = pushed(stream, token_ids, size) + stream.finish()

    assert shown == cut(decode(CODECS[kind], token_ids), stop)


@given(st.data(), kinds, stops)
def test_the_text_after_each_token_depends_on_the_tokens_alone(data: st.DataObject, kind: str, stop: list[str]) -> None:
    token_ids = data.draw(any_token_ids(kind))
    one_by_one = TextStream(CODECS[kind], (), stop)
    shown = ""
    for num_seen in range(1, len(token_ids) + 1):
        shown += one_by_one.push(token_ids[num_seen - 1 : num_seen]).text
        at_once = TextStream(CODECS[kind], (), stop)
        assert at_once.push(token_ids[:num_seen]).text == shown
        assert at_once.is_stopped == one_by_one.is_stopped


@given(st.data(), kinds, stops)
def test_another_node_goes_on_at_the_same_character(data: st.DataObject, kind: str, stop: list[str]) -> None:
    token_ids = data.draw(any_token_ids(kind))
    prompt_ids = data.draw(any_token_ids(kind))
    whole = decode(CODECS[kind], token_ids, prompt_ids, stop)
    for num_seen in range(len(token_ids) + 1):
        first, second = (TextStream(CODECS[kind], prompt_ids, stop) for _ in range(2))
        shown = first.push(token_ids[:num_seen]).text
        second.replay(token_ids[:num_seen])
        assert shown + second.push(token_ids[num_seen:]).text + second.finish() == whole


@given(st.data(), kinds, stops)
def test_it_says_which_token_completed_the_stop_string(data: st.DataObject, kind: str, stop: list[str]) -> None:
    token_ids = data.draw(any_token_ids(kind))
    delta = TextStream(CODECS[kind], (), stop).push(token_ids)

    assert delta.num_tokens == len(token_ids) or delta.stopped
    if delta.stopped:
        assert not TextStream(CODECS[kind], (), stop).push(token_ids[: delta.num_tokens - 1]).stopped
        assert TextStream(CODECS[kind], (), stop).push(token_ids[: delta.num_tokens]) == delta


@given(st.data(), kinds, st.integers(1, 7))
def test_the_pieces_join_to_the_text_and_taking_them_changes_nothing(data: st.DataObject, kind: str, size: int) -> None:
    token_ids, prompt_ids = data.draw(any_token_ids(kind)), data.draw(any_token_ids(kind))
    stream, pieces, shown = TextStream(CODECS[kind], prompt_ids), list[bytes](), ""
    for start in range(0, len(token_ids), size):
        pieces += stream.pieces(token_ids[start : start + size])
        shown += stream.push(token_ids[start : start + size]).text

    assert len(pieces) == len(token_ids)
    assert b"".join(pieces).decode(errors="replace") == shown + stream.finish()


@given(texts, stops)
def test_all_is_shown_but_what_may_begin_a_stop_string(text: str, stop: list[str]) -> None:
    may_begin = [start for start in range(len(text)) if any(word.startswith(text[start:]) for word in stop)]

    delta = TextStream(CODECS["byte_level"], (), stop).push(RAW["byte_level"].encode(text).ids)

    assert delta.text == (cut(text, stop) if delta.stopped else text[: min(may_begin, default=None)])


class Letters:
    """A codec that one can read: each token is the bytes of an entry of the list."""

    eos_token_ids: tuple[int, ...] = ()

    def __init__(self, *pieces: str | bytes) -> None:
        self._pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.vocab_size = len(pieces)

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        raise NotImplementedError

    def piece(self, token_id: int) -> bytes:
        return self._pieces[token_id]

    def opening_piece(self, token_id: int) -> bytes:
        return self._pieces[token_id]

    def is_special(self, token_id: int) -> bool:
        return False


def shown_by(*pieces: str | bytes, stop: list[str] | None = None) -> list[str]:
    """What each piece shows, and the rest."""
    codec: TextCodec = Letters(*pieces)
    stream = TextStream(codec, (), stop or [])
    return [stream.push([token_id]).text for token_id in range(len(pieces))] + [stream.finish()]


@pytest.mark.parametrize(
    ("pieces", "stop", "shown"),
    [
        ([b"\xf0\x9f", b"\x99\x82", "!"], [], ["", "🙂", "!", ""]),
        ([b"\xe4\xbd", "a"], [], ["", "\ufffda", ""]),
        ([b"ok\xe4\xbd"], [], ["ok", "\ufffd"]),
        (["a\ufffd", "b"], [], ["a\ufffd", "b", ""]),
        (["one #", "#", "# two"], ["###"], ["one ", "", "", ""]),
        (["one #", "#", " two"], ["###"], ["one ", "", "## two", ""]),
        (["one #", "#"], ["###"], ["one ", "", "##"]),
        (["a###b", "c"], ["###"], ["a", "", ""]),
        (["xaab"], ["ab", "aab"], ["x", ""]),
        (["xaa", "b"], ["ab", "b"], ["xa", "", ""]),
        (["ab", "c"], ["bcd", "c"], ["a", "b", ""]),
        (["x你", "好"], ["你好"], ["x", "", ""]),
    ],
)
def test_what_is_shown_and_what_is_held_back(pieces: list[str | bytes], stop: list[str], shown: list[str]) -> None:
    assert shown_by(*pieces, stop=stop) == shown


@pytest.mark.parametrize(
    ("pieces", "stop", "which"),
    [(["a##", "#b"], ["x", "###"], "###"), (["xaab"], ["ab", "aab"], "aab"), (["ab", "c"], ["bcd", "c"], "c")],
)
def test_it_says_which_stop_string_it_was(pieces: list[str], stop: list[str], which: str) -> None:
    stream = TextStream(Letters(*pieces), (), stop)
    stream.push(range(len(pieces)))

    assert stream.stop_string == which


def test_a_completion_keeps_its_first_space_and_a_chat_answer_has_none() -> None:
    codec, raw = CODECS["llama"], RAW["llama"]
    answer = raw.encode("Paris", add_special_tokens=False).ids

    assert decode(codec, answer, codec.encode("The capital is")) == " Paris"
    assert decode(codec, answer, raw.encode("<|user|>hello<|end|><|assistant|>").ids) == "Paris"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        TextStream(CODECS["llama"], (), [""])


def test_each_token_is_looked_at_once() -> None:
    """A stream that decodes its text from the beginning each time would be quadratic."""
    looked_at: list[int] = []

    class Counting(Letters):
        def piece(self, token_id: int) -> bytes:
            looked_at.append(token_id)
            return super().piece(token_id)

    stream = TextStream(Counting(*"abcdefgh" * 50), (), ["hag"])
    for token_id in range(400):
        stream.push([token_id])

    assert looked_at == list(range(400))
