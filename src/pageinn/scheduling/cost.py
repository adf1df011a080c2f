"""What it costs, in seconds, to compute tokens again or to copy blocks out and back."""

from __future__ import annotations

from typing import NamedTuple

#: How much of what was measured before stays when something new is measured.
_KEEP = 0.98
#: A step with fewer tokens than this says little of prefill: reading the weights takes most of it.
_FEWEST_TOKENS = 32
#: A straight line needs steps with different contexts; until their spread is this, only the mean is believed.
_SPREAD = 0.05


class Measured(NamedTuple):
    """What a step took. An event, sent by whoever has a clock.

    tokens: computed in `seconds`. pairs: (query, key) pairs of their attention. blocks_out and blocks_in: copied to the
    host and back, in out_seconds and in_seconds. Zeros where nothing of the kind was done.
    """

    tokens: int = 0
    pairs: int = 0
    seconds: float = 0.0
    blocks_out: int = 0
    out_seconds: float = 0.0
    blocks_in: int = 0
    in_seconds: float = 0.0


class Rates:
    """Rates as measured, with values of a small model on a CPU until there is something.

    Prefill is a line: seconds = per_token * tokens + per_pair * pairs, fitted by least squares in which what was
    measured long ago counts ever less.
    """

    def __init__(
        self, per_token: float = 2e-3, per_pair: float = 2e-7, out_block: float = 2e-4, in_block: float = 2e-4
    ) -> None:
        self.per_token = per_token
        self.per_pair = per_pair
        self.out_block = out_block
        self.in_block = in_block
        # Sums over steps: tokens², tokens·pairs, pairs², tokens·seconds, pairs·seconds.
        self._sums = [0.0] * 5

    def learn(self, measured: Measured) -> None:
        """Take in a measurement."""
        if measured.tokens >= _FEWEST_TOKENS and measured.seconds > 0:
            self._learn_prefill(float(measured.tokens), float(measured.pairs), measured.seconds)
        if measured.blocks_out:
            self.out_block = _mix(self.out_block, measured.out_seconds / measured.blocks_out)
        if measured.blocks_in:
            self.in_block = _mix(self.in_block, measured.in_seconds / measured.blocks_in)

    def recompute(self, start: int, end: int) -> float:
        """Seconds to compute the tokens from start to end again, each attending to all before it."""
        pairs = (end - start) * (start + end + 1) // 2
        return self.per_token * (end - start) + self.per_pair * pairs

    def swap(self, blocks: int) -> float:
        """Seconds to copy so many blocks out and back."""
        return blocks * (self.out_block + self.in_block)

    def _learn_prefill(self, tokens: float, pairs: float, seconds: float) -> None:
        new = (tokens * tokens, tokens * pairs, pairs * pairs, tokens * seconds, pairs * seconds)
        self._sums = [_KEEP * old + one for old, one in zip(self._sums, new, strict=True)]
        tt, tp, pp, ts, ps = self._sums
        determinant = tt * pp - tp * tp
        if determinant > _SPREAD * tt * pp:
            per_token, per_pair = (ts * pp - ps * tp) / determinant, (ps * tt - ts * tp) / determinant
            if per_token > 0 and per_pair >= 0:
                self.per_token, self.per_pair = per_token, per_pair
                return
        # One unknown: keep the ratio of the two, and scale them to what the steps took.
        expected = self.per_token * tt + self.per_pair * tp
        self.per_token, self.per_pair = self.per_token * ts / expected, self.per_pair * ts / expected


def _mix(before: float, measured: float) -> float:
    return 0.8 * before + 0.2 * measured
