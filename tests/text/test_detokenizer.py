"""Streamed text equals plain text, and stop strings never leak (field case G3)."""

from __future__ import annotations

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from pageinn.text.detokenizer import Detokenizer
from pageinn.text.tokenizer import Tokenizer


def plain(data: bytes, stops: list[str]) -> str:
    """The text before the first stop string to be completed, by brute force over all decoded at once."""
    text = data.decode(errors="replace")
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)]
    return text


def pieces_of(tokenizer: Tokenizer, data: bytes, cuts: list[int], stops: list[str]) -> tuple[list[str], bool]:
    """What comes out, piece by piece, when the bytes arrive cut into these runs of one-byte tokens."""
    byte_token = {exact: i for i, exact in enumerate(tokenizer.token_bytes)}
    made = Detokenizer(tokenizer, stops)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    out = []
    for start, end in itertools.pairwise(edges):
        piece = made.push([byte_token[data[i : i + 1]] for i in range(start, end)])
        out.append(piece.text)
        if piece.stopped:
            return out, True
    return [*out, made.finish()], False


SMALL = st.text(alphabet="ab é🙂", max_size=24)
BYTES = st.one_of(
    SMALL.map(str.encode),
    st.binary(max_size=12),
    st.tuples(SMALL, st.binary()).map(lambda t: t[0].encode() + t[1]),
)
STOPS = st.lists(st.text(alphabet="ab é🙂\ufffd", min_size=1, max_size=5), max_size=4)


@given(data=BYTES, cuts=st.lists(st.integers(min_value=0, max_value=99), max_size=12), stops=STOPS)
@example(data=b"aab", cuts=[1, 2], stops=["ab"])
@example(data="🙂".encode()[:3], cuts=[1, 2], stops=["\ufffd"])
@example(data=b"abababac", cuts=[3, 5], stops=["ababac", "bb"])
def test_any_split_gives_the_plain_text(
    byte_tokenizer: Tokenizer, data: bytes, cuts: list[int], stops: list[str]
) -> None:
    """Field case G3: whatever the pieces, the same text, and nothing of a stop string in any of them."""
    out, _ = pieces_of(byte_tokenizer, data, cuts, stops)
    expected = plain(data, stops)
    assert "".join(out) == expected
    for i in range(len(out)):
        assert expected.startswith("".join(out[: i + 1]))


def test_a_stop_string_over_two_tokens_is_held_back(byte_tokenizer: Tokenizer) -> None:
    """Field case G3, by hand."""
    out, stopped = pieces_of(byte_tokenizer, b"one END two", [5, 6], ["END"])
    assert (out, stopped) == (["one ", "", ""], True)


def test_a_false_alarm_is_let_out(byte_tokenizer: Tokenizer) -> None:
    out, stopped = pieces_of(byte_tokenizer, b"one ENd", [6], ["END"])
    assert (out, stopped) == (["one ", "ENd", ""], False)


def test_of_two_stop_strings_the_first_complete_one_counts(byte_tokenizer: Tokenizer) -> None:
    assert pieces_of(byte_tokenizer, b"abcdef", [], ["abcdef", "cd"]) == (["ab"], True)
    assert pieces_of(byte_tokenizer, b"abcdef", [], ["cd", "bcd"]) == (["a"], True)


def test_a_character_over_tokens_waits(byte_tokenizer: Tokenizer) -> None:
    out, _ = pieces_of(byte_tokenizer, "a🙂".encode(), [2, 4], [])
    assert out == ["a", "", "🙂", ""]


def test_control_tokens_do_not_show(tokenizer: Tokenizer) -> None:
    assert Detokenizer(tokenizer).push(tokenizer.encode("a<|im_end|>b")).text == "ab"
