"""Packed weights kept between starts: one file for each model, format of weights and build.

A file is a safetensors file of raw bytes, one tensor for each packed matrix, its CRC-32 in the metadata. It is written
beside its name and moved there, so that a name only ever stands for a whole file.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from pageinn.kernels.backend import PackedLinear, SavesPacked

log = logging.getLogger("pageinn")

#: Files kept in a folder; of more, those used longest ago go.
MOST_FILES = 4
_SUFFIX = ".packed"
_LENGTH_BYTES = 8
#: The data begin at a multiple of it.
_ALIGNMENT = 64
#: What a writer has not finished after so many seconds, it will not finish.
_STALE_SECONDS = 3600


class Shape(NamedTuple):
    """What a packed matrix is of."""

    outputs: int
    inputs: int
    weight_format: str


class _Part(NamedTuple):
    """Where a packed matrix lies, in bytes after the header."""

    begin: int
    end: int
    crc32: int


class PackedFile:
    """The packed weights of one model in a folder. key: hexadecimal; whatever their bytes depend on is part of it."""

    def __init__(self, folder: Path, key: str, backend: SavesPacked) -> None:
        self.path = folder / f"{key}{_SUFFIX}"
        self._backend = backend

    def read(self, shapes: Mapping[str, Shape]) -> dict[str, PackedLinear]:
        """The packed matrices of these names and shapes, all of them or none.

        A file that is damaged is removed, and the log says so.
        """
        try:
            parts, data = _table(np.asarray(np.memmap(self.path, np.uint8, "r")))
            found = {name: _restored(parts[name], data, shape, self._backend) for name, shape in shapes.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            log.warning("%s: packed weights cannot be used (%r); packing them anew", self.path, error)
            with suppress(OSError):
                self.path.unlink()
            return {}
        with suppress(OSError):
            os.utime(self.path)
        return found

    def write(self, layers: Mapping[str, PackedLinear]) -> None:
        """Keep packed matrices for the next start. What cannot be written is told to the log, and nothing else."""
        # Processes in containers that share the folder may have the same number.
        partial = self.path.with_suffix(f".{uuid4().hex}.partial")
        try:
            # The model's own file may be for its owner only.
            self.path.parent.mkdir(0o700, parents=True, exist_ok=True)
            needed = sum(linear.nbytes for linear in layers.values())
            if needed > shutil.disk_usage(self.path.parent).free // 2:
                log.warning("%s: more than half of the free space would go; weights stay unkept", self.path.parent)
                return
            try:
                _write(partial, layers, self._backend)
                os.replace(partial, self.path)
            finally:
                partial.unlink(missing_ok=True)
            _prune(self.path.parent)
        except OSError as error:
            log.warning("packed weights cannot be kept for the next start: %s", error)


def _table(file: NDArray[np.uint8]) -> tuple[dict[str, _Part], NDArray[np.uint8]]:
    """Where the matrices lie, and the bytes that they lie in. Raises what a damaged table makes json and dict raise."""
    start = _LENGTH_BYTES + int.from_bytes(file[:_LENGTH_BYTES].tobytes(), "little")
    table = json.loads(file[_LENGTH_BYTES:start].tobytes())
    sums = table.pop("__metadata__")
    parts = {}
    for name, row in table.items():
        begin, end = row["data_offsets"]
        parts[name] = _Part(begin, end, int(sums[name]))
    return parts, file[start:]


def _restored(part: _Part, data: NDArray[np.uint8], shape: Shape, backend: SavesPacked) -> PackedLinear:
    packed = data[part.begin : part.end]
    if zlib.crc32(packed.data) != part.crc32:
        raise ValueError("a checksum is wrong")
    return backend.restore_linear(packed, *shape)


def _write(path: Path, layers: Mapping[str, PackedLinear], backend: SavesPacked) -> None:
    with path.open("wb") as file:
        # The sums are known once the data are written; until then zeros of the same width hold their places.
        file.write(_header(layers, dict.fromkeys(layers, 0)))
        sums = {}
        for name, linear in layers.items():
            packed = backend.save_linear(linear)
            sums[name] = zlib.crc32(packed.data)
            file.write(packed.data)
        file.seek(0)
        file.write(_header(layers, sums))


def _header(layers: Mapping[str, PackedLinear], sums: Mapping[str, int]) -> bytes:
    """Length and table, as long whatever the sums are."""
    table: dict[str, object] = {"__metadata__": {name: f"{sums[name]:010}" for name in layers}}
    end = 0
    for name, linear in layers.items():
        begin, end = end, end + linear.nbytes
        table[name] = {"dtype": "U8", "shape": [linear.nbytes], "data_offsets": [begin, end]}
    text = json.dumps(table).encode()
    text += b" " * (-(_LENGTH_BYTES + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _prune(folder: Path) -> None:
    """Drop what was used longest ago beyond the most files, and what writers that died left behind."""
    files = sorted(folder.glob(f"*{_SUFFIX}"), key=_used, reverse=True)
    stale = [file for file in folder.glob("*.partial") if time.time() - _used(file) > _STALE_SECONDS]
    for file in [*files[MOST_FILES:], *stale]:
        file.unlink(missing_ok=True)


def _used(file: Path) -> float:
    """When a file was used last; now, if another process has just moved or dropped it."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return time.time()
