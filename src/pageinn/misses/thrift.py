"""How much time may be spent on looking at texts: a small share of one core, saved up for a while."""

from __future__ import annotations

from collections.abc import Callable

#: Of one core, and the most seconds that are saved up.
SHARE = 0.01
MOST_SECONDS = 1.0


class Thrift:
    """A purse that fills with SHARE of the clock's time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._saved = MOST_SECONDS
        self._since = clock()

    def allowance(self) -> float:
        """Seconds of computing that may be spent now."""
        now = self._clock()
        # A clock that was set back saves nothing up.
        self._saved = min(self._saved + SHARE * max(now - self._since, 0.0), MOST_SECONDS)
        self._since = now
        return self._saved

    def spent(self, seconds: float) -> None:
        """Pay."""
        self._saved -= seconds
