"""The plan as a picture: users at once by lever, and computing against moving a prompt by its length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pageinn.catalogue.memory import sequence_bytes
from pageinn.plan.figures import PlanError
from pageinn.plan.report import Report
from pageinn.plan.transfer import attention_seconds, prefill_seconds

_POINTS = 24
_INK, _BARS = "#333333", "#3b6ea8"


def draw(report: Report, path: Path) -> None:
    """Write a picture in the format of the path's ending. Raises PlanError without matplotlib or for a bad path."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlanError("--plot needs matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    _users(left, report)
    _moving(right, report)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise PlanError(f"{path}: the plot cannot be written: {error}") from error


def _users(axes: Any, report: Report) -> None:
    labels = [row.label for row in report.rows]
    users = [row.users for row in report.rows]
    bars = axes.barh(labels[::-1], users[::-1], color=_BARS, height=0.6)
    axes.bar_label(bars, [f"{count:,}" for count in users[::-1]], padding=3, color=_INK)
    axes.set_title(f"Users at once: {report.asked.shape.name} on {report.asked.tp} x {report.asked.accelerator.name}")
    axes.margins(x=0.15)
    axes.spines[["top", "right"]].set_visible(False)


def _moving(axes: Any, report: Report) -> None:
    asked = report.asked
    tokens = sorted({max(16, round(asked.limit * (at + 1) / _POINTS)) for at in range(_POINTS)})
    size = [sequence_bytes(asked.shape, count, asked.store, asked.tp) for count in tokens]
    lines = {
        "compute: linear layers": [prefill_seconds(asked, count) for count in tokens],
        "compute: with attention": [prefill_seconds(asked, at) + attention_seconds(asked, at) for at in tokens],
        f"read over {asked.accelerator.link_name}": [one / asked.accelerator.link for one in size],
        "read from disk": [one / min(asked.disk, asked.accelerator.link) for one in size],
    }
    for (label, seconds), style in zip(lines.items(), ("--", "-", "-", "-"), strict=True):
        axes.plot(tokens, [1e3 * value for value in seconds], style, label=label)
    axes.set_yscale("log")
    axes.set_xlabel("prompt, tokens")
    axes.set_ylabel("ms")
    axes.set_title("Recompute or move a prompt")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
