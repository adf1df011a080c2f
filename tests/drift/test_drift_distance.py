from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pageinn.drift.distance import Distances, distances
from pageinn.kernels.backend import F32, I32


def between(reference: F32, other: F32, targets: I32) -> Distances:
    with ThreadPoolExecutor(2) as workers:
        return distances(reference, other, targets, workers)


def test_against_sums_written_out() -> None:
    rng = np.random.default_rng(0)
    reference = rng.normal(0, 4, (19, 7)).astype(np.float32)
    other = (reference + rng.normal(0, 0.5, reference.shape)).astype(np.float32)
    targets = rng.integers(0, 7, 19).astype(np.int32)
    found = between(reference, other, targets)
    for row in range(19):
        p, q = ([math.exp(x) for x in logits[row].tolist()] for logits in (reference, other))
        p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
        assert math.isclose(found.kl[row], sum(x * math.log(x / y) for x, y in zip(p, q, strict=True)), abs_tol=1e-14)
        assert math.isclose(found.gain[row], math.log(q[targets[row]] / p[targets[row]]), abs_tol=1e-14)
        assert found.agree[row] == (p.index(max(p)) == q.index(max(q)))


def test_equal_logits_are_at_exactly_zero() -> None:
    logits = np.random.default_rng(1).normal(0, 10, (30, 500)).astype(np.float32)
    found = between(logits, logits.copy(), np.zeros(30, np.int32))
    assert (found.kl == 0).all()
    assert (found.gain == 0).all()
    assert found.agree.all()


def test_a_constant_added_to_all_logits_changes_next_to_nothing() -> None:
    logits = np.random.default_rng(1).normal(0, 10, (8, 500)).astype(np.float32)
    found = between(logits, logits + np.float32(16), np.zeros(8, np.int32))
    assert found.kl.max() < 1e-6


def test_logits_that_are_not_numbers_are_infinitely_far() -> None:
    logits = np.zeros((2, 5), np.float32)
    broken = logits.copy()
    broken[1, 2] = np.nan
    found = between(logits, broken, np.zeros(2, np.int32))
    assert found.kl.tolist() == [0, np.inf]
    assert found.gain[1] == -np.inf
    assert not found.agree[1]
