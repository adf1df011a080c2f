"""Tool schemas in one order of keys, whatever order a client's JSON library left them in."""

from __future__ import annotations

from typing import Any

#: The order in which people write these, and models have read them; any other key follows, by name.
_CUSTOMARY = ("type", "function", "name", "title", "description", "parameters", "properties", "items", "required")
_RANK = {key: rank for rank, key in enumerate(_CUSTOMARY)}


def canonical(value: Any) -> Any:
    """The same JSON value with every object's keys in one order, at any depth.

    Nothing else is touched: arrays keep their order (`enum`, `required`, the list of tools itself), and numbers and
    text stay as they are. Raises RecursionError for a value nested as deep as Python's stack.
    """
    if isinstance(value, dict):
        return {key: canonical(value[key]) for key in sorted(value, key=_place)}
    if isinstance(value, list):
        return [canonical(item) for item in value]
    return value


def _place(key: str) -> tuple[int, str]:
    return _RANK.get(key, len(_RANK)), key
