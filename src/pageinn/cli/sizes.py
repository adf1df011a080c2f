"""Amounts of memory as people write them."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError

_UNITS = {"": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes: "536870912", "512MiB", "1.5GiB". Raises ArgumentTypeError for anything else and for nothing."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].lower() not in _UNITS:
        raise ArgumentTypeError(f"{text!r} is not a size; write for example 512MiB, 2GiB or a number of bytes")
    size = int(float(match[1]) * _UNITS[match[2].lower()]) if match[2] else _whole(match[1], text)
    if size <= 0:
        raise ArgumentTypeError(f"{text!r} is nothing")
    return size


def parse_gib(text: str) -> int:
    """Bytes of a number of GiB, such as "4" or "0.5"; 0 is allowed. Raises ArgumentTypeError for anything else."""
    if not re.fullmatch(r"\d+(?:\.\d+)?", text, re.ASCII):
        raise ArgumentTypeError(f"{text!r} is not a number of GiB; write for example 4")
    return int(float(text) * 2**30)


def _whole(number: str, text: str) -> int:
    if not number.isdigit():
        raise ArgumentTypeError(f"{text!r} is not a whole number of bytes")
    return int(number)


def show_size(size: int) -> str:
    """Bytes for a person: "512.0 MiB"."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
