"""A whole log: where the prompts of each family part, what that costs, and the proof of each suspect by replay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from pageinn.explain.align import goes_on
from pageinn.explain.log import Log, Progress
from pageinn.explain.notes import notes
from pageinn.explain.pairs import compare
from pageinn.explain.prompts import Rewritten
from pageinn.explain.prove import Proof, prove
from pageinn.explain.rendering import Rendering
from pageinn.explain.replay import Match, replay
from pageinn.explain.report import Report
from pageinn.explain.suspects import Case, gather
from pageinn.explain.units import Units
from pageinn.traffic.record import Record


class Explained(NamedTuple):
    """A report; the log; its replay and the differences found; its prompts with all fixes that a fixed log may have."""

    report: Report
    log: Log
    matches: list[Match]
    cases: list[Case]
    written: list[Rewritten]


def explain(
    records: Iterable[Record],
    rendering: Rendering,
    block_size: int = 16,
    progress: Progress = lambda _stage, _count: None,
    units: Units | None = None,
    share_tenants: bool = False,
) -> Explained:
    """Find, prove and price what keeps the prompts of a log from sharing prefixes.

    block_size: tokens per block; hit rates count whole blocks. progress: called with a stage and a count of requests.
    units: those of another log that this one will be compared with. share_tenants: let tenants share prefixes.
    """
    log = Log(share_tenants=share_tenants) if units is None else Log(units, share_tenants=share_tenants)
    log.read(records, rendering, progress)
    matches, now = replay(log.packed, block_size, log.scopes)
    compared = compare(log, matches, progress)
    suspects = gather(case for case in compared.cases if case.parting.blamed)
    proof = prove(suspects, log, matches, now, rendering, block_size, progress)
    report = Report(
        requests=len(log.records),
        families=compared.families,
        block_size=block_size,
        now=now,
        fixed=proof.rate,
        new_share=compared.new,
        turns=_turns(log, proof),
        median_tokens=int(np.median([log.length(k) for k in range(len(log.packed))])) if log.packed else 0,
        findings=tuple(proof.findings),
        notes=tuple(notes(log, matches, compared, block_size)),
        assumed=tuple(rendering.assumed),
    )
    return Explained(report, log, matches, compared.cases, proof.written)


def _turns(log: Log, proof: Proof) -> float:
    """Requests to a conversation: by the log's sessions, or by which prompts, all fixed, begin with an earlier one."""
    sessions = {record.session for record in log.records}
    if sessions and "" not in sessions:
        return len(log.records) / len(sessions)
    begun = sum(
        match.earlier is None or not goes_on(proof.prompts[match.earlier].laid, prompt.laid)
        for prompt, match in zip(proof.prompts, proof.matches, strict=True)
    )
    return len(log.records) / begun if begun else 0.0
