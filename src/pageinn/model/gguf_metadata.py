"""From metadata to a ModelConfig and a TokenizerData, refusing what the decoder would compute wrongly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pageinn.model.config import MAX_HEAD_DIM, ROPE_SCALINGS, ModelConfig, ModelError, require, short
from pageinn.model.gguf_header import Value
from pageinn.model.rotary import linear_factors
from pageinn.model.values import Values
from pageinn.text.data import TokenizerData

#: Mistral's files call themselves llama.
ARCHITECTURES = ("llama", "qwen2", "qwen3")
#: Pre-tokenizers whose models start with a beginning-of-sequence token unless the file says otherwise.
BOS_BY_DEFAULT = ("llama3", "llama-v3", "llama-bpe")


class Feature(NamedTuple):
    """An architecture key that changes what a decoder computes, the values that do not, and its name."""

    key: str
    neutral: tuple[object, ...]
    name: str


#: What llama.cpp computes for these and this decoder does not.
UNSUPPORTED = (
    Feature("rope.scaling.attn_factor", (0.0, 1.0), "rotary scaling with an attention factor"),
    Feature("expert_count", (0,), "mixture of experts"),
    Feature("attention.scale", (0.0,), "a custom attention scale"),
    Feature("attention.clamp_kqv", (0.0,), "clamped queries, keys and values"),
    Feature("attention.max_alibi_bias", (0.0,), "ALiBi"),
    Feature("attention.causal", (True,), "attention that is not causal"),
    Feature("logit_scale", (0.0, 1.0), "scaled logits"),
    Feature("embedding_scale", (0.0, 1.0), "scaled embeddings"),
    Feature("residual_scale", (0.0, 1.0), "scaled residuals"),
    Feature("attn_logit_softcapping", (0.0,), "soft-capped attention"),
    Feature("final_logit_softcapping", (0.0,), "soft-capped logits"),
)


def read_config(
    metadata: Mapping[str, Value], *, tied_embeddings: bool, frequency_factors: Sequence[float] = ()
) -> ModelConfig:
    """The decoder's shape. frequency_factors: the tensor rope_freqs.weight, if the file has it.

    Raises ModelError, without the file's name, for a missing or impossible value, an architecture that is not
    supported, and every feature that would make this decoder compute something else than the model means.
    """
    read = Values(metadata, "the metadata")
    architecture = read.text("general.architecture")
    if architecture is None:
        raise ModelError("the metadata lacks 'general.architecture'")
    if architecture not in ARCHITECTURES:
        raise ModelError(f"architecture {architecture!r} is not supported (supported: {', '.join(ARCHITECTURES)})")
    _refuse_features(metadata, architecture)
    prefix = architecture + "."
    hidden, heads = read.positive(prefix + "embedding_length"), read.positive(prefix + "attention.head_count")
    head_dim = read.positive(prefix + "attention.key_length", max(1, hidden // heads))
    rotary = read.positive(prefix + "rope.dimension_count", head_dim)
    vocab = len(read.texts("tokenizer.ggml.tokens"))
    require(
        prefix + "attention.key_length" in metadata or hidden % heads == 0,
        f"hidden size {hidden} is not a multiple of {heads} heads",
    )
    require(
        read.positive(prefix + "attention.value_length", head_dim) == head_dim,
        "keys and values of different sizes are not supported",
    )
    require(vocab > 0, "the metadata lacks 'tokenizer.ggml.tokens'")
    require(
        read.positive(prefix + "vocab_size", vocab) == vocab,
        f"{prefix}vocab_size and the list of {vocab} tokens disagree",
    )
    require(head_dim <= MAX_HEAD_DIM, f"heads of {head_dim} dimensions are beyond the supported {MAX_HEAD_DIM}")
    require(rotary <= head_dim, f"{rotary} rotary dimensions do not fit a head of {head_dim}")
    scaling = _scaling(read, prefix, rotary, frequency_factors)
    return ModelConfig(
        architecture=architecture,
        name=read.text("general.name") or architecture,
        num_layers=read.positive(prefix + "block_count"),
        hidden_size=hidden,
        intermediate_size=read.positive(prefix + "feed_forward_length"),
        num_heads=heads,
        num_kv_heads=read.positive(prefix + "attention.head_count_kv", heads),
        head_dim=head_dim,
        rotary_dim=rotary,
        rope_theta=read.positive_float(prefix + "rope.freq_base", 10000.0),
        rms_eps=read.positive_float(prefix + "attention.layer_norm_rms_epsilon"),
        vocab_size=vocab,
        context_length=read.positive(prefix + "context_length"),
        tied_embeddings=tied_embeddings,
        rope_scaling=scaling.name,
        rope_factors=scaling.factors,
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
        # 0 is how a converter says that there is none.
        sliding_window=read.integer(prefix + "attention.sliding_window", 0) or None,
    ).check()


class _Scaling(NamedTuple):
    """What a ModelConfig calls rope_scaling and rope_factors."""

    name: str
    factors: tuple[float, ...]


def _scaling(read: Values, prefix: str, rotary: int, frequency_factors: Sequence[float]) -> _Scaling:
    """What llama.cpp makes of the keys: a factor without a type is linear, a type "none" has no factor.

    Llama 3's scaling is written as a tensor of factors, one per frequency, without a type.
    """
    kind = read.text(prefix + "rope.scaling.type") or "linear"
    if kind not in ("none", "linear"):
        raise ModelError(f"rotary scaling {kind!r} is not supported (supported: {', '.join(ROPE_SCALINGS)})")
    factor = 1.0
    for key in ("rope.scale_linear", "rope.scaling.factor"):
        if kind == "linear" and read.values.get(prefix + key, 0.0) != 0.0:
            factor = read.positive_float(prefix + key)
    if not frequency_factors:
        return _Scaling("none", ()) if factor == 1.0 else _Scaling("linear", linear_factors(rotary, factor))
    require(factor == 1.0, "rotary scaling both by a linear factor and by rope_freqs.weight is not supported")
    require(
        len(frequency_factors) == rotary // 2,
        f"tensor 'rope_freqs.weight' has {len(frequency_factors)} factors, not {rotary // 2}",
    )
    require(min(frequency_factors) > 0, "tensor 'rope_freqs.weight' holds factors that are not above 0")
    return _Scaling("llama3", tuple(frequency_factors))


def read_tokenizer(metadata: Mapping[str, Value]) -> TokenizerData:
    """The tokenizer's data, not yet judged: what can be built from it is decided by the text room.

    Where the file is silent, add_bos and add_space_prefix are what llama.cpp takes for the family. Raises
    ModelError, without the file's name, for values of a wrong kind or ids outside the vocabulary.
    """
    read = Values(metadata, "the metadata")
    tokens = read.texts("tokenizer.ggml.tokens")
    token_types = read.integers("tokenizer.ggml.token_type")
    require(
        not token_types or len(token_types) == len(tokens),
        f"the metadata has {len(tokens)} tokens and {len(token_types)} token types",
    )
    model = read.text("tokenizer.ggml.model")
    if model is None:
        raise ModelError("the metadata lacks 'tokenizer.ggml.model'")
    pre = read.text("tokenizer.ggml.pre") or "default"
    sentencepiece = model == "llama"
    return TokenizerData(
        model=model,
        pre=pre,
        tokens=tokens,
        token_types=token_types,
        merges=read.texts("tokenizer.ggml.merges"),
        bos_id=read.token_id("tokenizer.ggml.bos_token_id", len(tokens)),
        eos_id=read.token_id("tokenizer.ggml.eos_token_id", len(tokens)),
        pad_id=read.token_id("tokenizer.ggml.padding_token_id", len(tokens)),
        add_bos=read.flag("tokenizer.ggml.add_bos_token", sentencepiece or pre in BOS_BY_DEFAULT),
        add_space_prefix=read.flag("tokenizer.ggml.add_space_prefix", sentencepiece),
        chat_template=read.text("tokenizer.chat_template"),
        scores=read.numbers("tokenizer.ggml.scores"),
    )


def _refuse_features(metadata: Mapping[str, Value], architecture: str) -> None:
    for feature in UNSUPPORTED:
        key = f"{architecture}.{feature.key}"
        value = metadata.get(key)
        if value is not None and value not in feature.neutral:
            raise ModelError(f"{feature.name} is not supported ({key} is {short(value)})")
