"""How far one model's predictions are from another's, row by row."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pageinn.kernels.backend import F32, I32

F64 = NDArray[np.float64]
#: Rows computed together: their float64 probabilities stay in a processor's cache.
_ROWS = 8


class Distances(NamedTuple):
    """Per row. kl: KL(reference || other) in nats, infinite where the other's logits are not numbers.

    gain: the other's log-likelihood of the token that follows, less the reference's, in nats (-inf likewise). agree:
    whether both would choose the same token.
    """

    kl: F64
    gain: F64
    agree: NDArray[np.bool_]


def distances(reference: F32, other: F32, targets: I32, workers: Executor) -> Distances:
    """Compare logits [T, vocabulary] of the same positions. targets: the tokens that follow, [T].

    In float64 throughout: KL is the small difference of large sums. Equal logits give exactly zero.
    """
    cuts = [slice(start, start + _ROWS) for start in range(0, len(reference), _ROWS)]
    parts = workers.map(lambda cut: _distances(reference[cut], other[cut], targets[cut]), cuts)
    return Distances(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def _distances(reference: F32, other: F32, targets: I32) -> Distances:
    ours, theirs = reference.astype(np.float64), other.astype(np.float64)
    normal_ours, normal_theirs = _log_sum(ours), _log_sum(theirs)
    probabilities = np.exp(ours - normal_ours[:, None])
    rows = np.arange(len(targets))
    agree = theirs.argmax(axis=1) == ours.argmax(axis=1)
    theirs -= ours
    kl = (normal_theirs - normal_ours) - np.einsum("ij,ij->i", probabilities, theirs)
    gain = theirs[rows, targets] - (normal_theirs - normal_ours)
    bad = ~np.isfinite(kl)
    # KL is never negative; what is, is the rounding of a zero.
    return Distances(np.where(bad, np.inf, np.maximum(kl, 0)), np.where(bad, -np.inf, gain), agree & ~bad)


def _log_sum(logits: F64) -> F64:
    largest = logits.max(axis=1)
    total: F64 = np.log(np.exp(logits - largest[:, None]).sum(axis=1)) + largest
    return total
