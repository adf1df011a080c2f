"""The divergence over the position, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pageinn.drift.report import Found, Subject
from pageinn.drift.texts import CorpusError
from pageinn.drift.trend import BASE_POSITION, FIRST_POSITION


def draw(subject: Subject, rows: Sequence[Found], path: Path) -> None:
    """Means by bucket and the fitted curves, in the format of the path's ending.

    Raises CorpusError without matplotlib or for a path that cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CorpusError("--plot needs matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    last = max(row.buckets[-1].end for row in rows)
    for number, row in enumerate(rows):
        used = [each for each in row.buckets if each.begin >= FIRST_POSITION and 0 < each.kl < np.inf]
        middles = [np.sqrt(each.begin * each.end) for each in used]
        colour = f"C{number}"
        axes.plot(middles, [each.kl for each in used], "o", color=colour, label=f"{row.dtype}: {row.verdict.words}")
        if row.trend is not None:
            at = np.geomspace(FIRST_POSITION, last)
            curve = row.trend.at_base * row.trend.per_doubling ** np.log2(at / BASE_POSITION)
            axes.plot(at, curve, "-", color=colour, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("position in the text, in tokens")
    axes.set_ylabel(f"KL from a {subject.reference} cache, nats")
    axes.set_title(f"{subject.model}, {subject.weights} weights")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise CorpusError(f"--plot {path}: {error}") from error
