"""What the pairs say: figures by arm, a verdict in words, and the exit code that goes with it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from pageinn.audit.interval import Interval, wilson
from pageinn.audit.timing import Trial

#: Exit codes: nothing seen by a method that would have seen something; a leak; a method that sees nothing anywhere.
CALM, LEAK, BLIND = 0, 1, 3
#: Within a tenant the guesses should be right at least this often; else the timings are noisy.
CLEAR = 0.9
#: An interval is narrow with at most this half-width.
NARROW = 0.05
_COIN = 0.5
_WIDTH = 80
_WHO = {"across": "another tenant", "within": "the same tenant", "public": "the operator, public"}


class Figures(NamedTuple):
    """An arm's pairs. sent, other: median seconds to the first token of the prompt sent before, and of the other one.

    told: pairs in which the server's own count of cached tokens gave it away.
    """

    arm: str
    pairs: int
    right: int
    interval: Interval
    sent: float
    other: float
    told: int

    @property
    def accuracy(self) -> float:
        """The share of right guesses."""
        return self.right / self.pairs

    @property
    def leaks(self) -> bool:
        """Whether the guesses differ from a coin's, or no guess is needed."""
        return _COIN not in self.interval or self.told > 0


class Report(NamedTuple):
    """An audit's outcome. tokens: of a prompt, the median as the server counts; 0 if it does not."""

    url: str
    model: str
    tokens: int
    figures: tuple[Figures, ...]
    code: int
    verdict: str


def report(url: str, model: str, trials: Mapping[str, Sequence[Trial]]) -> Report:
    """What was found."""
    figures = tuple(_figures(arm, found) for arm, found in trials.items())
    across, within = (next(one for one in figures if one.arm == arm) for arm in ("across", "within"))
    tokens = int(median(trial.sent.tokens for trial in trials["across"]))
    code = LEAK if across.leaks else CALM if within.leaks else BLIND
    return Report(url, model, tokens, figures, code, _verdict(code, across, within))


def _figures(arm: str, trials: Sequence[Trial]) -> Figures:
    right = sum(trial.right for trial in trials)
    return Figures(
        arm,
        len(trials),
        right,
        wilson(right, len(trials)),
        median(trial.sent.seconds for trial in trials),
        median(trial.other.seconds for trial in trials),
        sum(trial.told for trial in trials),
    )


def _verdict(code: int, across: Figures, within: Figures) -> str:
    guesses = f"guesses are right in {_percent(across.accuracy)} of {across.pairs} pairs"
    if code == LEAK:
        by_count = f" The server's cached_tokens gives it away in {across.told} of them." if across.told else ""
        return (
            f"LEAK. B can tell what A has sent: by the time to the first token, {guesses}.{by_count} Give each tenant "
            "a scope of its own: keys in pageinn (--api-keys), a cache_salt by tenant in vLLM and SGLang, set by the "
            "gateway and not by the caller."
        )
    if code == BLIND:
        return (
            "NOTHING SHOWN. B can tell nothing of A's prompts, but neither can A of its own: nothing is kept (caching "
            "is off, or A's prompts have no part in it), or prompts are too short beside the noise or pairs too "
            "few. Raise --tokens and --pairs, or audit when the server is calmer."
        )
    said = [f"No leak seen. B's {guesses}, as a coin's may be; A's of its own, in {_percent(within.accuracy)}."]
    if within.accuracy < CLEAR:
        said.append("That is few: a small leak would drown in this noise. Raise --tokens.")
    if across.interval.half_width > NARROW:
        said.append(f"The interval is wide (±{100 * across.interval.half_width:.1f} points): raise --pairs.")
    return " ".join(said)


def as_text(found: Report) -> str:
    """For people, in 80 columns."""
    length = f"prompts of {found.tokens} tokens" if found.tokens else "the server does not count tokens"
    lines = [
        f"{found.url}, {found.model}, {length}",
        "",
        f"{'sent before by':<21}{'pairs':>6}{'right':>9}{'95 % interval':>18}{'first token: sent, other':>26}",
    ]
    for one in found.figures:
        interval = f"{100 * one.interval.low:.1f} to {_percent(one.interval.high)}"
        times = f"{_time(one.sent)}, {_time(one.other)}"
        lines.append(f"{_WHO[one.arm]:<21}{one.pairs:>6}{_percent(one.accuracy):>9}{interval:>18}{times:>26}")
    return "\n".join([*lines, "", *textwrap.wrap(found.verdict, _WIDTH)])


def as_json(found: Report) -> dict[str, object]:
    """For programs."""
    return {
        "url": found.url,
        "model": found.model,
        "tokens": found.tokens,
        "arms": [
            {
                "arm": one.arm,
                "pairs": one.pairs,
                "right": one.right,
                "accuracy": one.accuracy,
                "low": one.interval.low,
                "high": one.interval.high,
                "seconds_sent": one.sent,
                "seconds_other": one.other,
                "told_by_cached_tokens": one.told,
            }
            for one in found.figures
        ],
        "leak": found.code == LEAK,
        "conclusive": found.code != BLIND,
        "verdict": found.verdict,
    }


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"
