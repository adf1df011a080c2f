"""Lengths of a log's or trace's requests, prompt and answer together."""

from __future__ import annotations

from collections.abc import Sequence

from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.plan.figures import PlanError
from pageinn.plan.lengths import Lengths, of_sample
from pageinn.traffic import BadRowError, BlockIds, Length, Record, Renderer, read


def of_trace(logs: Sequence[str], limit: int, renderer: Renderer) -> Lengths:
    """What `pageinn measure` takes, as a sample. Requests beyond the limit, which an engine refuses, are left out.

    Raises PlanError for a log with no request within the limit, ReadError for one that cannot be read.
    """
    reading = read(logs, ordered=False)
    unknown = beyond = 0
    found: list[int] = []
    for record in reading:
        tokens = _tokens(record, renderer)
        if tokens is None:
            unknown += 1
        elif tokens > limit:
            beyond += 1
        else:
            found.append(tokens)
    name = logs[0] if len(logs) == 1 else f"{logs[0]} and {len(logs) - 1} more"
    if not found:
        raise PlanError(f"{name}: no request of at most {limit} tokens; raise --max-model-len")
    said = [f"{len(found):,} requests of {name}"]
    if beyond:
        said.append(f"{beyond:,} beyond the limit left out")
    if unknown or reading.report.broken:
        said.append(f"{unknown + reading.report.broken:,} that cannot be read skipped")
    return of_sample(found, ", ".join(said))


def _tokens(record: Record, renderer: Renderer) -> int | None:
    """Prompt and answer; an answer whose length is not known counts as nothing. None if the prompt's is not known."""
    prompt = record.prompt
    if isinstance(prompt, BlockIds | Length):
        return max(1, prompt.tokens + (record.output_tokens or 0))
    try:
        rendered = renderer.render(record)
    except BadRowError:
        return None
    if rendered is None:
        return None
    answer = record.output_tokens
    if answer is None:
        answer = len(rendered.answer) // TOKEN_BYTES
    return max(1, len(rendered.prompt) // TOKEN_BYTES + answer)
