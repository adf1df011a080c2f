"""Blocks for a store on disk whose content says which they are."""

from __future__ import annotations

import random

from pageinn.store.disk import Address, Entry

SIZE = 100_000


def address(number: int) -> Address:
    rng = random.Random(number)
    return Address(rng.randbytes(32), rng.randbytes(32), rng.randbytes(64))


def payload(number: int, size: int = SIZE) -> bytes:
    return random.Random(-number - 1).randbytes(size)


def entry(number: int, size: int = SIZE) -> Entry:
    return Entry(address(number), payload(number, size))
