"""Typed reading of what a model's files say."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

from pageinn.model.config import ModelError, short

_LARGEST = sys.float_info.max


class Values:
    """Keys and values of a file, read with types. name: what holds them, for messages.

    Raises ModelError, without the file's path, where a key is missing or its value is of a wrong kind.
    """

    def __init__(self, values: Mapping[str, object], name: str) -> None:
        self.values = values
        self.name = name

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer; without a default, one that must be there."""
        value = self.values.get(key, default)
        if value is None:
            raise ModelError(f"{self.name} lacks {key!r}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelError(f"{self.name}'s {key!r} is {short(value)}, not an integer")
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        """An integer of at least 1."""
        value = self.integer(key, default)
        if value < 1:
            raise ModelError(f"{self.name}'s {key!r} is {short(value)}, which must be at least 1")
        return value

    def positive_float(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.values.get(key, default)
        if value is None:
            raise ModelError(f"{self.name} lacks {key!r}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{self.name}'s {key!r} is {short(value)}, not a number")
        # An integer of a JSON file may be beyond every float.
        if not 0 < value <= _LARGEST:
            raise ModelError(f"{self.name}'s {key!r} is {short(value)}, which must be finite and above 0")
        return float(value)

    def text(self, key: str) -> str | None:
        """A string, None where there is none."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise ModelError(f"{self.name}'s {key!r} is {short(value)}, not a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise ModelError(f"{self.name}'s {key!r} is {short(value)}, not true or false")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings, empty where there is none."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ModelError(f"{self.name}'s {key!r} is not a list of strings")
        return [item for item in value if isinstance(item, str)]

    def integers(self, key: str) -> list[int]:
        """A list of integers, empty where there is none."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise ModelError(f"{self.name}'s {key!r} is not a list of integers")
        return [item for item in value if isinstance(item, int)]

    def numbers(self, key: str) -> list[float]:
        """A list of finite numbers, empty where there is none."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(type(item) is float and math.isfinite(item) for item in value):
            raise ModelError(f"{self.name}'s {key!r} is not a list of finite numbers")
        return [item for item in value if isinstance(item, float)]

    def token_id(self, key: str, vocab_size: int) -> int | None:
        """The id of a token inside the vocabulary, None where there is none."""
        if key not in self.values:
            return None
        value = self.integer(key)
        if not 0 <= value < vocab_size:
            raise ModelError(f"{self.name}'s {key!r} is {value}, outside the vocabulary of {vocab_size} tokens")
        return value
