"""From a published config.json to a Shape. What a missing key stands for is what transformers takes for the family.

An architecture that is not listed here is refused: a guess would be wrong by whole factors (a latent cache is some
thirty times smaller than the heads' keys and values would be, a recurrent layer keeps nothing per token).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any

from pageinn.catalogue.errors import CatalogueError
from pageinn.catalogue.shape import Attention, FeedForward, GroupedQuery, Latent, Layers, Shape


class Config:
    """The keys of a config.json, read with types. Raises CatalogueError for what is missing or of a wrong kind."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.given = values
        self.values = {key: value for key, value in values.items() if value is not None}

    def with_defaults(self, defaults: Mapping[str, int]) -> Config:
        """The same with what missing keys stand for; a null is not missing."""
        return Config({**defaults, **self.given})

    def number(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1; without a default, one that must be there."""
        value = self.values.get(key, default)
        if value is None:
            raise CatalogueError(f"the config lacks {key!r}")
        if type(value) is not int or value < 1:
            raise CatalogueError(f"the config's {key!r} is {str(value)[:40]!r}, not a whole number above 0")
        return value

    def count(self, key: str) -> int:
        """A whole number, 0 where there is none."""
        return 0 if self.values.get(key, 0) == 0 else self.number(key)

    def optional(self, key: str) -> int | None:
        """A whole number of at least 1, None where there is none."""
        return self.number(key) if key in self.values else None

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key, default)
        if type(value) is not bool:
            raise CatalogueError(f"the config's {key!r} is {str(value)[:40]!r}, not true or false")
        return value


def shape_of(config: Mapping[str, Any], name: str, source: str = "") -> Shape:
    """The decoder that a config.json describes.

    Raises CatalogueError, one line without the file's name, for an architecture that is not known, and for a missing or
    impossible value.
    """
    architecture = architecture_of(config)
    if architecture not in READERS:
        raise CatalogueError(f"architecture {architecture!r} is not known (known: {', '.join(sorted(READERS))})")
    nested = config.get("text_config")
    if nested is not None and not isinstance(nested, Mapping):
        raise CatalogueError("the config's 'text_config' is not an object")
    read = Config({**config, **nested} if isinstance(nested, Mapping) else config)
    return READERS[architecture](read, architecture, name, source)


def architecture_of(config: Mapping[str, Any]) -> str:
    """transformers' class. Raises CatalogueError where the config names none."""
    named = config.get("architectures")
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        raise CatalogueError("the config names no architecture ('architectures' is missing or empty)")
    return named[0]


def weights_of(config: Config) -> str | None:
    """The format of the published weights, None where it is not clear."""
    quantised = config.values.get("quantization_config")
    if isinstance(quantised, Mapping):
        method, bits = quantised.get("quant_method"), quantised.get("bits")
        if method in ("gptq", "awq"):
            return {4: "int4", 8: "int8"}.get(bits) if isinstance(bits, int) else None
        return {"fp8": "fp8", "mxfp4": "mxfp4"}.get(str(method))
    dtype = config.values.get("torch_dtype", config.values.get("dtype"))
    return {"bfloat16": "bfloat16", "float16": "float16", "float32": "float32"}.get(str(dtype))


Windows = Callable[[Config, int], int | None]


def _dense(
    *,
    norms: int = 2,
    query_bias: bool = False,
    head_norms: bool = False,
    windows: Windows = lambda config, layer: None,
    head_dim: int | None = None,
    tied: bool = False,
    defaults: Mapping[str, int] | None = None,
) -> Callable[[Config, str, str, str], Shape]:
    """A reader of a family with one dense feed-forward part per layer.

    norms: of the hidden width, per layer. query_bias: queries, keys and values have biases. head_norms: each query and
    key head is normalised. head_dim, tied, defaults: what a missing key stands for.
    """

    def read(config: Config, architecture: str, name: str, source: str) -> Shape:
        given = config.with_defaults(defaults or {})
        attention = _grouped(given, head_dim)
        hidden = given.number("hidden_size")
        vectors = norms * hidden + _small(attention, query_bias, head_norms)
        feed_forward = FeedForward(given.number("intermediate_size"))
        kinds = [Layers(1, windows(given, layer), feed_forward, vectors) for layer in _layers(given)]
        return _shape(given, architecture, name, source, attention, kinds, tied)

    return read


def _small(attention: GroupedQuery, bias: bool, head_norms: bool) -> int:
    """Biases of queries, keys and values, and the weights of one norm for query heads and one for key heads."""
    biases = (attention.heads + 2 * attention.kv_heads) * attention.head_dim if bias else 0
    return biases + (2 * attention.head_dim if head_norms else 0)


def _grouped(config: Config, head_dim: int | None = None) -> GroupedQuery:
    heads, hidden = config.number("num_attention_heads"), config.number("hidden_size")
    width = head_dim or max(1, hidden // heads)
    attention = GroupedQuery(heads, config.number("num_key_value_heads", heads), config.number("head_dim", width))
    if heads % attention.kv_heads:
        raise CatalogueError(f"{heads} query heads cannot share {attention.kv_heads} key-value heads")
    return attention


def _layers(config: Config) -> range:
    return range(config.number("num_hidden_layers"))


def _shape(
    config: Config, architecture: str, name: str, source: str, attention: Attention, kinds: list[Layers], tied: bool
) -> Shape:
    return Shape(
        name=name,
        architecture=architecture,
        hidden=config.number("hidden_size"),
        vocab=config.number("vocab_size"),
        context=config.number("max_position_embeddings"),
        tied=config.flag("tie_word_embeddings", tied),
        attention=attention,
        groups=_counted(kinds),
        weights=weights_of(config),
        source=source,
    )


def _counted(kinds: list[Layers]) -> tuple[Layers, ...]:
    """Layers of one kind together, in the order in which the kinds first occur."""
    order: dict[Layers, int] = {}
    for kind, run in groupby(kinds):
        order[kind] = order.get(kind, 0) + len(list(run))
    return tuple(Layers(count, kind.window, kind.feed_forward, kind.vectors) for kind, count in order.items())


# --- windows --------------------------------------------------------------------------------------------------------


def _mistral_window(config: Config, layer: int) -> int | None:
    return config.optional("sliding_window")


def _qwen_window(config: Config, layer: int) -> int | None:
    if not config.flag("use_sliding_window", False):
        return None
    return config.number("sliding_window") if layer >= config.count("max_window_layers") else None


def _listed_window(pattern: int) -> Windows:
    """By the config's list of layer types; without one, every pattern-th layer sees everything."""

    def window(config: Config, layer: int) -> int | None:
        kinds = config.values.get("layer_types")
        if kinds is None:
            every = config.number("sliding_window_pattern", pattern)
            return config.number("sliding_window") if (layer + 1) % every else None
        if not isinstance(kinds, list) or len(kinds) != config.number("num_hidden_layers"):
            raise CatalogueError("the config's 'layer_types' does not name one type for each layer")
        if kinds[layer] not in ("sliding_attention", "full_attention"):
            raise CatalogueError(f"layers of type {str(kinds[layer])[:40]!r} are not known")
        return config.number("sliding_window") if kinds[layer] == "sliding_attention" else None

    return window


# --- experts --------------------------------------------------------------------------------------------------------


def _mixtral(config: Config, architecture: str, name: str, source: str) -> Shape:
    attention, hidden = _grouped(config), config.number("hidden_size")
    experts = FeedForward(
        config.number("intermediate_size"),
        experts=config.number("num_local_experts"),
        active=config.number("num_experts_per_tok"),
        router=True,
    )
    kinds = [Layers(1, _mistral_window(config, layer), experts, 2 * hidden) for layer in _layers(config)]
    return _shape(config, architecture, name, source, attention, kinds, tied=False)


def _minimax(config: Config, architecture: str, name: str, source: str) -> Shape:
    """As Mixtral, with one norm over all query heads together and one over all key heads."""
    attention, hidden = _grouped(config), config.number("hidden_size")
    experts = FeedForward(
        config.number("intermediate_size"),
        experts=config.number("num_local_experts"),
        active=config.number("num_experts_per_tok"),
        shared=config.count("shared_intermediate_size"),
        router=True,
    )
    norms = (attention.heads + attention.kv_heads) * attention.head_dim if config.flag("use_qk_norm", False) else 0
    kinds = [Layers(1, None, experts, 2 * hidden + norms) for _ in _layers(config)]
    return _shape(config, architecture, name, source, attention, kinds, tied=False)


def _qwen3_moe(config: Config, architecture: str, name: str, source: str) -> Shape:
    attention, hidden = _grouped(config), config.number("hidden_size")
    experts = FeedForward(
        config.number("moe_intermediate_size"),
        experts=config.number("num_experts"),
        active=config.number("num_experts_per_tok"),
        router=True,
    )
    dense = FeedForward(config.number("intermediate_size"))
    only = config.values.get("mlp_only_layers", [])
    step = config.number("decoder_sparse_step", 1)
    vectors = 2 * hidden + _small(attention, False, head_norms=True)
    kinds = [
        Layers(1, _qwen_window(config, at), dense if at in only or (at + 1) % step else experts, vectors)
        for at in _layers(config)
    ]
    return _shape(config, architecture, name, source, attention, kinds, tied=False)


def _gpt_oss(config: Config, architecture: str, name: str, source: str) -> Shape:
    """Every matrix has a bias, and every head a sink: one learned score that takes part in the softmax."""
    attention, hidden = _grouped(config, head_dim=64), config.number("hidden_size")
    width, experts = config.number("intermediate_size"), config.number("num_local_experts")
    feed_forward = FeedForward(
        width,
        experts=experts,
        active=config.number("num_experts_per_tok"),
        router=True,
        vectors=2 * width + hidden,
    )
    vectors = 3 * hidden + _small(attention, True, False) + attention.heads + experts
    window = _listed_window(2)
    kinds = [Layers(1, window(config, layer), feed_forward, vectors) for layer in _layers(config)]
    return _shape(config, architecture, name, source, attention, kinds, tied=False)


def _routed(config: Config) -> tuple[FeedForward, FeedForward, int]:
    """DeepSeek's way of naming experts: those of the first layers (dense), those after, and how many are first."""
    width = config.number("moe_intermediate_size")
    if config.number("moe_layer_freq", 1) != 1:
        raise CatalogueError("experts in only some of the layers after the first ('moe_layer_freq') are not known")
    experts = FeedForward(
        width,
        experts=config.number("n_routed_experts"),
        active=config.number("num_experts_per_tok"),
        shared=width * config.count("n_shared_experts"),
        router=True,
    )
    return FeedForward(config.number("intermediate_size")), experts, config.count("first_k_dense_replace")


def _deepseek(config: Config, architecture: str, name: str, source: str) -> Shape:
    attention = Latent(
        heads=config.number("num_attention_heads"),
        kv_rank=config.number("kv_lora_rank"),
        rope_dim=config.number("qk_rope_head_dim"),
        nope_dim=config.number("qk_nope_head_dim"),
        value_dim=config.number("v_head_dim"),
        query_rank=config.optional("q_lora_rank"),
    )
    dense, experts, first = _routed(config)
    vectors = 2 * config.number("hidden_size") + attention.kv_rank + (attention.query_rank or 0)
    kinds = [Layers(1, None, dense if layer < first else experts, vectors) for layer in _layers(config)]
    return _shape(config, architecture, name, source, attention, kinds, tied=False)


def _glm4_moe(config: Config, architecture: str, name: str, source: str) -> Shape:
    attention = _grouped(config)
    dense, experts, first = _routed(config)
    bias, norms = config.flag("attention_bias", False), config.flag("use_qk_norm", False)
    vectors = 2 * config.number("hidden_size") + _small(attention, bias, norms)
    kinds = [Layers(1, None, dense if layer < first else experts, vectors) for layer in _layers(config)]
    return _shape(config, architecture, name, source, attention, kinds, tied=False)


_GEMMA3 = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "sliding_window": 4096,
    "max_position_embeddings": 131072,
}

#: transformers' classes that can be read.
READERS: dict[str, Callable[[Config, str, str, str], Shape]] = {
    "LlamaForCausalLM": _dense(),
    "MistralForCausalLM": _dense(windows=_mistral_window, defaults={"sliding_window": 4096}),
    "Phi3ForCausalLM": _dense(windows=_mistral_window),
    "Qwen2ForCausalLM": _dense(query_bias=True, windows=_qwen_window),
    "Qwen3ForCausalLM": _dense(head_norms=True, windows=_qwen_window, head_dim=128),
    "Gemma2ForCausalLM": _dense(norms=4, windows=_listed_window(2), head_dim=256, tied=True),
    "Gemma3ForCausalLM": _dense(
        norms=4, head_norms=True, windows=_listed_window(6), head_dim=256, tied=True, defaults=_GEMMA3
    ),
    "Gemma3ForConditionalGeneration": _dense(
        norms=4, head_norms=True, windows=_listed_window(6), head_dim=256, tied=True, defaults=_GEMMA3
    ),
    "MixtralForCausalLM": _mixtral,
    "MiniMaxM2ForCausalLM": _minimax,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "GptOssForCausalLM": _gpt_oss,
    "DeepseekV2ForCausalLM": _deepseek,
    "DeepseekV3ForCausalLM": _deepseek,
    "Glm4MoeForCausalLM": _glm4_moe,
}
