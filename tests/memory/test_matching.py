"""Partial matches, scopes, public prefixes and leaders."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from test_blocks import generate, reach, start, store

from pageinn.memory.manager import MemoryManager
from pageinn.memory.moves import Move, MoveKind
from pageinn.memory.node import ChildKey
from pageinn.memory.questions import PrefixCache
from pageinn.memory.scopes import DEFAULT, PUBLIC, Scope
from pageinn.memory.sequence import LeaderKey
from pageinn.memory.tokens import common_blocks, common_tokens, pack, unpack

A, B = Scope("a"), Scope("b")
IDS = st.integers(0, 2**32 - 1)


@given(st.lists(IDS))
def test_packing_is_little_endian_and_reversible(ids: list[int]) -> None:
    packed = pack(ids)
    assert packed == b"".join(token.to_bytes(4, "little") for token in ids)
    assert unpack(packed) == ids


@pytest.mark.parametrize("token", [-1, 2**32])
def test_ids_that_do_not_fit_are_refused(token: int) -> None:
    with pytest.raises(OverflowError):
        pack([token])


@given(st.lists(st.sampled_from([0, 1, 256, 2**31]), max_size=12), st.lists(st.sampled_from([0, 1, 256]), max_size=12))
def test_common_runs(a: list[int], b: list[int]) -> None:
    expected = 0
    while expected < min(len(a), len(b)) and a[expected] == b[expected]:
        expected += 1
    assert common_tokens(pack(a), pack(b)) == expected
    assert common_blocks(pack([7, *a]), 4, pack(b), 0, 12) == expected // 3


@given(st.data())
def test_the_best_partial_match_is_a_neighbour(data: st.DataObject) -> None:
    """Whatever the siblings, the sorted neighbour shares as many tokens as the best by linear scan."""
    siblings = data.draw(st.lists(st.lists(st.sampled_from([1, 2, 256, 70000]), min_size=1, max_size=4), min_size=1))
    wanted = data.draw(st.lists(st.sampled_from([1, 2, 256, 70000]), min_size=1, max_size=4))
    manager = MemoryManager(1000, 4)
    for tokens in siblings:
        store(manager, tokens)
    assert reach(manager, wanted) == max(common_tokens(pack(tokens), pack(wanted)) for tokens in siblings)


def test_a_prompt_that_is_cached_whole_matches_whole() -> None:
    """Field case B4, the memory's part: all of it is in the store, and it can go on from there."""
    manager = MemoryManager(10, 4)
    for prompt in ([1] * 8, [2] * 9):
        store(manager, prompt)
        sequence = manager.admit(DEFAULT, pack(prompt))
        assert sequence.stored == len(prompt)
        generate(manager, sequence, [3, 3])
        manager.release(sequence)
        manager.check()


def test_a_second_turn_hits_the_first_turns_answer() -> None:
    """Generated tokens are kept like the prompt's, to the token."""
    manager = MemoryManager(20, 4)
    sequence = start(manager, [1, 2, 3, 4, 5, 6])
    generate(manager, sequence, [7, 8, 9, 10, 11])
    manager.release(sequence)
    assert reach(manager, [*range(1, 12), 20, 21, 22]) == 11


