"""What the comparison computes from its rows, against values worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from peers.agreement import agreement
from peers.load import Load
from peers.record import Record, quantile, spread
from peers.report import report


def record() -> Record:
    made = Record({"processor": "P", "cores": 2, "avx512": False})
    for engine, seconds in {
        "pageinn": (10.0, 12.0, 8.0),
        "openvino": (9.0, 18.0, 16.0),
        "llama.cpp": (20.0, 15.0),
        "transformers": (1.0,),
    }.items():
        for run, taken in enumerate(seconds, 1):
            made.add(engine, "HTTP", "float32", "none", run, Load(taken, 100, 10, 0, [taken / 10, taken / 5]))
    return made


def test_ratios_pair_runs_and_take_the_best_peer_of_each() -> None:
    """The baseline is no peer, however fast; a run that a peer lacks is left to the others."""
    made = record()
    assert made.ratios("llama.cpp", "none") == [2.0, 1.25]
    assert made.best_ratios("none") == [0.9, 1.25, 2.0]
    assert spread(made.best_ratios("none")) == (1.25, 0.9, 2.0)


def test_rows_are_kept_and_added_to(tmp_path: Path) -> None:
    record().write(tmp_path / "rows.json")
    again = Record.read(tmp_path / "rows.json")
    assert again == record_at(again)
    assert again.has("llama.cpp", "none", 2)
    assert not again.has("llama.cpp", "none", 3)


def record_at(other: Record) -> Record:
    """The same rows, with the other's times of day."""
    made = record()
    made.rows = [
        row.__class__(**{**vars(row), "at": known.at}) for row, known in zip(made.rows, other.rows, strict=True)
    ]
    return made


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2.0), (0.95, 4.0), (0.25, 1.0), (0.0, 1.0)])
def test_quantiles_are_nearest_ranks(share: float, expected: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], share) == expected


def test_agreement_counts_equal_places_and_common_prefixes() -> None:
    found = agreement([[1, 2, 3, 4], [9, 2, 3, 9]], [[1, 2, 9, 4], [1, 2, 3, 4]])
    assert found == (1.0, 5 / 8)


def test_report_says_what_is_met_and_fits_a_terminal() -> None:
    made = record()
    made.answers = {"pageinn": [[1, 2]], "transformers": [[1, 3]]}
    said = report(made)
    assert "none: best peer / pageinn" in said
    assert "1.25 (0.90-2.00)  met" in said
    assert "50.0 %" in said
    assert max(map(len, said.splitlines())) <= 80
