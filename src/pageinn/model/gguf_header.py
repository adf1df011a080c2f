"""Read the header of a GGUF: metadata and the table of tensors.

The format is https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. The
gguf package's own reader makes several numpy views per array element (two seconds for a vocabulary of 49,152
tokens and its merges, against some fifty milliseconds here) and trusts the lengths it reads; here every
length is checked against what is left of the file before anything is allocated.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from pageinn.model.config import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4

#: Value types by their number in the file, as struct formats.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
#: No vocabulary comes near; a corrupt count must not make a list as long as the file.
MAX_ITEMS = 2**24

T = TypeVar("T")

Scalar = str | int | float | bool
Value = Scalar | list[str] | list[int] | list[float] | list[bool]


class TensorInfo(NamedTuple):
    """One tensor of the file. shape is in numpy's order, slowest first; offset and nbytes are in the file."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    nbytes: int


class Header(NamedTuple):
    """Metadata by key, tensors by name, and the bytes of the header including its padding."""

    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]
    nbytes: int


class _Cursor:
    """A place in the file that moves forward and never past the end."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def require(self, nbytes: int) -> None:
        if nbytes > len(self.data) - self.at:
            raise ModelError(f"truncated or corrupt header: {nbytes} bytes wanted at byte {self.at}")

    def scalar(self, code: str) -> int | float | bool:
        size = struct.calcsize("<" + code)
        self.require(size)
        value: int | float | bool = struct.unpack_from("<" + code, self.data, self.at)[0]
        self.at += size
        return value

    def integer(self, code: str) -> int:
        return int(self.scalar(code))

    def text(self) -> str:
        length = self.integer("Q")
        self.require(length)
        raw = bytes(self.data[self.at : self.at + length])
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise ModelError(f"corrupt header: the string at byte {self.at} is not UTF-8") from error
        self.at += length
        return text

    def scalars(self, code: str, count: int) -> list[int] | list[float] | list[bool]:
        size = struct.calcsize("<" + code) * count
        self.require(size)
        values = struct.unpack_from(f"<{count}{code}", self.data, self.at)
        self.at += size
        return list(values)

    def value(self, kind: int) -> Value:
        if kind in SCALARS:
            return self.scalar(SCALARS[kind])
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            raise ModelError(f"corrupt header: unknown value type {kind} at byte {self.at}")
        item, count = self.integer("I"), self.integer("Q")
        if count > MAX_ITEMS:
            raise ModelError(f"corrupt header: an array of {count} items at byte {self.at}")
        if item in SCALARS:
            return self.scalars(SCALARS[item], count)
        if item == STRING:
            # A string takes eight bytes at least, so a lying count is caught before the loop.
            self.require(8 * count)
            return [self.text() for _ in range(count)]
        raise ModelError(f"array of value type {item} at byte {self.at}: only scalars and strings are supported")


def read_header(data: memoryview) -> Header:
    """Parse the header of a whole file's bytes.

    Raises ModelError, without the file's name, if the bytes are not a GGUF, or are truncated or corrupt:
    every tensor of the table lies inside the file and overlaps no other.
    """
    if len(data) == 0:
        raise ModelError("the file is empty")
    if bytes(data[:4]) != MAGIC:
        raise ModelError("not a GGUF (the first four bytes are not 'GGUF')")
    cursor = _Cursor(data)
    cursor.at = len(MAGIC)
    version = cursor.integer("I")
    if version not in VERSIONS:
        raise ModelError(f"GGUF version {version} is not supported (2 and 3, little-endian, are)")
    tensor_count, key_count = cursor.integer("Q"), cursor.integer("Q")
    metadata = _read_metadata(cursor, key_count)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 0 < alignment <= 2**20 or alignment & (alignment - 1):
        raise ModelError(f"corrupt header: general.alignment {alignment!r} is not a power of two")
    rows = _unique(cursor, tensor_count, _read_tensor_row, "tensor")
    start = -(-cursor.at // alignment) * alignment
    tensors = {
        name: _place_tensor(name, *row, start=start, alignment=alignment, file_size=len(data))
        for name, row in rows.items()
    }
    _require_disjoint(list(tensors.values()))
    return Header(metadata, tensors, start)


def _unique(cursor: _Cursor, count: int, read: Callable[[_Cursor], T], what: str) -> dict[str, T]:
    found: dict[str, T] = {}
    for _ in range(count):
        name = cursor.text()
        if name in found:
            raise ModelError(f"corrupt header: {what} {name!r} occurs twice")
        found[name] = read(cursor)
    return found


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Value]:
    return _unique(cursor, count, lambda at: at.value(at.integer("I")), "key")


def _read_tensor_row(cursor: _Cursor) -> tuple[tuple[int, ...], int, int]:
    dimensions = cursor.integer("I")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise ModelError(f"corrupt header: a tensor of {dimensions} dimensions at byte {cursor.at}")
    shape = tuple(cursor.integer("Q") for _ in range(dimensions))
    return shape[::-1], cursor.integer("I"), cursor.integer("Q")


def _place_tensor(
    name: str, shape: tuple[int, ...], kind: int, offset: int, *, start: int, alignment: int, file_size: int
) -> TensorInfo:
    try:
        quantisation = GGMLQuantizationType(kind)
    except ValueError as error:
        raise ModelError(f"tensor {name!r} has the unknown type {kind}") from error
    block, block_bytes = GGML_QUANT_SIZES[quantisation]
    if min(shape) < 1 or shape[-1] % block:
        raise ModelError(f"corrupt header: tensor {name!r} of type {quantisation.name} cannot have shape {shape}")
    nbytes = math.prod(shape) // block * block_bytes
    if offset % alignment:
        raise ModelError(f"corrupt header: tensor {name!r} starts at {offset}, not a multiple of {alignment}")
    if start + offset + nbytes > file_size:
        raise ModelError(f"truncated or corrupt: tensor {name!r} ends at byte {start + offset + nbytes} of {file_size}")
    return TensorInfo(name, shape, quantisation, start + offset, nbytes)


def _require_disjoint(tensors: list[TensorInfo]) -> None:
    ordered = sorted(tensors, key=lambda tensor: tensor.offset)
    for left, right in itertools.pairwise(ordered):
        if left.offset + left.nbytes > right.offset:
            raise ModelError(f"corrupt header: tensors {left.name!r} and {right.name!r} overlap")
