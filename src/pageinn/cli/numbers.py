"""Numbers and lists on the command line; what does not fit is refused in one line that names it."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import TypeVar

_Value = TypeVar("_Value")


def positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def above_zero(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def share(text: str) -> float:
    """A number above 0, at most 1."""
    value = above_zero(text)
    if value > 1:
        raise ArgumentTypeError(f"{text!r} is not a share from 0 to 1")
    return value


def several(one: Callable[[str], _Value]) -> Callable[[str], list[_Value]]:
    """Values separated by commas, each taken once."""

    def parse(text: str) -> list[_Value]:
        return list(dict.fromkeys(one(part.strip()) for part in text.split(",")))

    return parse


def one_of(*names: str) -> Callable[[str], str]:
    """One of these names."""

    def parse(text: str) -> str:
        if text not in names:
            raise ArgumentTypeError(f"{text!r} is not one of {', '.join(names)}")
        return text

    return parse
