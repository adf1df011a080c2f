"""Calls in an answer's text: the same however the text was cut, and what is no call stays text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pageinn.text.tool_calls import ToolCall, ToolCallParser

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
F = ToolCall("f", '{"a": 1}')


def parse(*pieces: str) -> list[str | ToolCall]:
    """What was found, adjoining text joined."""
    parser = ToolCallParser()
    found = [item for piece in pieces for item in parser.feed(piece)] + parser.feed("", last=True)
    joined: list[str | ToolCall] = []
    for item in found:
        if isinstance(item, str) and joined and isinstance(joined[-1], str):
            joined[-1] += item
        else:
            joined.append(item)
    return joined


ANSWERS = [
    ("", []),
    ("Hello <b>\n", ["Hello <b>\n"]),
    (CALL, [F]),
    ("Let me see.\n" + CALL, ["Let me see.", F]),
    ("Let me see.\n\n" + CALL, ["Let me see.\n", F]),
    (CALL + "\n" + CALL, [F, F]),
    (CALL + CALL + " \n", [F, F]),
    (CALL + "\nDone.", [F, "\nDone."]),
    (CALL.removesuffix("\n</tool_call>"), [F]),
    (CALL.removesuffix("ol_call>"), [F]),
    ('<tool_call>{"name":"g","arguments":{"t":"</tool_call> <tool_call> } \\" \\\\"}}</tool_call>',
     [ToolCall("g", '{"t":"</tool_call> <tool_call> } \\" \\\\"}')]),
    ('<tool_call>{"arguments" : { "x" : [ {} , -1.5e3 ] } , "id": null, "name":"gé"}</tool_call>',
     [ToolCall("gé", '{ "x" : [ {} , -1.5e3 ] }')]),
    ('<tool_call>{"name": "f", "arguments": {"b": 2}, "arguments": {"a": 1}}</tool_call>', [F]),
]  # fmt: skip

NO_CALLS = [
    "<tool_call>",
    "a\n<tool_call>",
    "a <tool",
    "<tool_call>\nnothing</tool_call>",
    '<tool_call>{"name": "f"}</tool_call>',
    '<tool_call>{"name": "", "arguments": {}}</tool_call>',
    '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
    '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": "two\nlines"}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {}}} \n</tool_call>',
    '<tool_call>{"name": "f", "arguments": {}} and more</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": 1',
    '<tool_call>["f", {}]</tool_call>',
    "<tool_call>" + '{"a":' * 5000 + "1" + "}" * 5000 + "</tool_call>",
]


@pytest.mark.parametrize(("text", "expected"), ANSWERS)
def test_calls_and_text(text: str, expected: list) -> None:
    assert parse(text) == expected
    for call in expected:
        if isinstance(call, ToolCall):
            assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize("text", NO_CALLS)
def test_what_is_no_call_stays_text_to_the_letter(text: str) -> None:
    assert parse(text) == [text]


@pytest.mark.parametrize("text", [text for text, _ in ANSWERS] + [text for text in NO_CALLS if len(text) < 1000])
def test_every_cut_in_three_and_every_single_character_gives_the_same(text: str) -> None:
    whole = parse(text)
    assert parse(*text) == whole
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            assert parse(text[:first], text[first:second], text[second:]) == whole


def test_a_broken_call_does_not_hide_the_next() -> None:
    broken = '<tool_call>\n{"name": "f", "arguments": {}\n</tool_call>'
    assert parse(broken + "\n" + CALL) == [broken, F]
    assert parse("<tool_call>" + CALL) == ["<tool_call>", F]
    assert parse(CALL + "\n" + broken) == [F, "\n" + broken]


def test_text_before_a_call_is_given_out_at_once() -> None:
    parser = ToolCallParser()
    assert parser.feed("Let me see.") == ["Let me see."]
    assert parser.feed("\n<tool_") == []
    assert parser.feed("box>") == ["\n<tool_box>"]
    assert parser.feed("<tool_call>{") == []


SNIPPETS = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "\n",
        " ",
        "x",
        '{"name": "f", "arguments": {"a": 1}}',
        "{",
        "}",
        '"',
        "\\",
        CALL,
        "<",
    ]
)


@given(st.lists(SNIPPETS, max_size=12).map("".join), st.data())
def test_any_text_any_cut(text: str, data: st.DataObject) -> None:
    whole = parse(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(*pieces) == whole
    if not any(isinstance(item, ToolCall) for item in whole):
        assert "".join(whole) == text
    # Nothing is lost but the format's own words and white space.
    said = "".join(item if isinstance(item, str) else '{"name": "f", "arguments": {"a": 1}}' for item in whole)
    calls = sum(isinstance(item, ToolCall) for item in whole)
    bare = "".join(text.split())
    assert len(bare) - len("".join(said.split())) <= calls * len("<tool_call></tool_call>")


def test_a_long_hostile_answer_takes_no_quadratic_time() -> None:
    for text in ("<tool_call>{" * 20_000, "\n" * 20_000, "<tool_call>" + '{"a' * 20_000, CALL + " " * 20_000):
        parse(*(text[i : i + 12] for i in range(0, len(text), 12)))
