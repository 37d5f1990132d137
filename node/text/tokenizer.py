"""Text to tokens and back, without torch: `tokenizers` and Jinja are enough, and importing transformers is not free."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer

from node.text.chat import ChatTemplate, ChatTemplateError
from node.text.pieces import PieceTable, UnsupportedDecoder


class TokenizerError(ValueError):
    """A model folder has no usable tokenizer; the text says what is missing."""


class TextCodec(Protocol):
    """What the node agent needs to know about a model's text.

    `piece` is the bytes of a token, b"" for special and unknown ones. `opening_piece` is the same for the first token
    of a text, where SentencePiece models drop a space. Characters may be split between pieces: see `TextStream`.
    """

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """A raw prompt, with the special tokens that the model expects around it."""

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """A conversation, ready for the assistant to go on. Raises ChatTemplateError."""

    def piece(self, token_id: int) -> bytes: ...

    def opening_piece(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


class FolderTextCodec:
    """The tokenizer of a model folder."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatTemplate | None, eos_token_ids: tuple[int, ...]) -> None:
        # Settings left over from training would cut or pad our prompts without a word.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # The plain `encode` keeps Python's one lock while it works, and with it the whole agent: this one lets go.
        self._encode = tokenizer.encode_batch_fast
        self._chat = chat
        self.eos_token_ids = eos_token_ids
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        pieces = PieceTable(tokenizer)
        self.piece = pieces.piece
        self.opening_piece = pieces.opening_piece
        self.is_special = pieces.is_special

    def encode(self, text: str) -> list[int]:
        return list(self._encode([text], add_special_tokens=True)[0].ids)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        if self._chat is None:
            raise ChatTemplateError(
                "this model has no chat template: it is a base model. Send a plain prompt, or serve an instruct model"
            )
        # The template has written the special tokens already; adding them again would begin the text twice.
        return list(self._encode([self._chat.render(messages)], add_special_tokens=False)[0].ids)


def load_tokenizer(folder: Path) -> FolderTextCodec:
    """Read `tokenizer.json` and its companions. Raises TokenizerError."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(
            f"{folder} has no tokenizer.json. A model that ships only tokenizer.model has to be converted once: "
            "load its tokenizer with transformers and call save_pretrained"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{path} cannot be read as a tokenizer: {error}") from error
    config = _read_json(folder / "tokenizer_config.json")
    special_tokens = _special_tokens(_read_json(folder / "special_tokens_map.json") | config)
    try:
        source = _chat_template(folder, config)
        chat = ChatTemplate(source, special_tokens) if source else None
        return FolderTextCodec(tokenizer, chat, _eos_token_ids(folder, tokenizer, special_tokens.get("eos_token")))
    except (UnsupportedDecoder, ChatTemplateError) as error:
        raise TokenizerError(f"{folder}: {error}") from error


def _eos_token_ids(folder: Path, tokenizer: Tokenizer, eos_token: str | None) -> tuple[int, ...]:
    """Every token that ends an answer. A chat model often has several, and no single file names them all."""
    found: list[object] = []
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder / name).get("eos_token_id")
        found += value if isinstance(value, list) else [value]
    if eos_token is not None:
        found.append(tokenizer.token_to_id(eos_token))
    return tuple(dict.fromkeys(value for value in found if isinstance(value, int)))


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its like. Older files hold each as an object with its text in `content`."""
    texts = {
        key: value.get("content") if isinstance(value, dict) else value
        for key, value in config.items()
        if key.endswith("_token")
    }
    return {key: text for key, text in texts.items() if isinstance(text, str)}


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):  # several named ones: [{"name": "default", "template": "…"}, …]
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    return source if isinstance(source, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    """The object in the file, or nothing if there is no such file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} should hold a JSON object")
    return content
