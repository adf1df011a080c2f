"""What a decoder is, as far as bytes and FLOPs go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GroupedQuery:
    """Attention whose `heads` query heads share `kv_heads` key-value heads of `head_dim` (arXiv:2305.13245).

    With kv_heads == heads this is multi-head attention.
    """

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def cached(self) -> int:
        """Elements kept per token and layer: keys and values of every key-value head."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def scaled_heads(self) -> int:
        """Vectors per token and layer that a store with one scale per vector scales."""
        return 2 * self.kv_heads

    def weights(self, hidden: int) -> int:
        """Weights of the query, key, value and output matrices."""
        return 2 * hidden * (self.heads + self.kv_heads) * self.head_dim

    @property
    def prefill_flops(self) -> int:
        """FLOPs per layer for one query and one key it sees: a dot product, and a multiple of a value added."""
        return 4 * self.heads * self.head_dim

    @property
    def decode_flops(self) -> int:
        """The same while decoding."""
        return self.prefill_flops


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): one compressed vector per token for all heads.

    kv_rank: its width; rope_dim: the key's rotated part, shared by all heads and kept beside it; nope_dim: the rest of
    a head's key; value_dim: a head's value; query_rank: width of the queries' compression, None for none.
    """

    heads: int
    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    query_rank: int | None

    @property
    def cached(self) -> int:
        """Elements kept per token and layer."""
        return self.kv_rank + self.rope_dim

    @property
    def scaled_heads(self) -> int:
        """Vectors per token and layer that a store with one scale per vector scales."""
        return 1

    def weights(self, hidden: int) -> int:
        """Weights of the projections down and up, and of the output matrix."""
        query = self.heads * (self.nope_dim + self.rope_dim)
        rank = self.query_rank
        queries = hidden * query if rank is None else hidden * rank + rank * query
        keys = hidden * self.cached + self.kv_rank * self.heads * (self.nope_dim + self.value_dim)
        return queries + keys + self.heads * self.value_dim * hidden

    @property
    def prefill_flops(self) -> int:
        """FLOPs per layer for one query and one key it sees, keys and values expanded."""
        return 2 * self.heads * (self.nope_dim + self.rope_dim + self.value_dim)

    @property
    def decode_flops(self) -> int:
        """The same while decoding, which works on the compressed vectors (the up-projections absorbed)."""
        return 2 * self.heads * (2 * self.kv_rank + self.rope_dim)


Attention = GroupedQuery | Latent


@dataclass(frozen=True)
class FeedForward:
    """Three matrices of `width`, in each of `experts`, of which a token uses `active`.

    shared: the width of experts that every token uses; router: whether there is one; vectors: biases of one expert.
    """

    width: int
    experts: int = 1
    active: int = 1
    shared: int = 0
    router: bool = False
    vectors: int = 0


@dataclass(frozen=True)
class Layers:
    """`count` layers of one kind. window: how many tokens one of them sees, itself included; None for all.

    vectors: norm weights and biases of one layer, its experts' apart.
    """

    count: int
    window: int | None
    feed_forward: FeedForward
    vectors: int


@dataclass(frozen=True)
class Shape:
    """A decoder in numbers. Of a model with eyes or ears, only its text decoder.

    context: the longest sequence, in tokens. tied: the head is the embedding matrix. weights: the format the published
    weights are in (a key of memory.WEIGHT_FORMATS), None where the config does not say. source: where the figures are
    from.
    """

    name: str
    architecture: str
    hidden: int
    vocab: int
    context: int
    tied: bool
    attention: Attention
    groups: tuple[Layers, ...]
    weights: str | None = None
    source: str = ""

    @property
    def layers(self) -> int:
        """How many layers."""
        return sum(group.count for group in self.groups)

    @property
    def attention_weights(self) -> int:
        """Weights of all layers' attention matrices."""
        return self.layers * self.attention.weights(self.hidden)

    @property
    def expert_weights(self) -> int:
        """Weights of the experts that a router chooses among, all of them."""
        return sum(
            group.count * group.feed_forward.experts * 3 * self.hidden * group.feed_forward.width
            for group in self.groups
            if group.feed_forward.router
        )

    @property
    def layer_weights(self) -> int:
        """Weights of all matrices inside the layers."""
        return self.attention_weights + sum(_feed_forward(self.hidden, group, active=False) for group in self.groups)

    @property
    def active_layer_weights(self) -> int:
        """Those of them that one token is multiplied with."""
        return self.attention_weights + sum(_feed_forward(self.hidden, group, active=True) for group in self.groups)

    @property
    def head_weights(self) -> int:
        """Weights of the matrix that makes logits."""
        return self.vocab * self.hidden

    @property
    def vectors(self) -> int:
        """Norm weights and biases."""
        inside = sum(
            group.count * (group.vectors + group.feed_forward.experts * group.feed_forward.vectors)
            for group in self.groups
        )
        return inside + self.hidden

    @property
    def parameters(self) -> int:
        """All parameters."""
        embeddings = self.head_weights if self.tied else 2 * self.head_weights
        return self.layer_weights + self.vectors + embeddings

    @property
    def active_parameters(self) -> int:
        """Parameters without the experts that a token does not use."""
        return self.parameters - self.layer_weights + self.active_layer_weights


def _feed_forward(hidden: int, group: Layers, *, active: bool) -> int:
    """Matrix weights of the feed-forward parts of a group."""
    ff = group.feed_forward
    router = ff.experts if ff.router else 0
    return group.count * hidden * (3 * ff.width * (ff.active if active else ff.experts) + 3 * ff.shared + router)
