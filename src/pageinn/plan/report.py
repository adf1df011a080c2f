"""The whole plan: sections of figures, the rows of the stack, command lines; as text, as JSON, as explanations."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

from pageinn.catalogue.accelerators import ACCELERATORS, GIB
from pageinn.catalogue.models import models
from pageinn.plan.capacity import Row, memory_figures, model_figures, rows, sharing_figures, users_planned
from pageinn.plan.figures import Figure, PlanError, show_bytes
from pageinn.plan.flags import flags
from pageinn.plan.inputs import Inputs
from pageinn.plan.pace import pace_figures
from pageinn.plan.transfer import transfer_figures

WIDTH = 80


@dataclass(frozen=True)
class Report:
    """sections: titles and their figures. rows: users at once. commands: by engine, None where it does not serve it."""

    asked: Inputs
    named: str
    sections: tuple[tuple[str, tuple[Figure, ...]], ...]
    rows: tuple[Row, ...]
    commands: dict[str, str | None]

    @property
    def figures(self) -> dict[str, Figure]:
        """All figures by key."""
        return {figure.key: figure for _, figures in self.sections for figure in figures}


def plan(asked: Inputs, named: str) -> Report:
    """named: what engines are told to serve. Raises PlanError or CatalogueError where there is nothing to plan."""
    found = rows(asked.check())
    users = users_planned(found)
    sections = (
        ("Cache", model_figures(asked)),
        ("Memory", memory_figures(asked)),
        ("One prompt, many requests", sharing_figures(asked)),
        ("Recompute or move", transfer_figures(asked)),
        ("Pace", pace_figures(asked, users)),
    )
    return Report(
        asked,
        named,
        tuple((title, tuple(figures)) for title, figures in sections),
        tuple(found),
        flags(asked, named, users),
    )


def as_text(report: Report) -> str:
    """The plan in 80 columns."""
    asked = report.asked
    shape = asked.shape
    active = "" if shape.active_parameters == shape.parameters else f", {shape.active_parameters / 1e9:.2f} active"
    lines = _wrap(
        f"{shape.name} ({shape.parameters / 1e9:.2f} billion parameters{active}) on {asked.tp} x "
        f"{asked.accelerator.name}; at most {asked.limit:,} tokens, {asked.lengths.mean:,.0f} on average "
        f"({asked.lengths.said}); cache in {asked.store}"
    )
    for title, figures in report.sections:
        lines += ["", title, *(_row(figure.label, figure.text) for figure in figures)]
        if title == "Memory":
            lines += ["", *_stack(report.rows)]
    lines += ["", "Flags"]
    for engine, command in report.commands.items():
        lines += _command(command) if command else [f"  {engine} does not serve this model or store"]
    lines += ["", *_wrap("Every figure's formula and assumptions: --explain, or --explain NAME for one.")]
    return "\n".join(lines)


def _row(label: str, text: str) -> str:
    return f"  {label:<44} {text:>33}" if len(text) <= 33 else f"  {label}\n{text:>{WIDTH}}"


def _stack(found: tuple[Row, ...]) -> list[str]:
    lines = ["Users at once" + f"{'users':>36}{'each':>12}{'wasted':>9}{'gain':>10}"]
    for row in found:
        each = show_bytes(row.each).split(" (")[0]
        wasted = f"{100 * row.wasted:.1f} %"
        lines.append(f"  {row.label:<40}{row.users:>7,}{each:>12}{wasted:>9}{_gain(row, found):>10}")
    last = [row for row in found if row.key != "small"]
    if last[0].users and len(last) > 1:
        lines.append(f"  {'all levers together':<68}{f'x {last[-1].users / last[0].users:.2f}':>10}")
    return lines


def _gain(row: Row, found: tuple[Row, ...]) -> str:
    return "" if row is found[0] or not row.gain else f"x {row.gain:.2f}"


def _command(command: str) -> list[str]:
    return textwrap.wrap(
        command,
        WIDTH - 2,
        initial_indent="  ",
        subsequent_indent="      ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def explain(report: Report, key: str | None) -> str:
    """Formulas and assumptions, of all figures and rows or of one. Raises PlanError for a name that is none."""
    entries: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
        figure.key: (figure.label, figure.text, figure.formula, figure.assumptions)
        for figure in report.figures.values()
    }
    for row in report.rows:
        entries[row.key] = (row.label, f"{row.users:,} users of {show_bytes(row.each)}", row.formula, ())
    if key is not None and key not in entries:
        raise PlanError(f"there is no figure {key!r} in this plan (figures: {', '.join(entries)})")
    lines: list[str] = []
    for name in [key] if key is not None else entries:
        label, text, formula, assumptions = entries[name]
        lines += _wrap(f"{name}: {label} = {text}")
        lines += _wrap(f"by {formula}", "    ")
        lines += [line for assumption in assumptions for line in _wrap(f"given {assumption}", "    ")]
    return "\n".join(lines)


def as_json(report: Report) -> dict[str, Any]:
    """The plan for programs: docs/plan.md lists the keys."""
    asked = report.asked
    return {
        "model": {
            "name": asked.shape.name,
            "architecture": asked.shape.architecture,
            "parameters": asked.shape.parameters,
            "active_parameters": asked.shape.active_parameters,
            "source": asked.shape.source,
        },
        "accelerator": {
            "name": asked.accelerator.name,
            "count": asked.tp,
            "memory": asked.accelerator.memory,
            "bandwidth": asked.accelerator.bandwidth,
            "flops": dict(asked.accelerator.flops),
            "link": asked.accelerator.link,
            "source": asked.accelerator.source,
        },
        "weights": asked.weights,
        "kv_cache_dtype": asked.store,
        "max_model_len": asked.limit,
        "lengths": {"mean": asked.lengths.mean, "source": asked.lengths.said},
        "figures": {
            key: {"value": figure.value, "unit": figure.unit, "formula": figure.formula, "given": figure.assumptions}
            for key, figure in report.figures.items()
        },
        "users": [row._asdict() for row in report.rows],
        "flags": report.commands,
    }


def catalogue_text() -> str:
    """The models and cards that can be named."""
    lines = ["models" + f"{'parameters':>29}{'per token':>14}{'weights':>11}"]
    for shape in models():
        from_cache = shape.layers * shape.attention.cached * 2
        lines.append(f"  {shape.name:<22}{shape.parameters / 1e9:>9.1f} B{from_cache:>14,}{shape.weights or '?':>11}")
    lines += ["", "accelerators" + f"{'GiB':>10}{'GB/s':>9}{'16-bit TFLOP/s':>16}{'link GB/s':>11}"]
    for card in ACCELERATORS.values():
        lines.append(
            f"  {card.name:<16}{card.memory / GIB:>4.0f}{card.bandwidth / 1e9:>9,.0f}{card.rate('half') / 1e12:>16,.4g}"
            f"{card.link / 1e9:>11g}"
        )
    lines += [
        "",
        *_wrap(
            "per token: bytes of the cache in 16 bits, no window full. A model may also be a GGUF, a folder "
            "with config.json, or a config.json."
        ),
    ]
    return "\n".join(lines)
