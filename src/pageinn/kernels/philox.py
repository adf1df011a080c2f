"""Philox4x32-10: a counter-based random generator, so that a draw depends on its name, not on its history.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), and Random123.
"""

from __future__ import annotations

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_ROUNDS = 10


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four 32-bit random words for a counter of four 32-bit words and a key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        first = _MULTIPLIERS[0] * c0
        second = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & _WORD, (first >> 32) ^ c3 ^ k1, first & _WORD
        k0 = (k0 + _WEYL[0]) & _WORD
        k1 = (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


def uniform(seed: int, choice: int, position: int) -> float:
    """A 53-bit uniform number in [0, 1) for the draw of this choice at this position.

    The 64-bit seed is the key, low word first; the counter is (position, choice, 0, 0), each cut to 32 bits.
    """
    words = philox4x32((position & _WORD, choice & _WORD, 0, 0), (seed & _WORD, (seed >> 32) & _WORD))
    return float((words[0] >> 5) * 67108864 + (words[1] >> 6)) / 9007199254740992.0