def test_tokens_are_compared_whatever_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case C1: all keys hash alike; each of many near-equal prompts still finds its own blocks only."""
    for key in (ChildKey, LeaderKey, Scope):
        monkeypatch.setattr(key, "__hash__", lambda self: 0)
    manager = MemoryManager(400, 2)
    prompts = [[a, b, c] for a in range(4) for b in range(4) for c in range(4)]
    tables = {}
    for prompt in prompts:
        sequence = start(manager, [*prompt, 9], A)
        tables[tuple(prompt)] = sequence.table
        manager.release(sequence)
    for prompt in prompts:
        sequence = manager.admit(A, pack([*prompt, 9]))
        assert sequence.stored == 4
        assert sequence.table == tables[tuple(prompt)]
        manager.release(sequence)
        assert reach(manager, [*prompt, 9], B) == 0
        assert reach(manager, [9, *prompt], A) == 0


def test_another_tenants_prompt_is_a_miss_and_ones_own_a_hit() -> None:
    """Field case C2: 0 tokens for B, and more than 0 for A, whole blocks and partial ones alike."""
    manager = MemoryManager(20, 4)
    store(manager, [1, 2, 3, 4, 5, 6], A)
    assert [reach(manager, [1, 2, 3, 4, 5, 6], scope) for scope in (A, B)] == [6, 0]
    store(manager, [1, 2, 3, 4, 5, 6], B)
    assert manager.usage_of(A) == manager.usage_of(B) == (0, 2, 0)
    table = manager.admit(A, pack([1, 2, 3, 4])).table
    assert table != manager.admit(B, pack([1, 2, 3, 4])).table


def test_a_salt_is_a_scope_of_its_own_inside_the_tenant() -> None:
    """Field case C3, the memory's part: another tenant's equal salt opens nothing."""
    manager = MemoryManager(20, 4)
    store(manager, [1, 2, 3, 4], Scope("a", "salt"))
    hits = [
        reach(manager, [1, 2, 3, 4], scope) for scope in (Scope("a", "salt"), A, Scope("b", "salt"), Scope("a", ""))
    ]
    assert hits == [4, 0, 0, 0]


def test_scopes_are_framed_not_joined() -> None:
    """Field case C4: ("org_1", "2345") and ("org_12345", "") are different tenants, and no salt is not an empty one."""
    manager = MemoryManager(20, 4)
    store(manager, [1, 2, 3, 4], Scope("org_1", "2345"))
    assert reach(manager, [1, 2, 3, 4], Scope("org_1", "2345")) == 4
    for other in (Scope("org_12345", ""), Scope("org_12345", None), Scope("org_", "12345"), Scope("org_1", None)):
        assert reach(manager, [1, 2, 3, 4], other) == 0


def test_a_public_prefix_is_read_by_all_and_continued_in_private() -> None:
    """The private continuation hangs below it, for its own scope alone; public blocks have their own account."""
    manager = MemoryManager(20, 4)
    store(manager, [1, 2, 3, 4, 5, 6, 7, 8], PUBLIC)
    assert [reach(manager, [1, 2, 3, 4, 5, 6], scope) for scope in (A, B, Scope("a", "salt"), PUBLIC)] == [6] * 4
    sequence = start(manager, [1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9], A)
    assert sequence.node.parent is not None
    assert sequence.node.parent.account.scope == PUBLIC
    assert manager.usage_of(PUBLIC) == (0, 0, 2)
    assert manager.usage_of(A) == (0, 0, 1)
    manager.release(sequence)
    assert manager.usage_of(PUBLIC) == (0, 2, 0)
    whole = [1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9]
    assert [reach(manager, whole, scope) for scope in (A, B, PUBLIC)] == [12, 8, 8]


def test_a_partial_copy_comes_from_public_but_never_from_another_private_scope() -> None:
    """Below one public prefix, B's longer partial match is invisible to A; the public shorter one is taken."""
    manager = MemoryManager(20, 4)
    store(manager, [1, 2, 3, 4], PUBLIC)
    store(manager, [1, 2, 3, 4, 5, 6, 7], B)
    assert reach(manager, [1, 2, 3, 4, 5, 6, 7], A) == 4
    store(manager, [1, 2, 3, 4, 5, 9], PUBLIC)
    [donor] = [n.blocks[0] for n in manager.tree.nodes() if n.account.scope == PUBLIC and len(n.tokens) == 8]
    manager.drain_moves()
    sequence = manager.admit(A, pack([1, 2, 3, 4, 5, 6, 7]))
    assert sequence.stored == 5
    assert manager.drain_moves() == [Move(MoveKind.COPY, donor, sequence.table[1])]
    assert reach(manager, [1, 2, 3, 4, 5, 6, 7], B) == 7


def test_what_became_public_later_does_not_hide_what_is_ones_own() -> None:
    """A's own longer path and a public shorter one with the same head: the longer one is found, and so is public's."""
    manager = MemoryManager(20, 4)
    store(manager, [1] * 4 + [2] * 4 + [3] * 4, A)
    store(manager, [1] * 4 + [2] * 4, PUBLIC)
    store(manager, [1] * 4 + [2] * 4 + [4] * 4, PUBLIC)
    assert reach(manager, [1] * 4 + [2] * 4 + [3] * 4, A) == 12
    assert reach(manager, [1] * 4 + [2] * 4 + [4] * 4, A) == 12
    assert reach(manager, [1] * 4 + [2] * 4 + [3] * 4, B) == 8


def test_salts_leave_no_accounts_behind() -> None:
    """A caller may send a new salt with each request; a scope that owns nothing any more is forgotten."""
    manager = MemoryManager(4, 4)
    for number in range(100):
        store(manager, [number] * 4, Scope("a", str(number)))
    assert len(manager.ledger.all()) == 1 + 4
    manager.reset()
    assert [account.scope for account in manager.ledger.all()] == [PUBLIC]


def test_a_leader_is_found_by_the_block_that_it_computes_next() -> None:
    """Only in its own scope, only while it runs, and only for the same tokens."""
    manager = MemoryManager(40, 4)
    prompt = list(range(1, 17))
    leader = manager.admit(A, pack(prompt))

    def found(tokens: list[int], scope: Scope = A) -> bool:
        packed = pack(tokens)
        return manager.leader(manager.match(scope, packed), scope, packed) is leader

    assert found(prompt)
    assert found(prompt[:4] + [9] * 4), "the next block is the same"
    assert not found([*prompt[:3], 9]), "it is not"
    assert not found(prompt[:3]), "less than a block is never waited for"
    assert not found(prompt, B)
    assert manager.shared_with(leader, pack(prompt[:9] + [50] * 9)) == 8
    manager.mark_stored(leader, 6)
    assert found(prompt)
    assert not found(prompt[:4] + [9] * 4), "it has the common part already"
    manager.release(leader)
    assert not found(prompt)


def test_off_has_no_leaders() -> None:
    manager = MemoryManager(40, 4, PrefixCache.OFF)
    packed = pack([1] * 8)
    manager.admit(A, packed)
    assert manager.leader(manager.match(A, packed), A, packed) is None
