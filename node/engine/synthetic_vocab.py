"""The synthetic engine's language: its vocabulary, and the token it says next as a pure function.

A prompt is its UTF-8 bytes, tokens 0 to 255. An answer is made of whole words (256 and up) and, now and then, of a
character spread over several byte tokens, as real vocabularies do with emoji and rare ideographs: whoever detokenises
step by step must hold those back until they are whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from hashlib import blake2b

_DICTIONARY = """
    the a one many small large fast quiet bright early green round node mesh token model batch cache slot queue river
    stone garden window engine letter market signal shadow harbour moves holds sends finds keeps joins turns opens
    reads writes waits runs under over with from into and then here there always never soon again café naïve Grüße
    模型 节点 网络 推理 你好 世界 🙂 🚀
"""
WORDS: tuple[str, ...] = (*(f" {word}" for word in _DICTIONARY.split()), ".", ",", "\n", "模", "🙂")
SPLIT_CHARACTERS: tuple[str, ...] = ("é", "語", "網", "🌍", "🧠", "𠜎")

FIRST_WORD = 256
EOS_ID = FIRST_WORD + len(WORDS)
VOCAB_SIZE = EOS_ID + 1
MIN_NATURAL_LENGTH, MAX_NATURAL_LENGTH = 16, 2000

_BLOCK = 8  # tokens that one hash decides: a digest of 64 bytes, 8 for each
_SPLIT_BYTES = tuple(tuple(character.encode()) for character in SPLIT_CHARACTERS)


def encode(text: str) -> list[int]:
    """The prompt tokens of a text: one per UTF-8 byte."""
    return list(text.encode())


def piece_bytes(token_id: int) -> bytes:
    """What a token adds to the text, which may be part of a character. Empty for the end-of-sequence token."""
    if token_id < FIRST_WORD:
        return bytes((token_id,))
    return b"" if token_id == EOS_ID else WORDS[token_id - FIRST_WORD].encode()


def piece(token_id: int) -> str:
    """A token on its own, as text; the replacement character for a byte that is only part of one."""
    return piece_bytes(token_id).decode(errors="replace")


def decode(token_ids: Sequence[int]) -> str:
    """The text of a sequence. Bytes that form no character become the replacement character."""
    return b"".join(map(piece_bytes, token_ids)).decode(errors="replace")


def story_key(prompt_ids: Sequence[int], seed: int | None = None) -> bytes:
    """Names the one answer to a prompt; `seed` is given for a sampled request only."""
    digest = blake2b(struct.pack(f"<{len(prompt_ids)}I", *prompt_ids), digest_size=32)
    if seed is not None:
        digest.update(b"seed" + seed.to_bytes(8, "little"))
    return digest.digest()


def natural_length(key: bytes) -> int:
    """How many tokens the answer has before it ends by itself."""
    span = MAX_NATURAL_LENGTH - MIN_NATURAL_LENGTH + 1
    return MIN_NATURAL_LENGTH + int.from_bytes(blake2b(b"length", key=key, digest_size=8).digest(), "little") % span


def story_block(key: bytes, block: int) -> list[int]:
    """The tokens `block * 8` to `block * 8 + 7` of an answer that never ends."""
    hashes = struct.unpack("<8Q", blake2b(block.to_bytes(8, "little"), key=key, digest_size=64).digest())
    tokens = [FIRST_WORD + value % len(WORDS) for value in hashes]
    choice = hashes[0] >> 32
    if choice % 4 == 0:  # one block in four holds a split character; it never crosses into the next block
        split = _SPLIT_BYTES[(choice >> 2) % len(_SPLIT_BYTES)]
        at = (choice >> 8) % (_BLOCK - len(split) + 1)
        tokens[at : at + len(split)] = split
    return tokens


def story(key: bytes, start: int = 0, ends: bool = True) -> Iterator[int]:
    """The answer from token `start` on, without end. If it `ends`, the token at its natural length is `EOS_ID`."""
    length = natural_length(key) if ends else -1
    index = start
    while True:
        for token in story_block(key, index // _BLOCK)[index % _BLOCK :]:
            yield EOS_ID if index == length else token
            index += 1


def expected_tokens(
    prompt_ids: Sequence[int],
    num_tokens: int,
    seed: int | None = None,
    stop_token_ids: Sequence[int] = (EOS_ID,),
) -> list[int]:
    """What the engine must answer with `max_tokens=num_tokens`, however often it was interrupted. `seed=None` is
    greedy."""
    tokens: list[int] = []
    for token in story(story_key(prompt_ids, seed), ends=EOS_ID in stop_token_ids):
        tokens.append(token)
        if token in stop_token_ids or len(tokens) >= num_tokens:
            return tokens
    raise AssertionError("a story has no end")


def expected_text(prompt_ids: Sequence[int], num_tokens: int, seed: int | None = None) -> str:
    """The text of `expected_tokens`."""
    return decode(expected_tokens(prompt_ids, num_tokens, seed))
