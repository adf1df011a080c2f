"""One safetensors file, mapped (https://github.com/huggingface/safetensors)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from pageinn.kernels import bfloat16
from pageinn.kernels.backend import F32
from pageinn.model.config import ModelError

#: numpy's side of the dtypes that are read; bfloat16 is widened from raw integers.
DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_LENGTH_BYTES = 8


class SafeTensor(NamedTuple):
    """One tensor: its own name, its dtype as the file spells it, its shape, and its bytes as a view of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    raw: NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return int(self.raw.nbytes)

    def stored(self) -> NDArray[Any]:
        """The values as they lie in the file, in their shape; a view. bfloat16 is raw uint16."""
        return self.raw.view(DTYPES[self.dtype]).reshape(self.shape)


def as_float32(stored: NDArray[Any], dtype: str) -> F32:
    """Stored values as float32: exact for every dtype in DTYPES."""
    return bfloat16.to_float32(stored) if dtype == "BF16" else np.array(stored, np.float32)


def read_safetensors(path: Path) -> dict[str, SafeTensor]:
    """Map a file and read its table.

    The safetensors package checks the file (lengths, overlaps, gaps); what it hands out lacks bfloat16, so the
    bytes are taken from the map. Raises ModelError, without the folder's name, for a file that is missing,
    truncated or corrupt, or has a dtype not in DTYPES.
    """
    try:
        with safe_open(path, framework="np"):
            pass
        raw = np.memmap(path, dtype=np.uint8, mode="r")
    except FileNotFoundError as error:
        raise ModelError(f"{path.name} is missing") from error
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"{path.name} is truncated or corrupt: {' '.join(str(error).split())}") from error
    start = _LENGTH_BYTES + int.from_bytes(raw[:_LENGTH_BYTES].tobytes(), "little")
    table = json.loads(raw[_LENGTH_BYTES:start].tobytes())
    return {name: _tensor(path, name, row, raw[start:]) for name, row in table.items() if name != "__metadata__"}


def _tensor(path: Path, name: str, row: dict[str, Any], data: NDArray[np.uint8]) -> SafeTensor:
    dtype, shape, (begin, end) = row["dtype"], tuple(row["shape"]), row["data_offsets"]
    if dtype not in DTYPES:
        raise ModelError(f"tensor {name!r} has dtype {dtype}, which is not supported ({', '.join(DTYPES)} are)")
    # Said by the package's check too; here it keeps a view from ever being of another size than its shape.
    if end - begin != math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize or end > len(data):
        raise ModelError(f"{path.name} is truncated or corrupt: tensor {name!r} does not fit its place")
    return SafeTensor(name, dtype, shape, data[begin:end])
