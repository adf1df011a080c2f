"""Records of a log as jobs: when they arrive, what their prompts share, how long their answers get."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from pageinn.memory.scopes import DEFAULT, Scope
from pageinn.memory.tokens import TOKEN_BYTES, common_blocks
from pageinn.simulate.jobs import BlockTokens, Job, job
from pageinn.traffic import BadRowError, BlockIds, Chat, Length, Record, Renderer

#: Answers of a log that does not say how long they were.
DEFAULT_OUTPUT = 128


@dataclass(frozen=True)
class Arrivals:
    """When requests come. speed: how many times faster than in the log. gap: seconds between two without times.

    max_tokens: the limit that each request states; None takes the longest answer of the log, which every request of it
    keeps to.
    """

    speed: float = 1.0
    gap: float = 1.0
    max_tokens: int | None = None


class Workload(NamedTuple):
    """Jobs in order of time; skipped: rows that could not be rendered; assumed: in words, for the report."""

    jobs: list[Job]
    skipped: list[str]
    assumed: list[str]


class _Drawn(NamedTuple):
    record: Record
    prompt: bytes
    answer: bytes
    output: int
    breakpoints: tuple[int, ...]


def workload_of(records: Iterable[Record], renderer: Renderer, arrivals: Arrivals) -> Workload:
    """The jobs of a log, its records in order of time. Raises TokenRangeError."""
    drawn, skipped, blocks = [], [], BlockTokens()
    guessed = 0
    for record in records:
        try:
            prompt, answer = _tokens(record, renderer, blocks)
        except BadRowError as error:
            skipped.append(f"{record.source}:{record.line}: {error}")
            continue
        known = record.output_tokens if record.output_tokens is not None else len(answer) // TOKEN_BYTES or None
        guessed += known is None
        length = max(DEFAULT_OUTPUT if known is None else known, 1)
        drawn.append(_Drawn(record, prompt, answer, length, _breakpoints(record, prompt, renderer)))
    longest = max((one.output for one in drawn), default=1)
    limit = longest if arrivals.max_tokens is None else arrivals.max_tokens
    assumed = [*renderer.assumed, f"each request states max_tokens {limit:,}"]
    lengths = sum(isinstance(one.record.prompt, Length) for one in drawn)
    if lengths:
        assumed.append(f"{lengths:,} prompts known by their length only share nothing")
    models = len({one.record.model for one in drawn if one.record.model})
    if models > 1:
        assumed.append(f"requests of {models:,} models are all served by one, which they share")
    if guessed:
        assumed.append(f"{guessed:,} answers of unknown length have {DEFAULT_OUTPUT} tokens")
    if any(one.record.time is None for one in drawn):
        assumed.append(f"requests without a time come {arrivals.gap:g} s after the one before them")
    if arrivals.speed != 1.0:
        assumed.append(f"requests come {arrivals.speed:g} times as fast as in the log")
    jobs = _timed(drawn, arrivals, limit)
    if any(one.breakpoints for one in drawn):
        jobs = [one._replace(breakpoints=each.breakpoints) for one, each in zip(jobs, drawn, strict=True)]
    return Workload(jobs, skipped, assumed)


def _tokens(record: Record, renderer: Renderer, blocks: BlockTokens) -> tuple[bytes, bytes]:
    prompt = record.prompt
    if isinstance(prompt, BlockIds):
        ids = [(record.session, one) for one in prompt.ids] if prompt.local else prompt.ids
        return blocks.prompt(ids, prompt.block_size, prompt.tokens), b""
    if isinstance(prompt, Length):
        return blocks.fresh(prompt.tokens), b""
    rendered = renderer.render(record)
    assert rendered is not None
    return rendered.prompt, rendered.answer


def _breakpoints(record: Record, prompt: bytes, renderer: Renderer) -> tuple[int, ...]:
    """Where they stand in the prompt: as far as the conversation up to there is rendered alike.

    One whose part alone the template refuses is left out.
    """
    found = []
    for part in record.prompt.breakpoints if isinstance(record.prompt, Chat) else ():
        try:
            rendered = renderer.render(replace(record, prompt=part, output=None))
        except BadRowError:
            renderer.assumed["breakpoints where the chat template takes no end are left out"] = None
            continue
        assert rendered is not None
        found.append(common_blocks(rendered.prompt, 0, prompt, 0, TOKEN_BYTES))
    return tuple(sorted(set(found)))


def _timed(drawn: list[_Drawn], arrivals: Arrivals, limit: int) -> list[Job]:
    jobs, now, began = [], 0.0, None
    for number, (record, prompt, answer, output, _) in enumerate(drawn):
        if record.time is None:
            now += arrivals.gap if number else 0.0
        else:
            began = record.time if began is None else began
            now = max(now, (record.time - began) / arrivals.speed)
        scope = Scope(record.tenant) if record.tenant else DEFAULT
        jobs.append(job(number, now, prompt, output, limit, scope, answer, record.session))
    return jobs
