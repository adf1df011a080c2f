"""A GGUF on disk, mapped: its header read once, its tensors dequantised row by row when asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from pageinn.kernels.backend import F32, I32
from pageinn.model.config import ModelConfig, ModelError, naming
from pageinn.model.gguf_header import TensorInfo, read_header
from pageinn.model.gguf_metadata import read_config, read_tokenizer
from pageinn.text.data import TokenizerData

#: The tensor in which Llama 3's rotary scaling is written, one factor per frequency.
FREQUENCY_FACTORS = "rope_freqs.weight"


class GGUFFile:
    """A GGUF whose header has been checked; the file stays mapped while this lives.

    A `Checkpoint`. config, tokenizer: what the metadata says. tensors: by name, each inside the file.
    """

    def __init__(self, path: Path) -> None:
        """Map the file and read its header.

        Raises ModelError, one line that names the file, if it cannot be read or is not a model that is
        supported.
        """
        self.path = path
        self._bytes = _map_file(path)
        with naming(path):
            header = read_header(self._bytes.data)
        self.tensors: Mapping[str, TensorInfo] = header.tensors
        factors = self._frequency_factors()
        with naming(path):
            self.config: ModelConfig = read_config(
                header.metadata, tied_embeddings="output.weight" not in header.tensors, frequency_factors=factors
            )
            self.tokenizer: TokenizerData = read_tokenizer(header.metadata)
            for tensor in header.tensors.values():
                _require_dequantisable(tensor)

    @property
    def interleaved_rotary(self) -> bool:
        """Whether query and key rows lie in the order of Meta's original code: only in Llama's own files."""
        return self.config.architecture == "llama"

    @property
    def served_name(self) -> str:
        """The file's name without its ending."""
        return self.path.name.removesuffix(".gguf")

    def own_name(self, name: str) -> str:
        """The names that this project uses are a GGUF's."""
        return name

    def _frequency_factors(self) -> tuple[float, ...]:
        """The factors of Llama 3's rotary scaling, taken out of the table of weights."""
        if FREQUENCY_FACTORS not in self.tensors:
            return ()
        with naming(self.path):
            _require_dequantisable(self.tensors[FREQUENCY_FACTORS])
        factors = self.tensor(FREQUENCY_FACTORS)
        self.tensors = {name: tensor for name, tensor in self.tensors.items() if name != FREQUENCY_FACTORS}
        return tuple(factors.ravel().tolist())

    def raw_rows(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes as they lie in the file, [rows, bytes per row]; a vector is one row. A view."""
        tensor = self.tensors[name]
        raw = self._bytes[tensor.offset : tensor.offset + tensor.nbytes]
        rows = int(np.prod(tensor.shape[:-1], dtype=np.int64))
        return raw.reshape(rows, tensor.nbytes // rows)

    def tensor(self, name: str) -> F32:
        """A tensor as float32 in its shape. Raises ModelError if it holds values that are not finite."""
        tensor = self.tensors[name]
        with naming(self.path):
            values = dequantise_rows(self.raw_rows(name), tensor.type).reshape(tensor.shape)
            if not (np.isfinite(values.min()) and np.isfinite(values.max())):
                raise ModelError(f"tensor {name!r} holds values that are not finite")
        return values

    def rows(self, name: str, wanted: I32) -> F32:
        """Some rows of a matrix as float32 [len(wanted), row length]. Raises IndexError for a row it lacks."""
        return dequantise_rows(self.raw_rows(name)[wanted], self.tensors[name].type)

    def fingerprint(self) -> str:
        """SHA-256 of the whole file, hexadecimal: two files have one key only if they are the same model.

        The whole file, because a sample would miss a patch of single rows; it costs some 0.2 s per 100 MB, a
        part of what loading the weights takes.
        """
        return hashlib.sha256(self._bytes.data).hexdigest()


def dequantise_rows(rows: NDArray[np.uint8], kind: GGMLQuantizationType) -> F32:
    """Whole rows of a tensor, [n, bytes per row], as float32 [n, row length]."""
    # A corrupt scale (infinity times zero) is reported by whoever checks the values, not as a warning.
    with np.errstate(all="ignore"):
        return np.asarray(dequantize(rows, kind), np.float32)


def supported_types() -> list[str]:
    """The names of the tensor types that can be read."""
    return [kind.name for kind in GGMLQuantizationType if _dequantisable(kind)]


def _dequantisable(kind: GGMLQuantizationType) -> bool:
    _, block_bytes = GGML_QUANT_SIZES[kind]
    try:
        # The package says what it supports by doing it: one block of zeros.
        dequantise_rows(np.zeros((1, block_bytes), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _map_file(path: Path) -> NDArray[Any]:
    if path.is_dir():
        raise ModelError(f"{path}: a directory, not a GGUF file")
    try:
        if path.stat().st_size == 0:
            raise ModelError(f"{path}: the file is empty")
        # As a plain array: indexing a memmap, which each step does, makes a new memmap each time.
        return np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
    except OSError as error:
        raise ModelError(f"{path}: cannot read the model: {error.strerror}") from error


def _require_dequantisable(tensor: TensorInfo) -> None:
    if not _dequantisable(tensor.type):
        raise ModelError(f"tensor {tensor.name!r} has type {tensor.type.name}, which is not supported")
