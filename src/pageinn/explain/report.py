"""What an explanation says, as plain values: the reports in text, JSON and HTML are written from these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pageinn.explain.kinds import Kind
from pageinn.explain.parts import Part
from pageinn.explain.replay import Rate


class Position(NamedTuple):
    """tokens: those in front of it, out of `of`. line: from 1 in its part. column: characters in front of it there."""

    tokens: int
    of: int
    line: int
    column: int


class Example(NamedTuple):
    """What differs in two requests, unmasked: line and name of the source, and the text of each."""

    earlier_request: str
    later_request: str
    earlier: str
    later: str


class Share(NamedTuple):
    """A value that a fault takes, unmasked, and how many requests parted at it."""

    text: str
    requests: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault that was proved: with its span rewritten, the replay matches `tokens` more.

    requests: those that match more. times: how often prompts parted at it. values: distinct ones seen there.
    before, after: the replay without and with its fix, the fixes of the findings above it in both.
    written: whether a fixed log has it. added, removed: names of tools.
    """

    kind: Kind
    detail: str
    part: Part
    position: Position
    requests: int
    times: int
    values: int
    tokens: int
    before: Rate
    after: Rate
    fix: str
    written: bool
    example: Example
    shares: tuple[Share, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class Note(NamedTuple):
    """What may look like a fault and is none, or is not the prompts'. kind: one of docs/explain.md's list."""

    kind: str
    requests: int
    tokens: int
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """requests: those that were explained. families: sizes of the groups of prompts that resemble each other.

    now, fixed: the replay as logged, and with all that was found fixed. new_share: content that no earlier prompt held,
    in any place. turns: requests to a conversation. assumed: of the prompts, by who rendered them.
    """

    requests: int
    families: tuple[int, ...]
    block_size: int
    now: Rate
    fixed: Rate
    new_share: float
    turns: float
    median_tokens: int
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...]
    assumed: tuple[str, ...]
