"""Two small real tokenizers, trained on the spot: the GPT-2 kind (bytes) and the Llama kind (Phi-3's)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The capital of France is Paris. The capital of Italy is Rome, and that of Spain is Madrid.",
    "def main():\n    return 'stop here'\n\n\nclass Mesh:\n    pass\n",
    "你好，世界。今天天气很好。 Ünïcödé 🙂🙃 👩‍👩‍👧 naïve café",
    "User: hello there\nAssistant: hi! How can I help you today?\n###\n",
] * 3

CHAT_TOKENS = ["<unk>", "<s>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]

PHI3_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}"
    "{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}"
    "{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)

CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@cache
def byte_level_json() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=CHAT_TOKENS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer.to_str()


@cache
def llama_json() -> str:
    """SentencePiece as `tokenizers` writes it: a space in front of each text, bytes for characters it never saw."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=460, special_tokens=CHAT_TOKENS + byte_tokens, show_progress=False)
    tokenizer.train_from_iterator(CORPUS[:2], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    described = json.loads(tokenizer.to_str())
    described["added_tokens"] = [added for added in described["added_tokens"] if added["content"] in CHAT_TOKENS]
    described["model"] |= {"byte_fallback": True, "fuse_unk": True}
    return json.dumps(described)


def write_model_folder(folder: Path, tokenizer_json: str, **files: object) -> Path:
    """A model folder without weights. `files`: content by name without ".json"; text is written as it is."""
    (folder / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    for name, content in files.items():
        (folder / f"{name}.json").write_text(
            content if isinstance(content, str) else json.dumps(content), encoding="utf-8"
        )
    return folder
