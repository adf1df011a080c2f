"""What a reading found: good rows, broken ones, what an engine's own log says of its cache, and what was assumed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

#: How many broken rows are shown; all are counted.
SHOWN = 5


class ReadError(ValueError):
    """A log that cannot be read at all; one line names it and the way out."""


class BadRowError(ValueError):
    """One row that cannot be read; the message is the reason, without the place."""


class Broken(NamedTuple):
    """A row that was skipped."""

    source: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.reason}"


class Sample(NamedTuple):
    """What an engine's log line says of its prefix cache.

    time: seconds from any origin, or None. rate: share of prompt tokens found in the cache since the engine started or
    over the engine's own window, or None where the line gives counts only. new, cached: prompt tokens computed and
    found, where the line gives them. tier: "gpu" or "cpu" where the line tells them apart.
    """

    source: str
    line: int
    engine: str
    time: float | None
    rate: float | None
    new: int | None = None
    cached: int | None = None
    tier: str = ""


@dataclass
class ReadReport:
    """Filled while a log is read; complete when its iterator has ended."""

    good: int = 0
    broken: int = 0
    first_broken: list[Broken] = field(default_factory=list)
    formats: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    assumed: dict[str, None] = field(default_factory=dict)

    def skip(self, source: str, line: int, reason: str) -> None:
        """Count a broken row."""
        self.broken += 1
        if len(self.first_broken) < SHOWN:
            self.first_broken.append(Broken(source, line, reason))

    def assume(self, sentence: str) -> None:
        """Say once what the log itself does not."""
        self.assumed[sentence] = None

    def lines(self) -> list[str]:
        """The report in words: what was read, what was skipped, what was assumed."""
        kinds = ", ".join(f"{count:,} {name}" for name, count in self.formats.most_common())
        said = [f"{self.good:,} good rows ({kinds}), {self.broken:,} broken"]
        said += [f"skipped {broken}" for broken in self.first_broken]
        if self.broken > len(self.first_broken):
            said.append(f"skipped {self.broken - len(self.first_broken):,} more")
        return said + [f"assumed: {sentence}" for sentence in self.assumed]
