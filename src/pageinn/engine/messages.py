"""What server and engine say to each other. Plain values only, so that the two can live in two processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from pageinn.memory.retention import Retain
from pageinn.memory.scopes import DEFAULT, Scope
from pageinn.memory.shares import Share
from pageinn.memory.view import MemoryView


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens. Meanings and defaults follow vLLM's; `validate` is done by the engine's `check_request`.

    max_tokens: 0 computes the prompt and generates nothing.
    temperature: 0 is greedy. top_k: 0 is off. seed: None lets the engine draw one at arrival.
    logprobs: None for none, k for the chosen token's and the k most likely ones', of the model's own logits.
    presence_penalty and frequency_penalty look at what was generated, repetition_penalty (1 is off) also at the prompt.
    logit_bias: (token id, what is added to its logit). stop_token_ids end an answer whatever ignore_eos says.
    prompt_logprobs: like logprobs, for the prompt's own tokens; such a request does not read the prefix cache.
    json_schema: the answer is a JSON text that matches this schema, itself JSON; its properties come in its order.
    min_tokens: before so many tokens neither end tokens, stop_token_ids nor stop strings end an answer.
    """

    max_tokens: int = 16
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    json_schema: str | None = None
    prompt_logprobs: int | None = None


@dataclass(frozen=True)
class GenerationRequest:
    """A prompt to continue. `prompt` holds token ids.

    read_cache False: nothing that is known of the prompt is reused. store False: nothing that is computed is shared or
    kept. retain: prefixes to keep for a time. pin: the name under which the whole prompt is to be pinned.
    queue_timeout: seconds after which it is given up if it has not started; None leaves that to the server.
    """

    request_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    scope: Scope = DEFAULT
    read_cache: bool = True
    store: bool = True
    retain: tuple[Retain, ...] = ()
    pin: str | None = None
    queue_timeout: float | None = None


class FinishReason(StrEnum):
    """Why a choice ended, in OpenAI's words where they exist."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class TokenLogProb(NamedTuple):
    """A generated token, its natural-log probability, and the most likely alternatives as (token id, logprob)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class PromptLogProb(NamedTuple):
    """A prompt token after those before it: as TokenLogProb, and its rank among all tokens, from 1."""

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


class BusyReason(StrEnum):
    """Which limit of the queue a request met, by the flag that sets it."""

    QUEUED_REQUESTS = "max_queued_requests"
    QUEUED_TOKENS = "max_queued_tokens"
    QUEUE_TIMEOUT = "queue_timeout"


class Busy(NamedTuple):
    """The request never started; retry_after: seconds after which to try again."""

    reason: BusyReason
    retry_after: int


class Sources(NamedTuple):
    """Where a request's cached tokens were: on the device, on the host, or on disk; and how many of them are public."""

    device: int
    host: int
    disk: int
    public: int


@dataclass(slots=True)
class Delta:
    """A piece of one choice's answer. Not frozen: that takes several times as long, and each token makes one.

    text never holds any part of a stop string. tokens and logprobs are what this piece newly generated; text may lag
    behind tokens (half a character, a possible stop string). cached_tokens counts prompt tokens that were not computed,
    retained_tokens those that are kept for a time or pinned as asked for; sources says where the cached ones were (all
    three of the request, the same in each delta). error explains FinishReason.ERROR. prompt_logprobs come whole with
    each choice's first delta; the first token's is None. busy: the request never started, and this is all there is.
    """

    request_id: str
    index: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogProb, ...]
    cached_tokens: int
    finish_reason: FinishReason | None = None
    error: str | None = None
    prompt_logprobs: tuple[PromptLogProb | None, ...] = ()
    retained_tokens: int = 0
    busy: Busy | None = None
    sources: Sources | None = None


@dataclass(frozen=True)
class Submit:
    """Start a request. Answered by deltas; a request that can never be served gets a RefusedError from the client."""

    request: GenerationRequest


@dataclass(frozen=True)
class Cancel:
    """The client went away: everything of the request is freed at the next step."""

    request_id: str


@dataclass(frozen=True)
class ResetPrefixCache:
    """Drop all kept blocks."""


@dataclass(frozen=True)
class ListPins:
    """Say which prefixes are pinned. Answered by a list of Pin."""


@dataclass(frozen=True)
class Unpin:
    """Let go of a pinned prefix. Answered by its Pin, or by None if there is none of this name."""

    name: str


@dataclass(frozen=True)
class ViewMemory:
    """Say who holds which block. Answered by a TakenView."""


class TakenView(NamedTuple):
    """A view of the memory, and the seconds that the step loop spent on it."""

    memory: MemoryView
    seconds: float


class TenantRules(NamedTuple):
    """A tenant's part of the pool, and its weight where tenants wait for each other."""

    share: Share = Share()
    weight: float = 1.0


@dataclass(frozen=True)
class ConfigureTenants:
    """Take these rules, which `check_shares` has no objection to, in place of the former ones."""

    rules: Mapping[str, TenantRules]


class ResetReport(NamedTuple):
    """What a reset did: blocks freed, and blocks still in use by running requests."""

    freed: int
    in_use: int


class RefusedError(ValueError):
    """The request can never be served as it is; the message says why and what would help. `param` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class BusyError(RuntimeError):
    """Too much waits already, or the request waited for too long; it may be sent again after `busy.retry_after`."""

    def __init__(self, message: str, busy: Busy) -> None:
        super().__init__(message)
        self.busy = busy


class EngineDeadError(RuntimeError):
    """The step loop has ended; no request can be served."""
