"""Token ids packed in bytes, 32 bits each, little-endian: comparing two runs of tokens is one memcmp."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

TOKEN_BYTES = 4
_TYPECODE = "I" if array("I").itemsize == TOKEN_BYTES else "L"


def pack(tokens: Iterable[int]) -> bytes:
    """Pack token ids. Raises OverflowError for an id outside 0..2**32-1."""
    packed = array(_TYPECODE, tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(packed: bytes | bytearray) -> list[int]:
    """The token ids of packed bytes."""
    tokens = array(_TYPECODE)
    tokens.frombytes(packed)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tolist()


def common_tokens(a: bytes, b: bytes) -> int:
    """How many leading tokens two short packed runs share."""
    if a[:TOKEN_BYTES] != b[:TOKEN_BYTES]:
        return 0
    length = min(len(a), len(b))
    difference = int.from_bytes(a[:length], "little") ^ int.from_bytes(b[:length], "little")
    if difference == 0:
        return length // TOKEN_BYTES
    lowest_bit = (difference & -difference).bit_length() - 1
    return lowest_bit // (8 * TOKEN_BYTES)


def common_blocks(a: bytes, a_offset: int, b: bytes, b_offset: int, block_bytes: int) -> int:
    """How many leading whole blocks a[a_offset:] and b[b_offset:] share; halving compares each byte about once."""
    low, high = 0, min(len(a) - a_offset, len(b) - b_offset) // block_bytes
    while low < high:
        middle = (low + high + 1) // 2
        start, end = low * block_bytes, middle * block_bytes
        if a[a_offset + start : a_offset + end] == b[b_offset + start : b_offset + end]:
            low = middle
        else:
            high = middle - 1
    return low
