"""The building blocks against dumb references: alignment, replay, stretches of tokens, values, masks."""

from __future__ import annotations

import os

import numpy as np
import pytest
from faulty_logs import rows
from hypothesis import given
from hypothesis import strategies as st

from pageinn.explain.align import align
from pageinn.explain.parts import Part, pieces_of_text
from pageinn.explain.prompts import Edit, edited, spliced
from pageinn.explain.replay import replay
from pageinn.explain.tokens import Tokens
from pageinn.explain.units import Units, cut
from pageinn.explain.values import granularity, masked, shape
from pageinn.memory.tokens import pack
from pageinn.traffic import open_renderer

SMALL = st.lists(st.integers(0, 6), max_size=24)


@given(SMALL, SMALL)
def test_runs_are_equal_and_in_order(a: list[int], b: list[int]) -> None:
    runs = align(np.array(a, dtype=np.int32), np.array(b, dtype=np.int32))
    done_a = done_b = 0
    for run in runs:
        assert run.length > 0
        assert run.a >= done_a
        assert run.b >= done_b
        assert a[run.a : run.a + run.length] == b[run.b : run.b + run.length]
        done_a, done_b = run.a + run.length, run.b + run.length
    head = len(os.path.commonprefix([a, b]))  # type: ignore[type-var]  # noqa: RUF071
    assert (runs[0].a, runs[0].b) == (0, 0) if head else True
    assert sum(run.length for run in runs) >= head


@given(SMALL, st.lists(st.integers(10, 99), min_size=1, max_size=5), SMALL)
def test_what_was_put_into_the_middle_is_all_that_differs(head: list[int], new: list[int], tail: list[int]) -> None:
    a, b = np.array(head + tail, dtype=np.int32), np.array(head + new + tail, dtype=np.int32)
    assert sum(run.length for run in align(a, b)) == len(a)


@given(st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=12), st.integers(1, 4))
def test_replay_finds_the_longest_prefix_of_any_earlier_prompt(prompts: list[list[int]], block: int) -> None:
    scopes = [sum(prompt) % 2 for prompt in prompts]
    matches, rate = replay([pack(prompt) for prompt in prompts], block, scopes)
    for number, prompt in enumerate(prompts):
        same = [one for one, scope in zip(prompts[:number], scopes, strict=False) if scope == scopes[number]]
        longest = max((len(os.path.commonprefix([prompt, one])) for one in same), default=0)  # type: ignore[type-var]  # noqa: RUF071
        assert matches[number].tokens == longest
        earlier = matches[number].earlier
        if longest:
            assert earlier is not None
            assert prompts[earlier][:longest] == prompt[:longest]
            assert earlier < number
    assert rate.matched == sum(match.tokens for match in matches)
    assert rate.in_blocks == sum(match.tokens // block * block for match in matches)


def test_stretches_give_the_tokens_of_the_whole(model_name: str) -> None:
    """Of the default model's tokenizer, on all prompts there are, and cut anywhere."""
    renderer = open_renderer(model_name)
    tokens = Tokens(renderer.encode)
    for row in rows():
        for text in (row.input, row.input[37:], row.output, row.input.replace("\n", "\r\n")):
            for special in (False, True):
                assert tokens.pack(text, special) == renderer.encode(text, special)
    assert tokens.by_stretches


def test_a_tokenizer_that_looks_further_is_given_the_whole() -> None:
    def encode(text: str, special: bool) -> bytes:
        return pack([len(text), int(special)])

    tokens = Tokens(encode)
    text = rows()[0].input
    assert tokens.pack(text) == encode(text, False)
    assert tokens.pack(text, True) == encode(text, True)
    assert not tokens.by_stretches


@given(st.text(alphabet="ab .,\n{}\"'", max_size=600))
def test_units_are_the_text(text: str) -> None:
    assert "".join(cut(text)) == text
    units = Units()
    laid = units.lay(pieces_of_text(text))
    assert "".join(piece.text for piece in units.pieces(laid)) == text


@given(st.data())
def test_edits_and_splices(data: st.DataObject) -> None:
    units = Units()
    lines = data.draw(st.lists(st.sampled_from(["a\n", "b\n", "c\n"]), min_size=1, max_size=8))
    text = "<|im_start|>user\n" + "".join(lines)
    laid = units.lay(pieces_of_text(text))
    start = data.draw(st.integers(1, len(laid.units) - 1))
    end = data.draw(st.integers(start, len(laid.units)))
    new = edited(laid, [Edit(start, end, "x\ny\n")], units)
    before = units.text(laid.units[:start]), units.text(laid.units[end:])
    assert units.text(new.units) == before[0] + "x\ny\n" + before[1]
    assert new.part_at(len(new.units) - 1) == Part("message", 1, "user")
    assert units.text(spliced(laid, start, new, start).units) == units.text(new.units)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("2026-03-14T09:26:53.123Z", ["moment"]),
        ("2026-03-14 09:26", ["moment"]),
        ("Saturday, March 14, 2026 at 9:26 PM", ["date", "time"]),
        ("14 Mar 2026", ["date"]),
        ("3/14/2026", ["date"]),
        ("at 09:26:53", ["time"]),
        ("cd613e30-d8f1-4adf-91b7-584a2265b1f5", ["uuid"]),
        ("/tmp/cd613e30-d8f1-4adf-91b7-584a2265b1f5/x", ["uuid"]),
        ("req_8f3a91cc", ["id"]),
        ("deadbeef01", ["id"]),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", ["id"]),
        ("a.b@c.org", ["email"]),
        ("1773480413", ["epoch"]),
        ("1773480413123", ["epoch"]),
        ("17 of 42", ["number", "number"]),
        ("no values in v2.1 of python3", []),
    ],
)
def test_values_are_known_by_their_form(text: str, kinds: list[str]) -> None:
    assert [value.kind for value in shape(text).values] == kinds


def test_the_granularity_is_what_varies() -> None:
    assert granularity(["09:26:00", "09:27:00"]) == "minute"
    assert granularity(["2026-03-14 09:00:00", "2026-03-14 10:00:00"]) == "hour"
    assert granularity(["2026-03-14T00:00:00Z", "2026-03-15T00:00:00Z"]) == "day"
    assert granularity(["09:26:53.1", "09:26:53.2"]) == "sub-second"
    assert granularity(["9 PM", "10 PM"]) == "hour"


@given(st.text(max_size=80))
def test_a_mask_shows_no_letter_and_no_digit(text: str) -> None:
    """But for those that stand for all others, and for the escapes of line ends."""
    form = masked(text, limit=500)
    assert all(not char.isalpha() or char in "xXrnt" for char in form)
    assert set("123456789").isdisjoint(form)
    assert len(masked(text, limit=20)) <= 20


def test_a_text_of_words_without_blanks_takes_no_time_to_mention() -> None:
    """Tried from each of its words on for an address, it would take minutes, in which nothing else runs."""
    assert shape("a." * 100_000 + " 17").values == (("number", 200_001, 200_003),)
    assert [value.kind for value in shape(f"to {'a.' * 31}b@example.org").values] == ["email"]
