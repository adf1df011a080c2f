"""Whether a divergence grows along a text: a curve, its uncertainty, and a verdict.

The mean of KL at position p is modelled as a * p**b, fitted as a Poisson pseudo-likelihood: it models the mean itself,
whatever the distribution around it (KL's has a long tail, and zeros, whose logarithm has no mean to speak of).
Gourieroux, Monfort, Trognon 1984, Econometrica 52(3); Santos Silva, Tenreyro 2006, doi:10.1162/rest.88.4.641.
Neighbouring tokens are alike, so that the variance is that of sums over runs of tokens (cluster-robust: Liang, Zeger
1986, doi:10.1093/biomet/73.1.13), and the interval Student's, with as many degrees of freedom as runs less two.
"""

from __future__ import annotations

import math
from enum import Enum
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pageinn.drift.distance import F64
from pageinn.drift.forced import Trace

#: The first tokens are apart: with next to nothing to attend to, predictions are erratic.
FIRST_POSITION = 16
#: Runs of tokens that count as one observation.
RUN = 128
#: Fewer positions than this cannot show a drift that sets in late.
LEAST_POSITIONS = 1024
#: Where a curve is said to begin, and how much it must grow from there to the end to be worth a word.
BASE_POSITION = 64
#: What comes later is compared with the positions before this.
EARLY = 256
GROWTH = 1.5
#: A divergence whose curve ends below this, in nats, is too small to be seen in answers, growing or not.
NEGLIGIBLE = 1e-3
#: What makes a cache unusable: the text becomes this much less likely, in nats per token (perplexity + 5 %), or the
#: most likely token is another one this often.
WORST_GAIN = -0.05
WORST_AGREEMENT = 0.8
CONFIDENCE = 0.95


class Trend(NamedTuple):
    """The factor by which KL grows when the position doubles, and its 95 % confidence interval; the curve's ends.

    at_base, at_end: the fitted KL at BASE_POSITION and at the last position.
    """

    per_doubling: float
    low: float
    high: float
    at_base: float
    at_end: float


class Kind(Enum):
    """The verdicts, from good to bad; TOO_SHORT says nothing either way."""

    IDENTICAL = "identical"
    NO_DRIFT = "no drift seen"
    TOO_SHORT = "too short to tell"
    DRIFT = "drift"
    UNUSABLE = "unusable"


class Verdict(NamedTuple):
    """position: where drift begins, about; None for other kinds."""

    kind: Kind
    position: int | None = None

    @property
    def words(self) -> str:
        """For a person."""
        return f"drift from about position {self.position:,}" if self.kind is Kind.DRIFT else self.kind.value


class Bucket(NamedTuple):
    """Means over the positions [begin, end)."""

    begin: int
    end: int
    positions: int
    kl: float
    gain: float
    agreement: float


def buckets(trace: Trace) -> list[Bucket]:
    """Means over positions from one power of two to the next, from FIRST_POSITION on; the first has what is before."""
    edges, last = [0, FIRST_POSITION], int(trace.position.max()) + 1
    while edges[-1] < last:
        edges.append(edges[-1] * 2)
    found = []
    for begin, end in pairwise(edges):
        inside = (trace.position >= begin) & (trace.position < end)
        count = int(inside.sum())
        if count:
            means = (float(each[inside].mean()) for each in (trace.kl, trace.gain, trace.agree))
            found.append(Bucket(begin, min(end, last), count, *means))
    return found


def trend(trace: Trace) -> Trend | None:
    """The fitted curve; None where there is nothing to fit: too little, all zero, or not numbers."""
    used = trace.position >= FIRST_POSITION
    kl, logs = trace.kl[used], np.log2(trace.position[used] + 1.0)
    if len(kl) < LEAST_POSITIONS or not np.isfinite(kl).all() or not kl.any():
        return None
    runs = trace.text[used] * (1 << 40) + trace.position[used] // RUN
    middle = logs.mean()
    (level, slope), variance, clusters = _fit(kl, logs - middle, runs)
    margin = _student(CONFIDENCE, clusters - 2) * math.sqrt(variance)
    base, end = (math.exp(level + slope * (math.log2(at + 1) - middle)) for at in (BASE_POSITION, trace.position.max()))
    return Trend(math.exp(slope), math.exp(slope - margin), math.exp(slope + margin), base, end)


def verdict(trace: Trace, found: Trend | None) -> Verdict:
    """What to make of it."""
    if not np.isfinite(trace.kl).all() or trace.gain.mean() < WORST_GAIN or trace.agree.mean() < WORST_AGREEMENT:
        return Verdict(Kind.UNUSABLE)
    if not trace.kl.any():
        return Verdict(Kind.IDENTICAL)
    if found is None:
        return Verdict(Kind.TOO_SHORT)
    grows = found.low > 1 and found.at_end > GROWTH * found.at_base and found.at_end > NEGLIGIBLE
    return Verdict(Kind.DRIFT, _onset(trace, found)) if grows else Verdict(Kind.NO_DRIFT)


def _onset(trace: Trace, found: Trend) -> int:
    """Where the first bucket begins from which on all are GROWTH times what the first positions are."""
    early = trace.kl[(trace.position >= FIRST_POSITION) & (trace.position < EARLY)].mean()
    onset = None
    for bucket in reversed(buckets(trace)):
        if bucket.kl <= GROWTH * early or bucket.begin < EARLY:
            break
        onset = bucket.begin
    if onset is not None:
        return onset
    # No bucket stands out, but the curve does: where it reaches that, to the two digits that it is worth.
    doublings = math.log(GROWTH) / math.log(found.per_doubling)
    position = int(BASE_POSITION * 2.0**doublings)
    return int(float(f"{position:.2g}"))


def _fit(y: F64, x: F64, runs: NDArray[np.int64]) -> tuple[tuple[float, float], float, int]:
    """Level and slope of log E[y] over x by Newton's method, the slope's variance, and how many runs there are."""
    design = np.stack([np.ones_like(x), x], axis=1)
    beta = np.array([math.log(y.mean()), 0.0])
    for _ in range(50):
        mean = np.exp(design @ beta)
        step = np.linalg.solve((design * mean[:, None]).T @ design, design.T @ (y - mean))
        # A long step in an exponent overshoots; a few short ones arrive as well.
        beta += step * min(1.0, 1.0 / max(float(np.abs(step).max()), 1e-300))
        if np.abs(step).max() < 1e-10:
            break
    mean = np.exp(design @ beta)
    _, member = np.unique(runs, return_inverse=True)
    count = int(member.max()) + 1
    scores = np.zeros((count, 2))
    np.add.at(scores, member, design * (y - mean)[:, None])
    bread = np.linalg.inv((design * mean[:, None]).T @ design)
    covariance = bread @ (scores.T @ scores) @ bread * count / (count - 1)
    return (float(beta[0]), float(beta[1])), float(covariance[1, 1]), count


def _student(confidence: float, freedom: int) -> float:
    """Two-sided quantile of Student's t, by the first terms of Fisher's expansion: to 0.5 % from 5 degrees on."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2
