"""The measured stack beside the planned one, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from pageinn.catalogue.accelerators import find_accelerator
from pageinn.catalogue.memory import multi_head, token_bytes
from pageinn.catalogue.shape import GroupedQuery
from pageinn.catalogue.shape import Shape as ModelShape
from pageinn.plan.capacity import rows as planned_rows
from pageinn.plan.figures import PlanError
from pageinn.plan.inputs import Inputs
from pageinn.plan.lengths import of_sample
from pageinn.stack.levers import LEVERS, Lever
from pageinn.stack.run import Bench, Measured
from pageinn.stack.workload import turn_lengths

#: The planner's row for each of ours.
_PLANNED = {"whole": "grouped_query", "paged": "paged_in_blocks", "shared": "shared", "kept": "shared", "fp8": "small"}


class Row(NamedTuple):
    """A lever's figures. planned: users by the planner's formulas, None where it has no such row.

    gain and rate_gain: residents and tokens a second, over those of the row that the lever is added to; None where that
    row was not measured.
    """

    lever: Lever
    measured: Measured
    planned: int | None
    gain: float | None
    rate_gain: float | None


def rows_of(measured: dict[str, Measured], bench: Bench, model: ModelShape) -> list[Row]:
    """The rows that were measured, in the stack's order."""
    planned = planned_users(bench, model)
    found = []
    for lever in LEVERS:
        if (own := measured.get(lever.key)) is not None:
            over = measured.get(lever.over)
            gain = own.residents / over.residents if over else None
            rate = own.rate / over.rate if over else None
            found.append(Row(lever, own, planned.get(lever.key), gain, rate))
    return found


def planned_users(bench: Bench, model: ModelShape) -> dict[str, int]:
    """Users at once by the planner, for the same cache and the same lengths, each turn a request of its own."""
    sample = [length for final in bench.lengths for length in turn_lengths(final, bench.shape)]

    def rows(shared: int) -> dict[str, int]:
        asked = Inputs(
            shape=model,
            accelerator=find_accelerator("cpu-2core"),
            weights="int8",
            store="bfloat16",
            limit=bench.limit,
            lengths=of_sample(sample, "the lengths measured"),
            cache=bench.cache_bytes,
            shared=shared,
        )
        return {row.key: row.users for row in planned_rows(asked)}

    found, alone = rows(bench.shape.shared), rows(0)
    if isinstance(model.attention, GroupedQuery) and model.attention.kv_heads == model.attention.heads:
        found["grouped_query"] = found["multi_head"]
    found.setdefault("shared", found["paged_in_blocks"])
    return {ours: found[theirs] for ours, theirs in _PLANNED.items()} | {"fp8_alone": alone["small"]}


def multiplied(rows: Sequence[Row]) -> tuple[float, float] | None:
    """Residents: the product of the gains of paging, keeping and fp8, each alone, and what all brought together.

    None where a row is missing.
    """
    by_key = {row.lever.key: row.measured.residents for row in rows}
    if len(by_key) < len(LEVERS):
        return None
    product = (
        by_key["paged"] / by_key["whole"] * by_key["kept"] / by_key["paged"] * by_key["fp8_alone"] / by_key["paged"]
    )
    return product, by_key["fp8"] / by_key["whole"]


def as_text(rows: Sequence[Row], bench: Bench, model: ModelShape) -> str:
    """At most 80 columns wide."""
    shape = bench.shape
    lines = [
        *_prose(
            f"{bench.cache_bytes / 2**20:,.0f} MiB of cache, at most {bench.limit:,} tokens a sequence; "
            f"{bench.count:,} conversations of {shape.turns} turns, the first {shape.shared:,} tokens shared by all, "
            f"answers of {shape.answer:,}",
            _lengths(bench),
        ),
        "",
        f"{'':<22}{'residents':>10}{'planned':>9}{'gain':>7}{'wasted':>8}{'hits':>7}{'tok/s':>8}{'gain':>7}",
        *(_line(row) for row in rows),
    ]
    if any(not row.measured.waited for row in rows):
        lines.append("* nobody had to wait for memory: give more conversations or less cache")
    return "\n".join([*lines, "", *_prose(*_together(rows), *_heads(model))])


