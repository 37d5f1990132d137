"""Models of random weights, made in a moment: they show which numbers go where, not what a model knows."""

from __future__ import annotations

from pathlib import Path

from node.engine.base import EngineRequest


def save_phi3(folder: Path, **changes: object) -> str:
    """A Phi-3 of two layers. Returns the path, as an engine is told it."""
    from transformers import Phi3Config, Phi3ForCausalLM

    return _save(folder, Phi3Config, Phi3ForCausalLM, changes)


def save_llama(folder: Path, **changes: object) -> str:
    """A Llama of two layers. Its attention heads are shared out under tensor parallelism; those of a Phi-3 are not."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return _save(folder, LlamaConfig, LlamaForCausalLM, changes)


def _save(folder: Path, config_class: type, model_class: type, changes: dict[str, object]) -> str:
    import torch

    torch.manual_seed(0)
    sizes = {
        "vocab_size": 1000,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "original_max_position_embeddings": 512,
        "sliding_window": None,
        "initializer_range": 0.3,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    model_class(config_class(**(sizes | changes))).eval().save_pretrained(folder)
    return str(folder)


def mixed_requests(num_tokens: int = 24) -> list[EngineRequest]:
    """Prompts of several lengths, greedy and sampled."""
    return [
        EngineRequest(
            0, [(i * 7 + j * 13) % 900 + 50 for j in range(length)], num_tokens, temperature=0.9 * (i % 2), seed=i
        )
        for i, length in enumerate((5, 100, 30, 7, 300, 44))
    ]
