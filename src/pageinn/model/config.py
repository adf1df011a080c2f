"""What a decoder is, in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: Longest context whose rotary tables are built: 4 Mi tokens.
MAX_CONTEXT = 2**22
#: Larger than of any model that is known; a corrupt file must not make this project allocate what it says.
MAX_HEAD_DIM, MAX_VOCAB = 2**12, 2**22
#: The families, by the name that a GGUF and a config.json's model_type give them.
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
#: Rotary scalings, by the name that a config.json gives them.
ROPE_SCALINGS = ("linear", "llama3")


class ModelError(ValueError):
    """A model cannot be served; the message is one line that names the file or folder and says why."""


@dataclass(frozen=True)
class ModelConfig:
    """Shape and constants of a decoder of the Llama family (Touvron et al. 2023, arXiv:2302.13971).

    num_heads query heads share num_kv_heads key-value heads, each of head_dim dimensions, of which the first
    rotary_dim are rotated with base rope_theta. rope_factors: what each of the rotary_dim / 2 frequencies is
    divided by, empty if by nothing; rope_scaling: what that is called. qkv_bias: queries, keys and values have
    biases (Qwen 2). qk_norm: each query and key head is RMS-normalised before it is rotated (Qwen 3,
    arXiv:2505.09388). sliding_window: a token sees itself and sliding_window - 1 tokens before it, None if all.
    context_length is in tokens. tied_embeddings: the head is the embedding matrix. name: what the model calls
    itself, for /v1/models and logs.
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
    rope_scaling: str = "none"
    rope_factors: tuple[float, ...] = ()
    qkv_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.num_kv_heads * self.head_dim

    def check(self) -> ModelConfig:
        """Itself. Raises ModelError, without the file's name, if the numbers do not fit together."""
        require(
            self.num_heads % self.num_kv_heads == 0,
            f"{self.num_heads} query heads cannot share {self.num_kv_heads} key-value heads",
        )
        require(
            self.rotary_dim % 2 == 0 and self.rotary_dim <= self.head_dim,
            f"{self.rotary_dim} rotary dimensions do not fit a head of {self.head_dim}",
        )
        require(
            self.head_dim <= MAX_HEAD_DIM,
            f"heads of {self.head_dim} dimensions are beyond the supported {MAX_HEAD_DIM}",
        )
        require(self.vocab_size <= MAX_VOCAB, f"{self.vocab_size} tokens are beyond the supported {MAX_VOCAB}")
        require(
            self.context_length <= MAX_CONTEXT,
            f"a context of {self.context_length} tokens is beyond the supported {MAX_CONTEXT}",
        )
        return self


def require(holds: bool, message: str) -> None:
    """Raise ModelError unless it holds."""
    if not holds:
        raise ModelError(message)


def short(value: object) -> str:
    """A value from a file, for a message of one line."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the file's name before the message of a ModelError from within."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
