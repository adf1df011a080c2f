"""How long sequences are, prompt and answer together: a mean, percentiles, or a sample."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pageinn.catalogue.memory import in_blocks, mean_slots_lost
from pageinn.plan.figures import PlanError

#: Quantiles that stand for a distribution of which percentiles are known.
QUANTILES = 1000
_PERCENTILE = re.compile(r"p(\d+(?:\.\d+)?)=(\d+)", re.ASCII)


@dataclass(frozen=True)
class Lengths:
    """What is known of the lengths, in tokens. sample: empty where only the mean is known. said: where it is from."""

    mean: float
    sample: tuple[int, ...]
    said: str

    def average(self, cost: Callable[[float], float]) -> float:
        """Mean of what a sequence costs; of a mean alone, the cost at the mean."""
        return sum(map(cost, self.sample)) / len(self.sample) if self.sample else cost(self.mean)

    def average_in_blocks(self, cost: Callable[[float], float], block_size: int) -> float:
        """The same for whole blocks; of a mean alone, with half a block lost at the end."""
        if self.sample:
            return sum(cost(in_blocks(length, block_size)) for length in self.sample) / len(self.sample)
        return cost(self.mean + mean_slots_lost(block_size))


def of_mean(mean: float, said: str = "a mean") -> Lengths:
    """Raises PlanError for a mean that is not above 0."""
    if mean <= 0:
        raise PlanError(f"a mean length of {mean:g} tokens is nothing")
    return Lengths(mean, (), said)


def of_sample(lengths: Sequence[int], said: str) -> Lengths:
    """Raises PlanError for no lengths or one below 1."""
    if not lengths or min(lengths) < 1:
        raise PlanError(f"{said}: lengths are whole numbers of at least 1 token, and there must be one")
    return Lengths(sum(lengths) / len(lengths), tuple(lengths), said)


def of_text(text: str) -> Lengths:
    """Numbers with commas between them, or the name of a file with one number per line. Raises PlanError."""
    path = Path(text)
    if re.fullmatch(r"\d+(,\d+)*", text):
        return of_sample([int(part) for part in text.split(",")], f"{text.count(',') + 1} lengths given")
    try:
        rows = path.read_text().split()
    except OSError as error:
        raise PlanError(f"{text}: neither numbers with commas between them nor a readable file") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{text}: not a text file") from error
    for row in rows:
        if not row.isdecimal():
            raise PlanError(f"{text}: {row[:40]!r} is not a whole number of tokens")
    return of_sample([int(row) for row in rows], text)


def of_percentiles(text: str, longest: int) -> Lengths:
    """ "p50=800,p90=3000,p99=7000": straight lines between them, from 1 token at p0 to `longest` at p100.

    Raises PlanError for text of another form, or percentiles that do not rise or exceed the limit.
    """
    points = [(0.0, 1)]
    for part in text.split(","):
        match = _PERCENTILE.fullmatch(part.strip())
        if match is None or not 0 < float(match[1]) < 100:
            raise PlanError(f"{part!r} is not a percentile; write for example p50=800,p90=3000,p99=7000")
        points.append((float(match[1]) / 100, int(match[2])))
    points = sorted([*points, (1.0, longest)])
    if any(left[1] > right[1] or left[0] == right[0] for left, right in pairwise(points)):
        raise PlanError(f"{text!r} does not rise from 1 to the limit of {longest} tokens")
    sample = [round(_between(points, (at + 0.5) / QUANTILES)) for at in range(QUANTILES)]
    return of_sample(sample, f"{text}, straight lines between")


def _between(points: list[tuple[float, int]], share: float) -> float:
    for (low, short), (high, long) in pairwise(points):
        if share <= high:
            return short + (long - short) * (share - low) / (high - low)
    raise AssertionError("the last point is at 1")
