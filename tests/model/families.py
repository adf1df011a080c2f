"""Tiny random models of each family as transformers makes them, and the GGUF a converter would make of them."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from tiny import CHAT_TEMPLATE, EOS, MERGES, SPECIAL, add_key, vocabulary
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB = 320
KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


class Case(NamedTuple):
    """A family and what its configuration says beyond the tiny default."""

    family: str
    changes: dict[str, Any]


CASES = {
    "llama-tied": Case("llama", {"tie_word_embeddings": True}),
    "llama-linear": Case("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
    "llama-llama3": Case("llama", {"rope_parameters": {**LLAMA3, "rope_theta": 500000.0}}),
    "llama-head24": Case("llama", {"hidden_size": 96, "num_attention_heads": 4, "num_key_value_heads": 4}),
    "llama-head40-apart": Case("llama", {"head_dim": 40, "num_key_value_heads": 1, "tie_word_embeddings": True}),
    "mistral": Case("mistral", {"sliding_window": None}),
    "mistral-window": Case("mistral", {"sliding_window": 1024, "num_key_value_heads": 4}),
    "qwen2": Case("qwen2", {}),
    "qwen2-tied-linear": Case(
        "qwen2",
        {
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 1e6},
            "hidden_size": 96,
        },
    ),
    "qwen3": Case("qwen3", {"head_dim": 40}),
    "qwen3-tied-llama3": Case(
        "qwen3",
        {"head_dim": 24, "tie_word_embeddings": True, "rope_parameters": {**LLAMA3, "rope_theta": 1e6}},
    ),
}


def tiny_model(case: Case, seed: int = 0) -> PreTrainedModel:
    """Every parameter is random, norms and biases too (transformers' own start at one and zero)."""
    config_class, model_class = KINDS[case.family]
    values = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": EOS,
    }
    config = config_class(**{**values, **case.changes})
    config._attn_implementation = "eager"
    model = model_class(config).float().eval()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=draw)
            if "norm" in name:
                parameter.copy_(1 + 0.1 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(noise * 1.5 / math.sqrt(parameter.shape[-1]))
    return model


def write_gguf(path: Path, model: PreTrainedModel, kind: str = "F32") -> Path:
    """As convert_hf_to_gguf writes it: its names, its order of Llama's query and key rows, its factors.

    kind: the type of the matrices; the values must be such that it holds them exactly.
    """
    config = model.config
    architecture = "llama" if config.model_type == "mistral" else config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**_shape_keys(config, architecture), **_TOKENIZER}.items():
        add_key(writer, key, value)
    names = gguf.get_tensor_name_map(
        {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}[architecture],
        config.num_hidden_layers,
    )
    for own, tensor in model.state_dict().items():
        if own == "lm_head.weight" and config.tie_word_embeddings:
            continue
        name = names.get_name(own, try_suffixes=(".weight", ".bias"))
        assert name is not None
        values = tensor.numpy()
        if architecture == "llama" and own.endswith(("q_proj.weight", "k_proj.weight")):
            values = _permuted(values, _head_dim(config))
        quantization = gguf.GGMLQuantizationType[kind if values.ndim == 2 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(values, quantization), raw_dtype=quantization)
    if config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", converters_factors(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_folder(path: Path, model: PreTrainedModel, dtype: torch.dtype = torch.float32, shard: str = "5GB") -> Path:
    """What transformers saves, and the tiny tokenizer as the tokenizers library saves it."""
    # A copy: to(dtype) works in place, and the caller's model stays float32.
    copy.deepcopy(model).to(dtype).save_pretrained(path, max_shard_size=shard)
    tokens = vocabulary(VOCAB)
    pairs = [tuple(merge.split(" ")) for merge in MERGES]
    made = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(tokens)}, merges=pairs))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    made.save(str(path / "tokenizer.json"))
    said = {"bos_token": SPECIAL[1], "eos_token": {"content": SPECIAL[EOS]}, "chat_template": CHAT_TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(said))
    return path


_TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": vocabulary(VOCAB),
    "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (VOCAB - len(SPECIAL)),
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": EOS,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": CHAT_TEMPLATE,
}


def _shape_keys(config: Any, architecture: str) -> dict[str, Any]:
    rope = config.rope_parameters
    keys = {
        "general.name": "tiny",
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": _head_dim(config),
        "attention.value_length": _head_dim(config),
        "rope.dimension_count": _head_dim(config),
        "rope.freq_base": float(rope["rope_theta"]),
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
    }
    if rope["rope_type"] == "linear":
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}
    return {key if key.startswith("general.") else f"{architecture}.{key}": value for key, value in keys.items()}


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _permuted(values: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    return values.reshape(-1, 2, head_dim // 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def converters_factors(config: Any) -> NDArray[np.float32]:
    """rope_freqs.weight by the formula of llama.cpp's converter, in torch as there."""
    rope, dim = config.rope_parameters, _head_dim(config)
    freqs = 1.0 / (rope["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    low, high, old = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    factors = []
    for freq in freqs:
        wavelen = 2 * math.pi / freq
        if wavelen < old / high:
            factors.append(1)
        elif wavelen > old / low:
            factors.append(rope["factor"])
        else:
            smooth = (old / wavelen - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return torch.tensor(factors, dtype=torch.float32).numpy()
