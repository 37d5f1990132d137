"""The text of the synthetic engine: no model, no tokenizer file, the same interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from node.engine import synthetic_vocab


class SyntheticTextCodec:
    """Prompts are UTF-8 bytes, answers are words."""

    eos_token_ids: tuple[int, ...] = (synthetic_vocab.EOS_ID,)
    vocab_size = synthetic_vocab.VOCAB_SIZE

    def encode(self, text: str) -> list[int]:
        return synthetic_vocab.encode(text)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        return self.encode("".join(lines) + "assistant: ")

    def piece(self, token_id: int) -> bytes:
        return synthetic_vocab.piece_bytes(token_id) if 0 <= token_id < self.vocab_size else b""

    def opening_piece(self, token_id: int) -> bytes:
        return self.piece(token_id)

    def is_special(self, token_id: int) -> bool:
        return token_id == synthetic_vocab.EOS_ID
