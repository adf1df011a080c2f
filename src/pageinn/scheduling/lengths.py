"""How long answers get: what was seen lately, as the probability that an answer goes on.

An answer that its limit cut says only that it would have been longer, so the estimate is Kaplan and Meier's (1958)
for censored observations.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

#: Answers remembered per tenant, and for all tenants together.
WINDOW = 1024
#: With fewer answers of its own than this, a tenant is taken to be like all tenants together.
ENOUGH = 32
#: Tenants remembered; beyond that the one that has been silent longest is forgotten.
MAX_TENANTS = 1024
#: The weight of an imagined answer longer than all that were seen, so that nothing is ever held to be impossible.
_UNSEEN = 0.5


class Length(NamedTuple):
    """An answer's tokens, and whether it ended there by itself or was cut."""

    tokens: int
    cut: bool


#: Believed besides, until those are enough: anything from 16 to 4,096 tokens, each doubling as likely as another.
PRIOR = tuple(Length(1 << power, False) for power in range(4, 13))


class Underway(NamedTuple):
    """An answer that is being written, and its tokens so far."""

    tenant: str
    tokens: int


class Curve:
    """The probability that an answer gets longer than so many tokens."""

    __slots__ = ("_beyond", "_lengths", "_longest")

    def __init__(self, seen: Iterable[Length]) -> None:
        ordered = sorted(seen)
        at_risk = len(ordered) + _UNSEEN
        self._longest: float = ordered[-1].tokens if ordered else float("inf")
        #: Lengths at which an answer ended, and the probability of more than the first so many of them.
        self._lengths: list[int] = []
        self._beyond = [1.0]
        for length, cut in ordered:
            if not cut:
                self._lengths.append(length)
                self._beyond.append(self._beyond[-1] * (1 - 1 / at_risk))
            at_risk -= 1

    def beyond(self, tokens: float) -> float:
        """P(length > tokens). Past the longest length seen it falls as 1 / tokens."""
        beyond = self._beyond[bisect_right(self._lengths, tokens)]
        return beyond if tokens <= self._longest else beyond * self._longest / tokens

    def survival(self, generated: int, further: Sequence[int]) -> list[float]:
        """For each distance: P(an answer that has got this far gets so many tokens further), the last included.

        further: ascending.
        """
        so_far, lengths, beyond = self.beyond(generated), self._lengths, self._beyond
        last = generated - 1
        within = bisect_right(further, self._longest - last)
        chances = [beyond[bisect_right(lengths, last + each)] / so_far for each in further[:within]]
        return chances + [self.beyond(last + each) / so_far for each in further[within:]]


class Lengths:
    """Lengths seen lately per tenant, and in all; bounded however many tenants and answers there are."""

    def __init__(self) -> None:
        self._all = _Window(PRIOR)
        self._tenants: OrderedDict[str, _Window] = OrderedDict()

    def saw(self, tenant: str, tokens: int, cut: bool) -> None:
        """Learn an answer's length; cut: its limit ended it, not the model."""
        length = Length(tokens, cut)
        self._all.add(length)
        window = self._tenants.setdefault(tenant, _Window())
        self._tenants.move_to_end(tenant)
        window.add(length)
        if len(self._tenants) > MAX_TENANTS:
            self._tenants.popitem(last=False)

    def curve(self, tenant: str, underway: Callable[[], Iterable[Underway]]) -> Curve:
        """What a tenant's next answer is expected to be: its own lengths, or all tenants' while those are few.

        underway: the answers now being written, asked for while the window is not full: the first to end are the
        short ones, and an estimate from those alone would take all answers to be short.
        """
        window = self._tenants.get(tenant)
        if window is None or len(window) < ENOUGH:
            return self._all.curve(lambda: (one.tokens for one in underway()))
        return window.curve(lambda: (one.tokens for one in underway() if one.tenant == tenant))


class _Window:
    """The newest lengths and their curve, which is drawn again after every 32nd of a window, at first more often."""

    _REFRESH = WINDOW // 32

    def __init__(self, prior: Iterable[Length] = ()) -> None:
        self._prior = tuple(prior)
        self._seen: deque[Length] = deque(maxlen=WINDOW)
        self._curve: Curve | None = None
        self._fresh = 0

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, length: Length) -> None:
        self._seen.append(length)
        self._fresh += 1
        if self._fresh >= min(self._REFRESH, 1 + len(self._seen) // 8):
            self._curve = None

    def curve(self, underway: Callable[[], Iterable[int]]) -> Curve:
        if self._curve is None:
            seen = list(self._seen)
            if len(seen) < WINDOW:
                seen += [Length(tokens, True) for tokens in underway()]
            if len(self._seen) < ENOUGH:
                seen += self._prior
            self._curve = Curve(seen)
            self._fresh = 0
        return self._curve
