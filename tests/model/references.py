"""transformers' Llama on the same weights, read by transformers' own GGUF loader."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.initialization import no_init_weights
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

#: As SmolLM2-135M-Instruct was published; reading it from the GGUF would parse the vocabulary once more.
SMOLLM2 = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    tie_word_embeddings=True,
    attn_implementation="sdpa",
)


def hugging_face_llama(path: Path, config: LlamaConfig | None = None) -> LlamaForCausalLM:
    """Float32 weights. `from_pretrained` would ask for one more package to do this. config: the file's, if None."""
    config = config or LlamaConfig(**load_gguf_checkpoint(str(path))["config"], attn_implementation="sdpa")
    with torch.device("meta"):
        skeleton = LlamaForCausalLM(config)
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=skeleton)["tensors"]
    with no_init_weights():
        model = LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if config.tie_word_embeddings else set())
    model.tie_weights()
    return model.float().eval()
