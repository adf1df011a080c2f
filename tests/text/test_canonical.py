"""Field case H4: the same meaning in another order of keys; what has an order keeps it."""

from __future__ import annotations

import json
import random

from hypothesis import given
from hypothesis import strategies as st

from pageinn.text.canonical import canonical

TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Find files.",
        "parameters": {
            "type": "object",
            "properties": {
                "path": {"type": "string", "enum": ["z", "a", "m"]},
                "depth": {"type": "integer", "default": {"b": 1, "a": [3, 1, 2]}},
            },
            "required": ["path", "depth"],
            "additionalProperties": False,
        },
    },
}

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def shuffled(value: object, rng: random.Random) -> object:
    if isinstance(value, dict):
        keys = list(value)
        rng.shuffle(keys)
        return {key: shuffled(value[key], rng) for key in keys}
    return [shuffled(item, rng) for item in value] if isinstance(value, list) else value


def test_a_tool_is_written_as_people_write_it() -> None:
    expected = (
        '{"type": "function", "function": {"name": "find", "description": "Find files.", "parameters": {"type": '
        '"object", "properties": {"depth": {"type": "integer", "default": {"a": [3, 1, 2], "b": 1}}, "path": {"type": '
        '"string", "enum": ["z", "a", "m"]}}, "required": ["path", "depth"], "additionalProperties": false}}}'
    )
    for seed in range(20):
        assert json.dumps(canonical(shuffled(TOOL, random.Random(seed)))) == expected


@given(VALUES, st.integers())
def test_only_the_order_of_keys_changes(value: object, seed: int) -> None:
    made = canonical(value)
    assert json.dumps(made, sort_keys=True) == json.dumps(value, sort_keys=True)
    assert json.dumps(canonical(shuffled(value, random.Random(seed)))) == json.dumps(made)
    assert canonical(made) == made


def test_arrays_in_another_order_stay_different() -> None:
    assert canonical({"enum": ["a", "b"]}) != canonical({"enum": ["b", "a"]})
