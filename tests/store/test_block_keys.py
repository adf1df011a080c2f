"""What distinguishes two blocks on disk."""

from __future__ import annotations

import hashlib
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from pageinn.memory.scopes import Scope
from pageinn.memory.tokens import pack
from pageinn.store.block_keys import KEY_BYTES, block_keys, root_key

BLOCK = 4 * 4


def test_a_key_is_the_digest_of_its_parents_key_and_its_own_tokens() -> None:
    root = root_key("model", Scope("a"))
    first = hashlib.blake2b(root + pack([1, 2, 3, 4]), digest_size=KEY_BYTES).digest()
    second = hashlib.blake2b(first + pack([5, 6, 7, 8]), digest_size=KEY_BYTES).digest()
    assert block_keys(root, pack([1, 2, 3, 4, 5, 6, 7, 8, 9]), BLOCK) == [first, second]


def test_fields_of_a_scope_are_framed() -> None:
    """C5: no two of these may meet on disk, though they read alike when joined."""
    scopes = [
        Scope("org_1", "2345"),
        Scope("org_12345", ""),
        Scope("org_12345"),
        Scope("org_1", "234"),
        Scope("", "org_12345"),
        Scope(""),
        Scope("a", "-"),
        Scope("a-"),
    ]
    for one, other in combinations(scopes, 2):
        assert root_key("model", one) != root_key("model", other)
    assert root_key("model", scopes[0]) != root_key("model2345", Scope("org_1", ""))


@given(st.lists(st.integers(0, 3), max_size=24), st.lists(st.integers(0, 3), max_size=24))
def test_two_prompts_share_exactly_the_keys_of_the_whole_blocks_they_share(one: list[int], other: list[int]) -> None:
    root = root_key("model", Scope("a"))
    keys, others = block_keys(root, pack(one), BLOCK), block_keys(root, pack(other), BLOCK)
    same = 0
    while 4 * (same + 1) <= min(len(one), len(other)) and one[: 4 * (same + 1)] == other[: 4 * (same + 1)]:
        same += 1
    assert keys[:same] == others[:same]
    assert not set(keys[same:]) & set(others[same:])