def _prose(*sentences: str) -> list[str]:
    return [line for sentence in sentences for line in wrap(sentence, 80)]


def _line(row: Row) -> str:
    found = row.measured
    planned = "-" if row.planned is None else f"{row.planned:,}"
    text = (
        f"{row.lever.label:<22}{found.residents:>10.1f}{planned:>9}{_times(row.gain):>7}{100 * found.wasted:>6.1f} %"
        f"{100 * found.hit_rate:>5.0f} %{found.rate:>8.0f}{_times(row.rate_gain):>7}"
    )
    return text if found.waited else f"{text} *"


def _lengths(bench: Bench) -> str:
    """What the lengths alone say of waste, each sequence at its full length."""
    lengths = bench.lengths
    total, whole = sum(lengths), len(lengths) * bench.limit
    blocks = sum(-(-length // 16) * 16 for length in lengths)
    return (
        f"lengths of {total / len(lengths):,.0f} tokens on average: at full length, reserving {bench.limit:,} for each "
        f"wastes {100 * (1 - total / whole):.1f} %, blocks of 16 waste {100 * (1 - total / blocks):.2f} %"
    )


def _together(rows: Sequence[Row]) -> list[str]:
    found = multiplied(rows)
    if found is None:
        return []
    product, together = found
    rates = {row.lever.key: row.measured.rate for row in rows}
    verdict = "they multiply" if abs(together / product - 1) < 0.05 else "they do not quite multiply here"
    return [
        f"paging, keeping and fp8 alone bring {product:.2f} times the residents, multiplied; together {together:.2f} "
        f"times: {verdict}. Tokens a second, all together: {rates['fp8'] / rates['whole']:.2f} times."
    ]


def _heads(model: ModelShape) -> list[str]:
    attention = model.attention
    if not isinstance(attention, GroupedQuery):
        return []
    per_token, full = token_bytes(model, "bfloat16"), token_bytes(multi_head(model), "bfloat16")
    return [
        f"grouped-query storage, by arithmetic: {attention.kv_heads} of {attention.heads} heads are stored, "
        f"{per_token:,.0f} bytes a token in bfloat16; all of them would be {full:,.0f}, {full / per_token:.2f} times"
    ]


def as_json(rows: Sequence[Row], bench: Bench) -> dict[str, Any]:
    """The same for programs; the keys are documented in docs/stack.md."""
    together = multiplied(rows)
    return {
        "cache_bytes": bench.cache_bytes,
        "max_model_len": bench.limit,
        "conversations": bench.count,
        "turns": bench.shape.turns,
        "shared_prefix": bench.shape.shared,
        "answer": bench.shape.answer,
        "rows": [
            {
                "lever": row.lever.key,
                **row.measured._asdict(),
                "planned": row.planned,
                "gain": row.gain,
                "rate_gain": row.rate_gain,
            }
            for row in rows
        ],
        "product_of_gains": together[0] if together else None,
        "gain_together": together[1] if together else None,
    }


def draw(rows: Sequence[Row], path: Path) -> None:
    """Residents, measured and planned, and tokens a second, as bars. Raises PlanError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlanError("--plot needs matplotlib: pip install matplotlib") from error

    figure = Figure(figsize=(8, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    places = range(len(rows))
    labels = [row.lever.label for row in rows]
    left.barh([at - 0.2 for at in places], [row.measured.residents for row in rows], 0.4, label="measured")
    left.barh([at + 0.2 for at in places], [row.planned or 0 for row in rows], 0.4, label="planned")
    left.set(title="requests resident at once", yticks=list(places), yticklabels=labels)
    left.invert_yaxis()
    left.legend()
    right.barh(list(places), [row.measured.rate for row in rows], color="tab:green")
    right.set(title="tokens per second", yticks=list(places), yticklabels=[""] * len(rows))
    right.invert_yaxis()
    figure.savefig(path, dpi=120)


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
