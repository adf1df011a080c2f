"""What the decoder needs of a model on disk, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from pageinn.kernels.backend import F32, I32
from pageinn.model.config import ModelConfig
from pageinn.text.data import TokenizerData


class StoredTensor(Protocol):
    """A tensor in a file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Slowest dimension first."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        ...


class Checkpoint(Protocol):
    """An opened model: what is small has been read and checked, the weights stay in the mapped files.

    Tensors go by a GGUF's names ("blk.0.attn_q.weight") in every format.
    """

    path: Path
    config: ModelConfig
    tokenizer: TokenizerData

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """The weights by name; a tensor that has no such name stands under its own."""
        ...

    @property
    def interleaved_rotary(self) -> bool:
        """Whether query and key rows are ordered for pairs (2i, 2i + 1), not (i, i + rotary_dim / 2)."""
        ...

    @property
    def served_name(self) -> str:
        """What a client calls the model: its name on the hub, or its file's or folder's, easy to type."""
        ...

    def own_name(self, name: str) -> str:
        """What the format itself calls a tensor, for messages."""
        ...

    def tensor(self, name: str) -> F32:
        """A whole tensor. Raises ModelError if it holds values that are not finite."""
        ...

    def rows(self, name: str, wanted: I32) -> F32:
        """Some rows of a matrix, [len(wanted), row length]. Raises IndexError for a row it lacks."""
        ...

    def fingerprint(self) -> str:
        """A hexadecimal key that two models share only if they compute the same."""
        ...
