"""What a step says of speed."""

from __future__ import annotations

import pytest

from pageinn.memory.tokens import pack
from pageinn.scheduling.cost import Measured
from pageinn.scheduling.measuring import Copied, measured
from pageinn.scheduling.plan import Plan, Work

PREFILL = Work(0, 4, pack([7, 7, 7]), 4, False)
DECODE = Work(1, 9, pack([7]), 9, True)
MOVES = Copied(blocks_out=4, out_seconds=0.25, blocks_in=2, in_seconds=0.5)


def plan(*work: Work) -> Plan:
    return Plan([], [], [], [], list(work), [], [])


def test_prefill_is_measured_without_the_copies_beside_it() -> None:
    """Rows at 4, 5, 6 and 9 attend to 5 + 6 + 7 + 10 keys; of 2 s, 0.75 s went into copies."""
    found = measured(plan(PREFILL, DECODE), 2.0, MOVES)
    assert found == Measured(4, 28, 1.25, 4, 0.25, 2, 0.5)


def test_a_step_of_decodes_says_nothing_of_prefill_but_its_copies_count() -> None:
    assert measured(plan(DECODE), 1.0, Copied()) is None
    found = measured(plan(DECODE), 1.0, MOVES)
    assert found is not None
    assert (found.tokens, found.pairs, found.blocks_out) == (0, 0, 4)
    assert found.in_seconds == pytest.approx(0.5)
