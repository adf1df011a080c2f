"""FLOPs and seconds of a decoder on an accelerator, by the roofline: a step takes as long as the slower of two streams.

A multiply-add is two FLOPs. Linear layers and attention are counted apart, because the one grows with tokens and the
other with tokens times what they see.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pageinn.catalogue.accelerators import Accelerator
from pageinn.catalogue.memory import layer_token_bytes, sequence_bytes, weight_bytes, weight_format
from pageinn.catalogue.shape import Shape


def rule_flops(shape: Shape, tokens: int) -> float:
    """The usual rule for the linear layers of a prefill: two FLOPs per active parameter and token.

    It takes the embedding for a matrix product and makes logits of every token, and so says a little too much; it is
    what published comparisons use (Kaplan et al. 2020, arXiv:2001.08361, section 2.1).
    """
    return 2.0 * shape.active_parameters * tokens


def linear_flops(shape: Shape, tokens: int, logit_rows: int = 1) -> float:
    """The matrix products that are really computed: those of the layers, and logits for some rows."""
    return 2.0 * (shape.active_layer_weights * tokens + shape.head_weights * logit_rows)


def seen(new: int, cached: int, window: int | None) -> int:
    """Pairs of a query and a key it sees, for `new` tokens after `cached` ones: the sum of min(window, position)."""
    last = cached + new
    if window is None or last <= window:
        return new * (2 * cached + new + 1) // 2
    if cached >= window:
        return new * window
    growing = window - cached
    return growing * (2 * cached + growing + 1) // 2 + (new - growing) * window


def prefill_attention_flops(shape: Shape, new: int, cached: int = 0) -> float:
    """Causal attention of `new` prompt tokens after `cached` ones that are not computed again."""
    pairs = sum(group.count * seen(new, cached, group.window) for group in shape.groups)
    return float(shape.attention.prefill_flops * pairs)


def decode_attention_flops(shape: Shape, context: int) -> float:
    """Attention of one generated token that sees `context` tokens, itself included."""
    pairs = sum(group.count * min(group.window or context, context) for group in shape.groups)
    return float(shape.attention.decode_flops * pairs)


def touched_experts(experts: int, active: int, tokens: int) -> float:
    """Experts that a batch needs the weights of, if the router chooses each as often as any other."""
    return experts * (1 - (1 - active / experts) ** tokens)


class Seconds(NamedTuple):
    """A step's two streams. They overlap, so that it takes the longer one."""

    compute: float
    memory: float

    @property
    def total(self) -> float:
        """What the step takes."""
        return max(self.compute, self.memory)


@dataclass(frozen=True)
class Roofline:
    """One model on tp accelerators of a kind.

    weights, store: a WEIGHT_FORMATS and a STORE_DTYPES name. flops_share, bandwidth_share: the part of the two peaks
    that is reached; 1 says "no faster than this". files: bytes of all weights where they are known, None to go by their
    format. Communication between accelerators is not counted.
    """

    shape: Shape
    accelerator: Accelerator
    weights: str
    store: str
    tp: int = 1
    flops_share: float = 1.0
    bandwidth_share: float = 1.0
    files: float | None = None

    @cached_property
    def flops(self) -> float:
        """FLOP/s of all accelerators together."""
        compute = weight_format(self.weights).compute
        return self.tp * self.flops_share * self.accelerator.rate(compute)

    @cached_property
    def attention_flops(self) -> float:
        """FLOP/s for attention, which is computed in 16 bits whatever the weights are in."""
        return self.tp * self.flops_share * self.accelerator.rate("half")

    @cached_property
    def bandwidth(self) -> float:
        """Bytes per second of one accelerator's memory."""
        return self.bandwidth_share * self.accelerator.bandwidth

    @cached_property
    def weight_bytes(self) -> float:
        """Bytes of the weights on one accelerator."""
        if self.files is not None:
            return self.files / self.tp
        return weight_bytes(self.shape, self.weights, self.tp)

    @cached_property
    def _routed(self) -> tuple[tuple[int, int, float], ...]:
        """Experts, those a token uses, and bytes of one, for each group of layers with a router, per accelerator."""
        each = weight_format(self.weights).weight if self.files is None else self.files / self.shape.parameters
        return tuple(
            (ff.experts, ff.active, group.count * 3 * self.shape.hidden * ff.width * each / self.tp)
            for group in self.shape.groups
            if (ff := group.feed_forward).router
        )

    @cached_property
    def _looked_up(self) -> float:
        """Bytes of the embedding matrix, of which a step reads only its tokens' rows, unless it is the head too."""
        if self.shape.tied:
            return 0.0
        whole = weight_format(self.weights).quantised == "all"
        each = weight_format(self.weights).weight if whole else 2
        return self.shape.head_weights * (each if self.files is None else self.files / self.shape.parameters) / self.tp

    @cached_property
    def _always_read(self) -> float:
        return self.weight_bytes - self._looked_up - sum(experts * size for experts, _, size in self._routed)

    @cached_property
    def _layer_token_bytes(self) -> float:
        return layer_token_bytes(self.shape.attention, self.store, self.tp)

    @property
    def read_all(self) -> float:
        """Bytes of weights that a step reads on one accelerator if every expert is used."""
        return self.weight_bytes - self._looked_up

    def read_weights(self, tokens: int) -> float:
        """Bytes of weights that a step over some tokens reads on one accelerator."""
        return self._always_read + sum(
            touched_experts(experts, active, tokens) * size for experts, active, size in self._routed
        )

    def step(self, prefill: Iterable[tuple[int, int]] = (), decode: Sequence[int] = ()) -> Seconds:
        """One step over chunks of prompts, each (new tokens, tokens before them), and decoding tokens, their contexts.

        Logits are counted once per chunk and decoding token. Keys and values are read once per sequence; those written
        are not counted. Nothing to do takes no time.
        """
        prefill = list(prefill)
        tokens = sum(new for new, _ in prefill) + len(decode)
        if not tokens:
            return Seconds(0.0, 0.0)
        linear = linear_flops(self.shape, tokens, len(prefill) + len(decode))
        attention = sum(prefill_attention_flops(self.shape, new, cached) for new, cached in prefill)
        attention += sum(decode_attention_flops(self.shape, context) for context in decode)
        read = sum(self._kept(new + cached) for new, cached in prefill) + sum(map(self._kept, decode))
        compute = linear / self.flops + attention / self.attention_flops
        return Seconds(compute, (self.read_weights(tokens) + read) / self.bandwidth)

    def _kept(self, tokens: int) -> float:
        kept = sum(group.count * min(group.window or tokens, tokens) for group in self.shape.groups)
        return kept * self._layer_token_bytes

    def copy_seconds(self, tokens: int) -> float:
        """Seconds to copy a sequence's keys and values to the host, or back, every accelerator over its own link."""
        return sequence_bytes(self.shape, tokens, self.store, self.tp) / self.accelerator.link


def compute_bound_batch(line: Roofline, context: int = 0) -> float | None:
    """Decoding sequences of `context` tokens from which compute, not memory, sets the pace; None if never.

    Every sequence adds FLOPs and, with a context, bytes of its own keys and values: where the latter take longer than
    the former, no batch is large enough. All weights are taken to be read, as a batch of that size does.
    """
    compute = (
        linear_flops(line.shape, 1) / line.flops + decode_attention_flops(line.shape, context) / line.attention_flops
    )
    memory = sequence_bytes(line.shape, context, line.store, line.tp) / line.bandwidth
    if compute <= memory:
        return None
    return line.read_all / line.bandwidth / (compute - memory)
