"""The tables, for a terminal of 80 columns, and the plot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from .agreement import agreement
from .record import BASELINE, OURS, Record, quantile, spread
from .workloads import WORKLOADS

#: Best peer's seconds over ours: the least that is asked for.
BARS = {
    "single": 1.2,
    "none": 1.0,
    "rag": 1.0,
    "decode": 1.3,
    "chat": 1.25,
    "agent": 1.25,
    "fewshot": 1.4,
    "longctx": 1.4,
}
#: The same against one engine alone.
BARS_AGAINST = {
    ("llama.cpp", "fewshot"): 8.0,
    ("llama.cpp", "longctx"): 20.0,
    (BASELINE, "decode"): 14.0,
    (BASELINE, "fewshot"): 14.0,
}
#: Where the p95 of the time to the first token is to be no longer than any peer's.
FIRST_TOKEN_BARS = ("none", "chat", "agent")


def report(record: Record) -> str:
    lines = [about(record), "", *table(record), "", *bars(record), "", *engines(record)]
    return "\n".join(lines)


def about(record: Record) -> str:
    machine = record.machine
    return (
        f"{machine['processor']}, {machine['cores']} cores, AVX-512 {'yes' if machine['avx512'] else 'no'}; "
        "s, TTFT: medians over the runs;\nratio: seconds over pageinn's in the same run, median (least-most)"
    )


def table(record: Record) -> Iterator[str]:
    """A line for each workload and engine."""
    head = f"{'workload':<9}{'engine':<13}{'n':>2}{'s':>8}{'least-most':>13}{'TTFT p50':>9}{'p95':>7}"
    yield f"{head}{'ratio':>18}"
    for workload in WORKLOADS:
        for place, engine in enumerate(record.engines(workload)):
            rows = list(record.of(engine, workload).values())
            seconds = spread(row.seconds for row in rows)
            first = [median(quantile(row.ttft, share) for row in rows) for share in (0.5, 0.95)]
            ratios = record.ratios(engine, workload)
            shown = "" if engine == OURS or not ratios else _ratio(ratios)
            yield (
                f"{'' if place else workload:<9}{engine:<13}{len(rows):>2}{seconds.median:>8.2f}"
                f"{f'{seconds.least:.1f}-{seconds.most:.1f}':>13}{first[0]:>9.2f}{first[1]:>7.2f}{shown:>18}"
            )


def bars(record: Record) -> Iterator[str]:
    """What is asked for beside what was found; only what was run."""
    yield f"{'':<39}{'asked':>7}{'found':>19}"
    for workload, bar in BARS.items():
        if ratios := record.best_ratios(workload):
            yield _bar(f"{workload}: best peer / pageinn", bar, ratios)
    for (engine, workload), bar in BARS_AGAINST.items():
        if ratios := record.ratios(engine, workload):
            yield _bar(f"{workload}: {engine} / pageinn", bar, ratios)
    for workload in FIRST_TOKEN_BARS:
        p95 = {name: _p95(record, name, workload) for name in record.engines(workload) if name != BASELINE}
        if OURS in p95 and len(p95) > 1:
            best = min(seconds for name, seconds in p95.items() if name != OURS)
            yield _bar(f"{workload}: TTFT p95, best peer / pageinn", 1.0, [best / p95[OURS]])


def engines(record: Record) -> Iterator[str]:
    """Interface, precision, start-up and how far the answers follow the reference, by engine."""
    yield f"{'engine':<13}{'interface':<11}{'precision':<33}{'start':>6}{'prefix':>8}{'equal':>8}"
    reference = record.answers.get(BASELINE)
    for name in dict.fromkeys(row.engine for row in record.rows):
        row = next(row for row in record.rows if row.engine == name)
        start = f"{median(record.starts[name]):.1f}" if name in record.starts else ""
        prefix = equal = ""
        if reference is not None and name in record.answers:
            found = agreement(record.answers[name], reference)
            prefix, equal = f"{found.prefix:g}/{len(reference[0])}", f"{100 * found.equal:.1f} %"
        yield f"{name:<13}{row.interface:<11}{row.precision:<33}{start:>6}{prefix:>8}{equal:>8}"
    yield "start: seconds from command to ready; prefix: median tokens until a greedy"
    yield "answer leaves transformers' in float32; equal: share of equal tokens"
    yield "; ".join(f"{name} {version}" for name, version in record.versions.items())


def _p95(record: Record, engine: str, workload: str) -> float:
    return median(quantile(row.ttft, 0.95) for row in record.of(engine, workload).values())


def _ratio(ratios: list[float]) -> str:
    found = spread(ratios)
    digits = 2 if found.most < 10 else 1
    return f"{found.median:.{digits}f} ({found.least:.{digits}f}-{found.most:.{digits}f})"


def _bar(name: str, bar: float, ratios: list[float]) -> str:
    met = "met" if spread(ratios).median >= bar else "not met"
    return f"{name:<39}{bar:>7.2f}{_ratio(ratios):>19}  {met}"


def plot(record: Record, path: Path) -> None:
    """Each engine's seconds over ours, by workload, with the spread over runs. Needs matplotlib."""
    from matplotlib.figure import Figure

    names = [name for name in dict.fromkeys(row.engine for row in record.rows) if name != OURS]
    workloads = [name for name in WORKLOADS if record.engines(name)]
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / max(len(names), 1)
    for place, name in enumerate(names):
        at, heights, errors = [], [], []
        for index, workload in enumerate(workloads):
            if ratios := record.ratios(name, workload):
                found = spread(ratios)
                at.append(index + (place - (len(names) - 1) / 2) * width)
                heights.append(found.median)
                errors.append((found.median - found.least, found.most - found.median))
        axes.bar(at, heights, width, yerr=list(zip(*errors, strict=True)) or None, capsize=2, label=name)
    axes.axhline(1.0, color="black", linewidth=1)
    axes.set_yscale("log")
    axes.set(ylabel="seconds over pageinn's (log)", xticks=range(len(workloads)), xticklabels=workloads)
    axes.grid(axis="y", alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
