"""The intervals that the benchmark of levers gives, against a value worked out by hand."""

from __future__ import annotations

import pytest

from levers import T, loss


def test_loss_is_the_mean_over_pairs_within_students_interval() -> None:
    """Two pairs of +1 % and +3 %: the mean's standard error is 1 %, and t with one degree of freedom 12.706."""
    found = loss([(1.0, 1.01), (2.0, 2.06)])
    assert found.mean == pytest.approx(0.02)
    assert (found.low, found.high) == pytest.approx((0.02 - 0.12706, 0.02 + 0.12706))


def test_students_t_for_ten_pairs() -> None:
    """The table's value for nine degrees of freedom."""
    assert T[9] == 2.262
