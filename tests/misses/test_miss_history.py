"""The records' memory is bounded, and what begins most like a prompt is found as by comparing all."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pageinn.memory.scopes import DEFAULT, PUBLIC, Scope
from pageinn.memory.tokens import pack
from pageinn.misses.history import History
from pageinn.misses.record import Asked, Record

SCOPES = (DEFAULT, Scope("alice"), Scope("alice", "salt"), PUBLIC)
MOST_RECORDS, MOST_BYTES = 6, 160

tokens = st.lists(st.integers(0, 2), max_size=12)
requests = st.lists(st.tuples(st.sampled_from(SCOPES), tokens, tokens, st.booleans()), max_size=30)


def common(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@settings(deadline=None)
@given(requests)
def test_memory_is_bounded_whatever_comes(asked) -> None:
    history = History(MOST_RECORDS, MOST_BYTES)
    for number, (scope, prompt, answer, stores) in enumerate(asked):
        record = Record(number, Asked("", scope, pack(prompt), "", stores), 0.0, 0)
        history.add(record)
        history.extend(record, pack(answer))
        held = sum(len(each.packed) for each in history)
        assert held == history.nbytes <= MOST_BYTES
        assert len(history) <= MOST_RECORDS
        # What is looked up is what is held, no more.
        entered = [len(known) for known in history._scopes.values()]
        assert sum(entered) == len(history._everywhere)
        assert all(entered)
        assert sum(entered) == sum(1 for each in history if each.stores and each.packed)


@settings(deadline=None)
@given(requests, st.sampled_from(SCOPES), tokens)
def test_the_nearest_is_that_of_brute_force(asked, scope, wanted) -> None:
    history = History()
    known: list[tuple[Scope, list[int], int]] = []
    for number, (owner, prompt, answer, stores) in enumerate(asked):
        record = Record(number, Asked("", owner, pack(prompt), "", stores), 0.0, 0)
        history.add(record)
        history.extend(record, pack(answer))
        if stores and prompt:
            known.append((owner, prompt + answer, number))
    readable = [(common(text, wanted), number) for owner, text, number in known if owner in (scope, PUBLIC)]
    near = history.nearest(scope, pack(wanted))
    if not readable:
        assert near is None
    else:
        assert near is not None
        assert near.shared == max(shared for shared, _ in readable)
        assert (near.shared, near.number) in readable
    elsewhere = history.elsewhere(pack(wanted))
    assert (elsewhere.shared if elsewhere else 0) == max((common(text, wanted) for _, text, _ in known), default=0)


def test_the_oldest_lose_their_tokens_first() -> None:
    history = History(4, 4 * 10)
    records = [Record(n, Asked("", DEFAULT, pack([n] * 4), "", True), 0.0, 0) for n in range(6)]
    for record in records:
        history.add(record)
    assert [len(record.packed) // 4 for record in records] == [0, 0, 0, 0, 4, 4]
    assert [record.number for record in history] == [2, 3, 4, 5]
    assert history.find(1) is None
