"""One request of a log or trace, whatever format it was written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Chat(NamedTuple):
    """Messages in OpenAI's shape, tools in OpenAI's shape, and what else the chat template is told.

    breakpoints: the conversation up to each of Anthropic's `cache_control`, as far as the body sets any.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    template_kwargs: dict[str, Any]
    breakpoints: tuple[Chat, ...] = ()


class Text(NamedTuple):
    """A prompt that is text already, rendered by whoever wrote the log."""

    text: str


class Tokens(NamedTuple):
    """Packed token ids (pageinn.memory.tokens)."""

    packed: bytes


class BlockIds(NamedTuple):
    """A prompt whose content is known only as ids of its blocks: equal ids, equal content up to there.

    block_size: tokens per id. tokens: the prompt's length; a partly filled last block has an id too if the trace gives
    it one. local: ids mean something inside one session only.
    """

    ids: list[int]
    block_size: int
    tokens: int
    local: bool


class Length(NamedTuple):
    """Only the prompt's length is known: no reuse can be claimed."""

    tokens: int


Prompt = Chat | Text | Tokens | BlockIds | Length


class Reported(NamedTuple):
    """What the provider or engine said of one prompt, brought to one meaning.

    prompt: all prompt tokens, cached or not (OpenAI's prompt_tokens; Anthropic's input + read + creation). cached:
    those read from a cache. written: those written to it, where that is counted.
    """

    prompt: int
    cached: int
    written: int


@dataclass(frozen=True, slots=True)
class Record:
    """A request. time: seconds from any origin, or None where the log has no clock.

    source and line say where it was read, for messages. tenant and session are empty where the log names none.
    output_tokens is None where it is not known. output: the answer's text, where the log has it. duration: seconds
    from arrival to the end, where the log says so.
    """

    source: str
    line: int
    prompt: Prompt
    time: float | None = None
    tenant: str = ""
    session: str = ""
    model: str = ""
    output_tokens: int | None = None
    output: str | None = None
    reported: Reported | None = None
    duration: float | None = None
