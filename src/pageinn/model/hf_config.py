"""From a folder's config.json to a ModelConfig, refusing what the decoder would compute wrongly.

What a key that is missing stands for is what transformers takes for the family.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pageinn.model.config import FAMILIES, MAX_HEAD_DIM, ROPE_SCALINGS, ModelConfig, ModelError, require, short
from pageinn.model.rotary import linear_factors, llama3_factors
from pageinn.model.values import Values

#: transformers' classes, and the family each is.
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
#: Keys that change what a decoder computes, the values that do not, and what they mean.
_UNSUPPORTED: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("attention_bias", (None, False), "an output bias in attention"),
    ("mlp_bias", (None, False), "biases in the feed-forward layers"),
    ("partial_rotary_factor", (None, 1, 1.0), "a rotary embedding of part of each head"),
    ("hidden_act", (None, "silu", "swish"), "an activation other than silu"),
)
_MISTRAL_WINDOW = 4096
_QWEN3_HEAD = 128


def read_hf_config(content: Mapping[str, Any], name: str) -> ModelConfig:
    """The decoder's shape. name: what the model is called.

    Raises ModelError, without the folder's name, for a missing or impossible value, an architecture that is
    not supported, quantised weights, and every feature that this decoder does not compute.
    """
    read = Values({key: value for key, value in content.items() if value is not None}, "config.json")
    family = _family(read)
    _refuse_features(read)
    heads, hidden = read.positive("num_attention_heads"), read.positive("hidden_size")
    if family != "qwen3" and "head_dim" not in read.values:
        require(hidden % heads == 0, f"hidden size {hidden} is not a multiple of {heads} heads")
    head_dim = read.positive("head_dim", _QWEN3_HEAD if family == "qwen3" else max(1, hidden // heads))
    require(head_dim <= MAX_HEAD_DIM, f"heads of {head_dim} dimensions are beyond the supported {MAX_HEAD_DIM}")
    require(head_dim % 2 == 0, f"a head of {head_dim} dimensions cannot be rotated in pairs")
    rope = _rope(read, head_dim)
    return ModelConfig(
        architecture=family,
        name=name,
        num_layers=read.positive("num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=read.positive("intermediate_size"),
        num_heads=heads,
        num_kv_heads=read.positive("num_key_value_heads", heads if family == "llama" else None),
        head_dim=head_dim,
        rotary_dim=head_dim,
        rope_theta=rope.theta,
        rms_eps=read.positive_float("rms_norm_eps"),
        vocab_size=read.positive("vocab_size"),
        context_length=read.positive("max_position_embeddings"),
        tied_embeddings=read.flag("tie_word_embeddings", False),
        rope_scaling=rope.scaling,
        rope_factors=rope.factors,
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        sliding_window=_sliding_window(read, content, family),
    ).check()


def _family(read: Values) -> str:
    named = read.texts("architectures")
    if not named:
        family = read.text("model_type")
        if family in FAMILIES:
            return family
        named = [f"model_type {family}"]
    if named[0] not in ARCHITECTURES:
        raise ModelError(f"architecture {named[0]!r} is not supported (supported: {', '.join(ARCHITECTURES)})")
    return ARCHITECTURES[named[0]]


def _refuse_features(read: Values) -> None:
    quantised = read.values.get("quantization_config") or read.values.get("compression_config")
    if quantised is not None:
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
        raise ModelError(
            f"the weights are quantised ({short(method or 'unknown method')}), which is not supported in a folder; "
            "take the model in float16 or bfloat16, or as a GGUF"
        )
    for key, neutral, meaning in _UNSUPPORTED:
        value = read.values.get(key)
        if value not in neutral:
            raise ModelError(f"{meaning} is not supported (config.json's {key!r} is {short(value)})")


class _Rope(NamedTuple):
    """What a ModelConfig calls rope_theta, rope_scaling and rope_factors."""

    theta: float
    scaling: str
    factors: tuple[float, ...]


def _rope(read: Values, head_dim: int) -> _Rope:
    """transformers 5 writes all in rope_parameters, earlier ones rope_theta and rope_scaling."""
    given = read.values.get("rope_parameters", read.values.get("rope_scaling", {}))
    if not isinstance(given, Mapping):
        raise ModelError(f"config.json's rotary parameters are {short(given)}, not an object")
    rope = Values({key: value for key, value in given.items() if value is not None}, "config.json's rotary scaling")
    theta = rope.positive_float("rope_theta", read.positive_float("rope_theta", 10000.0))
    require(rope.values.get("partial_rotary_factor", 1) == 1, f"{_UNSUPPORTED[2][2]} is not supported")
    kind = rope.text("rope_type") or rope.text("type") or "default"
    if kind == "default":
        nested = [key for key, value in rope.values.items() if isinstance(value, Mapping)]
        require(not nested, f"rotary parameters by kind of layer are not supported ({', '.join(nested)})")
        return _Rope(theta, "none", ())
    if kind == "linear":
        return _Rope(theta, kind, linear_factors(head_dim, rope.positive_float("factor")))
    if kind != "llama3":
        raise ModelError(f"rotary scaling {kind!r} is not supported (supported: {', '.join(ROPE_SCALINGS)})")
    factors = llama3_factors(
        head_dim,
        theta,
        factor=rope.positive_float("factor"),
        low=rope.positive_float("low_freq_factor"),
        high=rope.positive_float("high_freq_factor"),
        original=rope.positive("original_max_position_embeddings"),
    )
    return _Rope(theta, kind, factors)


def _sliding_window(read: Values, content: Mapping[str, Any], family: str) -> int | None:
    """The window of any layer: what layers differ in does not matter where no sequence outgrows it."""
    kinds = set(read.texts("layer_types"))
    foreign = kinds - {"full_attention", "sliding_attention"}
    require(not foreign, f"layers of kind {', '.join(sorted(foreign))} are not supported")
    if family == "llama" or kinds == {"full_attention"}:
        return None
    if family == "mistral":
        # A null says that there is none; without the key transformers takes Mistral 7B's.
        return (
            read.positive("sliding_window", _MISTRAL_WINDOW) if content.get("sliding_window", 0) is not None else None
        )
    return read.positive("sliding_window") if read.flag("use_sliding_window", False) else None
