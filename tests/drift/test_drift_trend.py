from __future__ import annotations

import math

import numpy as np
import pytest

from pageinn.drift.forced import Trace
from pageinn.drift.trend import Kind, buckets, trend, verdict


def trace_of(kl: np.ndarray, texts: int = 1) -> Trace:
    each = len(kl) // texts
    return Trace(
        text=np.repeat(np.arange(texts), each),
        position=np.tile(np.arange(each), texts),
        kl=kl,
        gain=-kl,
        agree=np.ones(len(kl), np.bool_),
        saturated=0,
    )


def noise(rng: np.random.Generator, count: int) -> np.ndarray:
    """A mean of one, a long tail, and neighbours that are alike: KL as it is."""
    logs = np.zeros(count)
    for i in range(1, count):
        logs[i] = 0.9 * logs[i - 1] + rng.normal(0, 0.5)
    noisy: np.ndarray = np.exp(logs) * rng.gamma(0.5, 2, count)
    return noisy / math.exp(0.25 / (1 - 0.81) / 2)


def judged(kl: np.ndarray) -> tuple[Kind, int | None]:
    trace = trace_of(kl)
    return verdict(trace, trend(trace))[:2]


def test_a_curve_without_noise_is_found_exactly() -> None:
    positions = np.arange(4096)
    found = trend(trace_of(0.002 * (positions + 1.0) ** 0.3))
    assert found is not None
    assert found.per_doubling == pytest.approx(2**0.3)
    assert found.at_base == pytest.approx(0.002 * 65**0.3)
    assert found.at_end == pytest.approx(0.002 * 4096**0.3)
    assert found.high - found.low < 1e-6


def test_the_interval_has_the_truth_as_often_as_it_says() -> None:
    """Without a trend, one is claimed upwards in some 2.5 % of texts; heavy tails and neighbours alike included."""
    rng = np.random.default_rng(0)
    found = [trend(trace_of(0.01 * noise(rng, 4096))) for _ in range(200)]
    low = sum(each.low > 1 for each in found if each is not None)
    high = sum(each.high < 1 for each in found if each is not None)
    assert low <= 14
    assert high <= 14
    # And the interval is not just wide: a growth by half from 64 to the end is seen more often than not.
    grown = [trend(trace_of(0.01 * np.arange(1, 8193) ** 0.25 * noise(rng, 8192))) for _ in range(20)]
    assert sum(each.low > 1 for each in grown if each is not None) >= 15


def test_verdicts() -> None:
    flat, position = np.full(4096, 0.005), np.arange(1, 4097)
    assert judged(flat * 0) == (Kind.IDENTICAL, None)
    assert judged(flat) == (Kind.NO_DRIFT, None)
    assert judged(flat[:1000]) == (Kind.TOO_SHORT, None)
    assert judged(flat * 100) == (Kind.UNUSABLE, None)
    assert judged(np.where(position == 9, np.inf, flat)) == (Kind.UNUSABLE, None)
    # It grows, but what it grows to nobody can see.
    assert judged(1e-6 * position**0.5) == (Kind.NO_DRIFT, None)
    assert judged(5e-3 * position**-0.5) == (Kind.NO_DRIFT, None)


def test_a_drift_is_said_to_begin_where_it_does() -> None:
    """Coherent early, degrading late: a mean that is ten times what it was from token 2,048 on."""
    noisy = 0.003 * noise(np.random.default_rng(3), 8192)
    noisy[2048:] *= 10
    kind, position = judged(noisy)
    assert kind is Kind.DRIFT
    assert position == 2048


def test_an_even_growth_begins_where_it_is_half_as_high_again_as_early_on() -> None:
    """The root of the position has a mean of 11 from 16 to 255; that of 256 to 511 is 20, that is more than 1.5 * 11.

    With the power 0.17 no bucket is, but the curve is from 64 * 1.5**(1 / 0.17) on.
    """
    assert judged(1e-3 * np.arange(1, 2049) ** 0.5) == (Kind.DRIFT, 256)
    kind, position = judged(1e-3 * np.arange(1, 1101) ** 0.17)
    assert kind is Kind.DRIFT
    assert position == 700  # 695 in two digits


def test_buckets_double_and_cover_everything() -> None:
    trace = trace_of(np.arange(100.0), texts=2)
    found = buckets(trace)
    assert [(each.begin, each.end, each.positions) for each in found] == [(0, 16, 32), (16, 32, 32), (32, 50, 36)]
    assert found[2].kl == pytest.approx(np.mean([*range(32, 50), *range(82, 100)]))
