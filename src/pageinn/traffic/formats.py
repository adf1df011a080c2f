"""The formats whose rows are JSON, in the order in which a row is offered to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pageinn.traffic import answers, anthropic_bodies, block_traces, observability, openai_bodies, plain_rows, spans
from pageinn.traffic.envelope import Place
from pageinn.traffic.record import Record


class RowFormat(NamedTuple):
    """claims: whether a row is of this format. records: its records; raises BadRowError."""

    name: str
    claims: Callable[[Any], bool]
    records: Callable[[Any, Place], Iterator[Record]]


def _of_objects(claims: Callable[[dict[str, Any]], bool]) -> Callable[[Any], bool]:
    return lambda row: isinstance(row, dict) and claims(row)


#: Block-id traces are not among them: their block size is found from many rows at once.
ROW_FORMATS = [
    RowFormat("coding-agent", block_traces.claims_session, block_traces.session_records),
    RowFormat("litellm", observability.claims_litellm, observability.litellm_records),
    RowFormat("langfuse", observability.claims_langfuse, observability.langfuse_records),
    RowFormat("otel", spans.claims, spans.records),
    RowFormat("sharegpt", plain_rows.claims_sharegpt, plain_rows.sharegpt_records),
    RowFormat("anthropic", _of_objects(anthropic_bodies.claims), anthropic_bodies.records),
    RowFormat(
        "openai-batch",
        _of_objects(lambda row: openai_bodies.is_batch(row) and openai_bodies.claims(row)),
        openai_bodies.records,
    ),
    RowFormat("openai", _of_objects(openai_bodies.claims), openai_bodies.records),
    RowFormat("agent-trace", plain_rows.claims_agent, plain_rows.agent_records),
    RowFormat("token-ids", plain_rows.claims_ids, plain_rows.ids_records),
    RowFormat("prompts", plain_rows.claims_text, plain_rows.text_records),
    RowFormat("answers", answers.claims, answers.records),
]
BLOCK_TRACE = "block-trace"
LENGTHS = "lengths"
ENGINE_LOG = "engine-log"
NAMES = sorted([*(form.name for form in ROW_FORMATS), BLOCK_TRACE, LENGTHS, ENGINE_LOG])


def format_of(row: Any) -> RowFormat | None:
    """The first format that claims the row."""
    return next((form for form in ROW_FORMATS if form.claims(row)), None)
