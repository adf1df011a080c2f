"""Prompts that nobody has sent before, of equal lengths."""

from __future__ import annotations

from random import Random

_TEXT = (
    "time year work life hand part week case fact home side kind head team area book word game line name city "
    "idea body road form door food wife step room land town view play care mind plan love star fire show need "
    "wind lake moon rain rock snow tree bird fish blue cold dark deep fast good high long near open past "
    "rest ship"
)
#: Four letters each, and one token each in most vocabularies: prompts of as many words are as long to all servers.
WORDS = _TEXT.split()
#: Words of a sample by which the server says how many tokens a word has.
SAMPLE = 64


def prompt(words: int, rng: Random) -> str:
    """So many words, drawn at random: 16 of them are 96 bits, so that no two prompts begin alike for a block."""
    return " ".join(rng.choices(WORDS, k=words))
