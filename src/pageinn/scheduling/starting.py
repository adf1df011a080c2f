"""Giving a waiting choice its memory: by forking from its sibling, or on top of what the tree has of its tokens."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from pageinn.memory.manager import MemoryManager
from pageinn.memory.matching import Match
from pageinn.memory.questions import Lack
from pageinn.memory.sequence import Sequence
from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.scheduling.admission import Admission
from pageinn.scheduling.choice import Choice


class Follow(NamedTuple):
    """A running sequence computes what the choice needs next: wait until it has stored so many tokens."""

    leader: Sequence
    until: int


class Wait(Enum):
    """What the choice waits for: TURN, for memory or a lighter step; SHARE, for its own tenant to use less."""

    TURN = auto()
    SHARE = auto()


def start(memory: MemoryManager, admission: Admission, choice: Choice, most: int | None) -> Sequence | Follow | Wait:
    """The choice's sequence, or whom it follows, or what it waits for. most: the tokens that it may have to compute."""
    parent = _parent(choice)
    if parent and memory.can_fork(parent):
        return _fork(memory, admission, choice, parent)
    scope, known = choice.request.scope, choice.known
    if not choice.reads_cache:
        return _admit(memory, admission, choice, memory.unmatched(), most)
    match = memory.match(scope, known)
    leader = memory.leader(match, scope, known)
    if leader is not None:
        return Follow(leader, memory.shared_with(leader, known))
    if memory.in_flight(match, scope, known):
        return Wait.TURN
    return _admit(memory, admission, choice, match, most)


def _admit(
    memory: MemoryManager, admission: Admission, choice: Choice, match: Match, most: int | None
) -> Sequence | Wait:
    scope, tokens = choice.request.scope, len(choice.known) // TOKEN_BYTES
    if most is not None and tokens - memory.matched_tokens(match) > most:
        return Wait.TURN
    exclusive = memory.exclusive_if(scope, match, tokens, admission.reserve(choice, tokens))
    if isinstance(exclusive, Lack):
        return Wait.SHARE if exclusive is Lack.MAXIMUM else Wait.TURN
    if not admission.likely_fits(choice, tokens, exclusive):
        return Wait.TURN
    unshared = not choice.request.store
    return memory.admit(scope, choice.known, match, resumed=choice.started, unshared=unshared)


def _fork(memory: MemoryManager, admission: Admission, choice: Choice, parent: Sequence) -> Sequence | Wait:
    copied = int(parent.stored % memory.block_size > 0)
    if memory.available < copied + admission.reserve(choice, parent.stored):
        return Wait.TURN
    return memory.fork(parent) if admission.likely_fits(choice, parent.stored, copied) else Wait.TURN


def _parent(choice: Choice) -> Sequence | None:
    """The sequence of the choice's first sibling, if it has stored the whole prompt and nothing more."""
    sibling = choice.forks
    if sibling is None or sibling.sequence is None:
        return None
    return sibling.sequence if sibling.sequence.stored == choice.prompt_tokens else None
