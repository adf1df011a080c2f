"""Can B tell from the time to the first token which of two prompts A has sent?

In each pair there are two prompts that nobody has sent before. A sends one of them, drawn at random, and waits for the
end of the answer, so that nothing of it is still computed when B comes. B sends both, in random order, and guesses that
the faster one was A's. Each prompt is measured once, because B's own measurement caches it. Where B learns nothing, the
guesses are right as often as a coin is, whatever else slows the server: both choices and both orders are as likely.

The audits of Gu et al., "Auditing Prompt Caching in Language Model APIs" (ICML 2025, arXiv:2502.07776) compare the
distributions of two procedures; a choice within a pair needs none, and a machine that gets slower does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from statistics import median
from typing import NamedTuple, TypeVar

from pageinn.audit.client import AuditError, BusyError, Seen, Tenant, TooLongError
from pageinn.audit.words import SAMPLE, prompt

#: Lengths to try when none is given, in tokens, and how many prompts of each say whether it will do.
LENGTHS, TRIES = (128, 256, 512, 1024, 2048), 5
#: A length will do if the first token of a prompt that was sent before comes in less than this part of the time.
CLEAR = 0.5
#: The other arms differ more than a coin's and need fewer pairs: this share of those across tenants, but so many.
_FEWER, _LEAST = 4, 10
#: A busy server is asked so often before it is given up, and left alone for at most so many seconds.
_PATIENCE, _LONGEST = 20, 30.0

_Done = TypeVar("_Done")


class Arm(NamedTuple):
    """Who sends one of two prompts, and who is to find out which."""

    name: str
    send: Callable[[str], object]
    probe: Callable[[str], Seen]


class Trial(NamedTuple):
    """What B saw of the prompt that was sent before, and of the other one."""

    sent: Seen
    other: Seen

    @property
    def right(self) -> bool:
        """Whether the faster one was the one sent before."""
        return self.sent.seconds < self.other.seconds

    @property
    def told(self) -> bool:
        """Whether the server's count of cached tokens gives it away: by half the prompt, not by a shared first word."""
        return self.sent.cached - self.other.cached >= max(1, self.sent.tokens // 2)


def arms(model: str, a: Tenant, b: Tenant, operator: Tenant | None) -> list[Arm]:
    """Across tenants, within one, and for what the operator makes public, if there is one to ask."""

    def asked(by: Tenant) -> Callable[[str], Seen]:
        return lambda text: by.ask(model, text)

    found = [Arm("across", asked(a), asked(b)), Arm("within", asked(a), asked(a))]
    if operator is not None:
        found.append(Arm("public", lambda text: operator.publish(model, text), asked(b)))
    return found


def measure(
    chosen: Sequence[Arm], pairs: int, words: int, rng: Random, step: Callable[[], object]
) -> dict[str, list[Trial]]:
    """So many pairs of the first arm, and fewer of each other one, spread evenly among them.

    step: called after each pair. Raises AuditError.
    """
    for arm in chosen:
        # Connections are made and keys are known to be good before anything counts.
        patiently(partial(_trial, arm, words, rng))
    trials: dict[str, list[Trial]] = {arm.name: [] for arm in chosen}
    others = _others(pairs)
    for index in range(pairs):
        all_of_them = index * others // pairs < (index + 1) * others // pairs
        for arm in chosen if all_of_them else chosen[:1]:
            trials[arm.name].append(patiently(partial(_trial, arm, words, rng)))
            step()
    return trials


def count(chosen: Sequence[Arm], pairs: int) -> int:
    """How many pairs `measure` takes in all."""
    return pairs + (len(chosen) - 1) * _others(pairs)


def _others(pairs: int) -> int:
    return min(pairs, max(_LEAST, pairs // _FEWER))


def _trial(arm: Arm, words: int, rng: Random) -> Trial:
    """One pair of fresh prompts."""
    both = [prompt(words, rng), prompt(words, rng)]
    before = rng.randrange(2)
    arm.send(both[before])
    seen = {}
    for which in rng.sample((0, 1), 2):
        seen[which] = arm.probe(both[which])
    return Trial(seen[before], seen[1 - before])


def words_for(model: str, a: Tenant, tokens: int | None, rng: Random) -> int:
    """How many words a prompt is to have: for a length in tokens, or for the shortest that shows a difference to A.

    Raises AuditError.
    """
    # A server that does not count its tokens is taken to have one for each word.
    rate = max(1.0, patiently(lambda: a.ask(model, prompt(SAMPLE, rng))).tokens / SAMPLE)
    if tokens is not None:
        return max(1, round(tokens / rate))
    words = 0
    for length in LENGTHS:
        try:
            ratio = patiently(partial(_ratio, model, a, round(length / rate), rng))
        except TooLongError:
            if not words:
                raise
            break
        words = round(length / rate)
        if ratio < CLEAR:
            break
    return words


def _ratio(model: str, a: Tenant, words: int, rng: Random) -> float:
    """The time to the first token of prompts sent for the second time, over that of the first."""
    first, second = [], []
    for _ in range(TRIES):
        text = prompt(words, rng)
        first.append(a.ask(model, text).seconds)
        second.append(a.ask(model, text).seconds)
    return median(second) / median(first)


def patiently(act: Callable[[], _Done]) -> _Done:
    """What `act` returns, done again from its beginning while the server is busy. Raises AuditError."""
    for _ in range(_PATIENCE):
        try:
            return act()
        except BusyError as busy:
            time.sleep(min(busy.seconds, _LONGEST))
    raise AuditError(f"the server was too busy {_PATIENCE} times in a row; audit it when it is calmer")
