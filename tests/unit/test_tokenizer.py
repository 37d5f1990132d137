"""A model folder becomes a codec, or an error that says what the folder lacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders

from node.engine import synthetic_vocab
from node.text.chat import ChatTemplate, ChatTemplateError
from node.text.stream import decode
from node.text.synthetic import SyntheticTextCodec
from node.text.tokenizer import TextCodec, TokenizerError, load_tokenizer
from tests.support.tiny_tokenizers import (
    CHATML_TEMPLATE,
    PHI3_CHAT_TEMPLATE,
    byte_level_json,
    llama_json,
    write_model_folder,
)


def with_decoder(decoder: decoders.Decoder | None) -> str:
    tokenizer = Tokenizer.from_str(byte_level_json())
    tokenizer.decoder = decoder
    return tokenizer.to_str()


HELLO = [{"role": "user", "content": "hello"}]


def test_importing_the_text_package_brings_in_no_torch() -> None:
    program = (
        "import sys, node.text.tokenizer, node.text.stream, node.text.synthetic;"
        "sys.exit(', '.join({'torch', 'transformers', 'numpy'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_raw_prompt_gets_the_special_tokens_that_the_model_expects(tmp_path: Path) -> None:
    codec = load_tokenizer(write_model_folder(tmp_path, llama_json()))

    assert codec.encode("hello")[0] == 1


def test_a_chat_gets_them_from_its_template_and_not_twice(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "chat_template": "{{ bos_token }}" + PHI3_CHAT_TEMPLATE}
    codec = load_tokenizer(write_model_folder(tmp_path, llama_json(), tokenizer_config=config))

    token_ids = codec.encode_chat(HELLO)

    assert token_ids.count(1) == 1
    assert token_ids[:2] == [1, 3]  # <s><|user|>


def test_every_token_that_ends_an_answer_is_known(tmp_path: Path) -> None:
    folder = write_model_folder(
        tmp_path,
        llama_json(),
        generation_config={"eos_token_id": [5, 2]},
        config={"eos_token_id": 2},
        tokenizer_config={"eos_token": {"content": "<s>", "lstrip": False}},
    )

    assert load_tokenizer(folder).eos_token_ids == (5, 2, 1)


def test_training_leftovers_do_not_cut_prompts(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(byte_level_json())
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    codec = load_tokenizer(write_model_folder(tmp_path, tokenizer.to_str()))

    assert len(codec.encode("a b c d e f g")) == len(Tokenizer.from_str(byte_level_json()).encode("a b c d e f g").ids)


def test_a_template_file_goes_before_the_configuration(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, byte_level_json(), tokenizer_config={"chat_template": "old"})
    (folder / "chat_template.jinja").write_text("new")
    codec = load_tokenizer(folder)

    assert codec.encode_chat(HELLO) == codec.encode("new")


def test_of_several_named_templates_the_default_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    codec = load_tokenizer(write_model_folder(tmp_path, byte_level_json(), tokenizer_config={"chat_template": named}))

    assert codec.encode_chat(HELLO) == codec.encode("plain")


def test_a_base_model_says_that_it_has_no_chat_template(tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match="no chat template"):
        load_tokenizer(write_model_folder(tmp_path, byte_level_json())).encode_chat(HELLO)


@pytest.mark.parametrize(
    ("tokenizer_json", "files", "says"),
    [
        ("{", {}, "cannot be read as a tokenizer"),
        (byte_level_json(), {"config": "{"}, "config.json cannot be read"),
        (byte_level_json(), {"config": "[]"}, "should hold a JSON object"),
        (byte_level_json(), {"tokenizer_config": '{"chat_template": "{% if %}"}'}, "not valid Jinja"),
        (with_decoder(None), {}, "no decoder"),
        (with_decoder(decoders.CTC()), {}, "CTC.* cannot be streamed"),
    ],
)
def test_an_unusable_folder_is_refused(
    tmp_path: Path, tokenizer_json: str, files: dict[str, object], says: str
) -> None:
    with pytest.raises(TokenizerError, match=says):
        load_tokenizer(write_model_folder(tmp_path, tokenizer_json, **files))


def test_a_folder_without_tokenizer_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="save_pretrained"):
        load_tokenizer(tmp_path)


def test_the_synthetic_codec_reads_what_the_synthetic_engine_says() -> None:
    codec: TextCodec = SyntheticTextCodec()
    prompt_ids = codec.encode_chat(HELLO)
    answer = synthetic_vocab.expected_tokens(prompt_ids, 200)

    assert bytes(prompt_ids) == b"user: hello\nassistant: "
    assert decode(codec, answer, prompt_ids) == synthetic_vocab.decode(answer)
    assert decode(codec, [*codec.eos_token_ids, codec.vocab_size]) == ""


def test_phi3_and_chatml_prompts_are_rendered_as_their_models_learned_them() -> None:
    assert ChatTemplate(PHI3_CHAT_TEMPLATE, {}).render(HELLO) == "<|user|>\nhello<|end|>\n<|assistant|>\n"
    assert ChatTemplate(CHATML_TEMPLATE, {}).render(HELLO) == (
        "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_templates_find_the_globals_they_are_written_for() -> None:
    source = """
    {%- for message in messages %}
        {%- if loop.index > 1 %}{% break %}{% endif %}
        {% generation %}{{ {'a': '<é>'} | tojson }}{% endgeneration %}
    {%- endfor %}{{ eos_token }}{{ strftime_now('%Y')[:2] }}"""

    assert ChatTemplate(source, {"eos_token": "</s>"}).render(HELLO * 2).strip() == '{"a": "<é>"}</s>20'


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].no.such }}",
        "{{ ''.__class__.__mro__[1] }}",
    ],
)
def test_messages_that_a_template_refuses_are_the_callers_error(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="refuses these messages"):
        ChatTemplate(source, {}).render(HELLO)
