"""What is expected of answers, against values by hand and by simulation."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from pageinn.scheduling.forecast import Claim, Forecast, Prospect
from pageinn.scheduling.lengths import ENOUGH, MAX_TENANTS, WINDOW, Curve, Length, Lengths, Underway


def nobody() -> Iterator[Underway]:
    return iter(())


def test_a_curve_without_cuts_is_the_share_of_longer_answers() -> None:
    """Ten answers of 10 … 100 tokens; half an answer longer than all is imagined."""
    curve = Curve(Length(tokens, False) for tokens in range(10, 101, 10))
    assert curve.beyond(0) == 1
    assert curve.beyond(9) == 1
    assert curve.beyond(10) == pytest.approx(9.5 / 10.5)
    assert curve.beyond(55) == pytest.approx(5.5 / 10.5)
    assert curve.beyond(100) == pytest.approx(0.5 / 10.5)
    assert curve.beyond(400) == pytest.approx(0.5 / 10.5 / 4)


def test_an_answer_that_was_cut_says_only_that_it_would_be_longer() -> None:
    """Kaplan and Meier by hand: 5 of 10 end at 10, 5 are cut at 20, of which nothing is known beyond."""
    curve = Curve([Length(10, False)] * 5 + [Length(20, True)] * 5)
    assert curve.beyond(10) == pytest.approx(5.5 / 10.5)
    assert curve.beyond(19) == pytest.approx(5.5 / 10.5)
    only_cut = Curve([Length(20, True)] * 5)
    assert [only_cut.beyond(20), only_cut.beyond(200)] == [1, 0.1]


def test_a_tenant_is_like_all_until_it_has_answers_of_its_own() -> None:
    lengths = Lengths()
    for _ in range(200):
        lengths.saw("short", 10, False)
    assert lengths.curve("short", nobody).beyond(20) < 0.02
    assert lengths.curve("new", nobody).beyond(20) < 0.02
    for _ in range(ENOUGH):
        lengths.saw("long", 1000, False)
    assert lengths.curve("long", nobody).beyond(900) > 0.98
    assert lengths.curve("short", nobody).beyond(20) < 0.02


def test_before_any_answer_all_doublings_are_as_likely() -> None:
    curve = Lengths().curve("anybody", nobody)
    assert [round(curve.beyond(1 << power) * 9.5 - 0.5) for power in range(4, 13)] == list(range(8, -1, -1))


def test_answers_under_way_keep_the_first_short_ones_from_being_taken_for_all() -> None:
    """Of 100 answers, 40 have ended after 10 tokens; the others are at 50."""
    lengths = Lengths()
    for _ in range(40):
        lengths.saw("a", 10, False)
    underway = [Underway("a", 50)] * 60 + [Underway("b", 5)] * 500
    assert lengths.curve("a", lambda: iter(underway)).beyond(20) == pytest.approx(60.5 / 100.5)


def test_what_is_remembered_is_bounded() -> None:
    lengths = Lengths()
    for number in range(MAX_TENANTS + 50):
        for _ in range(3):
            lengths.saw(f"t{number}", 7, False)
    for _ in range(3 * WINDOW):
        lengths.saw("busy", 100, False)
    assert len(lengths._tenants) == MAX_TENANTS
    assert len(lengths._all) == len(lengths._tenants["busy"]) == WINDOW


def test_a_claim_by_hand() -> None:
    """A choice with 20 tokens in 5 blocks of 4, of which 3 are its own; its answer ends after 6 or 12 tokens."""
    forecast = Forecast(4, 40)
    claim = forecast.claim(Prospect(20, 0, 12, 3), Curve([Length(6, False), Length(12, False)]))
    # At distances of 4, 7, 11 and 17 tokens, the last after its limit of 12: 1.5 of 2.5 answers are longer than 6.
    assert claim.most == [4, 5, 6, 6]
    assert claim.mean == pytest.approx([4, 5 * 0.6, 6 * 0.6, 6 * 0.6])
    assert claim.variance == pytest.approx([0, 25 * 0.24, 36 * 0.24, 36 * 0.24])
    assert claim.exclusive == 3


def test_an_answer_survives_as_far_as_the_curve_says() -> None:
    """Across its steps, and past its end: each distance by itself."""
    curve = Curve([Length(6, False), Length(12, False), Length(12, False), Length(40, True)])
    for generated in (0, 1, 5, 6, 11, 12, 39, 40, 41, 90):
        distances = [1, 2, 5, 6, 7, 12, 30, 34, 40, 41, 100]
        expected = [curve.beyond(generated + each - 1) / curve.beyond(generated) for each in distances]
        assert curve.survival(generated, distances) == expected


def test_what_was_asked_before_changes_no_answer() -> None:
    chance = random.Random(3)
    curve = Curve(Length(chance.randrange(1, 800), chance.random() < 0.1) for _ in range(200))
    often = Forecast(16, 4096)
    claims, answers = [], []
    for key in range(120):
        limit = chance.choice([1, 20, 300, 2000])
        claims.append(often.claim(Prospect(chance.randrange(1, 900), chance.randrange(300), limit, 9), curve))
        often.put(key, claims[-1])
        once = Forecast(16, 4096)
        for other, claim in enumerate(claims):
            once.put(other, claim)
        room = chance.randrange(2500)
        asked = often.claim(Prospect(chance.randrange(1, 900), 0, chance.choice([1, 100, 1500]), 5), curve)
        answers.append(often.fits(asked, room, 3.0))
        assert answers[-1] == once.fits(asked, room, 3.0)
    assert 20 < sum(answers) < 100


def test_claims_that_come_and_go_leave_nothing() -> None:
    forecast = Forecast(16, 4096)
    curve = Curve(Length(tokens, False) for tokens in range(1, 500, 7))
    chance = random.Random(1)
    for number in range(20_000):
        claim = forecast.claim(Prospect(chance.randrange(1, 900), 0, 400, chance.randrange(1, 60)), curve)
        forecast.put(number % 50, claim)
    for key in range(50):
        forecast.drop(key)
    assert forecast.exclusive == 0
    assert forecast._most == [0] * len(forecast._most)
    assert max(map(abs, forecast._mean)) < 1e-6


def test_the_forecast_covers_what_happens() -> None:
    """A hundred choices with answers drawn from the curve, forty times: their sum exceeds three deviations in one at
    most, and half of what is asked for is used at least.
    """
    exceeded = 0
    for seed in range(40):
        peak, room = _peak_and_room(random.Random(seed))
        exceeded += peak > room
        assert room <= 2 * peak
    assert exceeded <= 1


def _peak_and_room(chance: random.Random) -> tuple[int, int]:
    answers = [min(int(chance.lognormvariate(5, 0.8)) + 1, 4000) for _ in range(800)]
    curve = Curve(Length(answer, False) for answer in answers)
    forecast = Forecast(16, 4000)
    drawn = []
    for number in range(100):
        prompt = chance.randrange(1, 300)
        forecast.put(number, forecast.claim(Prospect(prompt, 0, 4000, -(-prompt // 16)), curve))
        drawn.append((prompt, chance.choice(answers)))
    peak = max(
        sum(-(-(prompt + distance) // 16) for prompt, answer in drawn if answer > distance)
        for distance in range(0, 4000, 16)
    )
    nothing = Claim(0, [0.0] * 20, [0.0] * 20, [0] * 20)
    return peak, next(room for room in range(1, 100_000, 20) if forecast.fits(nothing, room, 3.0))
