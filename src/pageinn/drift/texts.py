"""The texts that models are led along: one that comes with the package, or the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from pageinn.kernels.backend import I32

#: Shorter than this, nothing is compared.
SHORTEST = 32


class CorpusError(Exception):
    """A text that cannot be used; one line that names it and the way out."""


def built_in() -> str:
    """The first twelve chapters of News from Nowhere (William Morris, 1890, public domain)."""
    return files(__package__).joinpath("data/news_from_nowhere.txt").read_text(encoding="utf-8")


def read_corpus(paths: Sequence[Path]) -> list[str]:
    """The texts of files in UTF-8; the built-in one if none is named. Raises CorpusError."""
    texts = []
    for path in paths:
        try:
            texts.append(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            reason = "is not text in UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
            raise CorpusError(f"--corpus {path}: {reason}; name a plain text file") from error
    return texts or [built_in()]


def windows(texts: Sequence[str], encode: Callable[[str], list[int]], length: int, most: int) -> list[I32]:
    """Token ids of up to `most` windows, the texts cut from their beginnings in runs of `length` tokens.

    What is left at a text's end is a window of its own only if the text has no whole one. Raises CorpusError if no
    text is long enough to compare anything.
    """
    found: list[I32] = []
    for text in texts:
        tokens = np.array(encode(text), np.int32)
        ends = range(length, len(tokens) + 1, length)
        cut = [tokens[end - length : end] for end in ends] or [tokens]
        found += [each for each in cut if len(each) >= SHORTEST]
    if not found:
        raise CorpusError(f"the corpus is shorter than {SHORTEST} tokens; name a longer text with --corpus")
    return found[:most]
