"""What a decoder is, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


class ModelError(ValueError):
    """A model file cannot be served; the message is one line that names the file and says why."""


@dataclass(frozen=True)
class ModelConfig:
    """Shape and constants of a Llama decoder (Touvron et al. 2023, arXiv:2302.13971).

    num_heads query heads share num_kv_heads key-value heads, each of head_dim dimensions, of which the first
    rotary_dim are rotated with base rope_theta. context_length is in tokens. tied_embeddings: the head is the
    embedding matrix. name: what the file calls itself, for /v1/models and logs.
    """

    architecture: str
    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    rms_eps: float
    vocab_size: int
    context_length: int
    tied_embeddings: bool
    bos_id: int | None
    eos_id: int | None

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.num_kv_heads * self.head_dim
