"""The JSON file that runs are added to, and what is computed from all of them."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from .load import Load

OURS = "pageinn"
#: Does not serve: it answers one request after another, so it is no peer, but has a bar of its own.
BASELINE = "transformers"


@dataclass(frozen=True)
class Row:
    """One run of one workload on one engine. at: when, in seconds since the epoch."""

    engine: str
    interface: str
    precision: str
    workload: str
    run: int
    at: float
    seconds: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    ttft: list[float]


class Spread(NamedTuple):
    median: float
    least: float
    most: float


@dataclass
class Record:
    """All rows so far. answers: each engine's, greedy, to the same prompts. starts: seconds from command to ready."""

    machine: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    answers: dict[str, list[list[int]]] = field(default_factory=dict)
    starts: dict[str, list[float]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None) -> Record:
        if path is None or not path.exists():
            return cls(machine())
        known = json.loads(path.read_text())
        return cls(**{**known, "rows": [Row(**row) for row in known["rows"]]})

    def write(self, path: Path) -> None:
        """Whole or not at all, so that an interrupted run loses its last row at most."""
        beside = path.with_name(path.name + ".part")
        beside.write_text(json.dumps(asdict(self)))
        os.replace(beside, path)

    def add(self, engine: str, interface: str, precision: str, workload: str, run: int, load: Load) -> None:
        self.rows.append(Row(engine, interface, precision, workload, run, time.time(), *load))

    def has(self, engine: str, workload: str, run: int) -> bool:
        return any((row.engine, row.workload, row.run) == (engine, workload, run) for row in self.rows)

    def of(self, engine: str, workload: str) -> dict[int, Row]:
        """Its rows by run."""
        return {row.run: row for row in self.rows if (row.engine, row.workload) == (engine, workload)}

    def engines(self, workload: str) -> list[str]:
        """Those with rows, ours first."""
        found = dict.fromkeys(row.engine for row in self.rows if row.workload == workload)
        return sorted(found, key=lambda name: (name != OURS, name == BASELINE))

    def ratios(self, engine: str, workload: str) -> list[float]:
        """Its seconds over ours, in each run that both have: the machine's pace drifts from run to run."""
        ours, theirs = self.of(OURS, workload), self.of(engine, workload)
        return [theirs[run].seconds / ours[run].seconds for run in sorted(ours.keys() & theirs.keys())]

    def best_ratios(self, workload: str) -> list[float]:
        """The fastest peer's seconds over ours, by run."""
        ours = self.of(OURS, workload)
        peers = [self.of(name, workload) for name in self.engines(workload) if name not in (OURS, BASELINE)]
        return [
            min(rows[run].seconds for rows in peers if run in rows) / ours[run].seconds
            for run in sorted(ours)
            if any(run in rows for rows in peers)
        ]


def spread(values: Iterable[float]) -> Spread:
    found = sorted(values)
    return Spread(median(found), found[0], found[-1])


def quantile(ordered: list[float], share: float) -> float:
    """The nearest rank of values in order."""
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def machine() -> dict[str, Any]:
    """What a reader needs to compare: processor, cores that may be used, and the vector units it has."""
    about = _processor()
    return {
        "processor": about["model name"],
        "cores": len(os.sched_getaffinity(0)),
        "avx512": "avx512" in about["flags"],
        "bfloat16": best_dtype() == "bfloat16",
        "python": platform.python_version(),
    }


def best_dtype() -> str:
    """bfloat16 where the processor multiplies it, which is faster there than float32."""
    return "bfloat16" if {"avx512_bf16", "amx_bf16"} & set(_processor()["flags"].split()) else "float32"


def _processor() -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}
