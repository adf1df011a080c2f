"""What other engines and providers would reuse of a log: their rules, one request after the other, without queues.

Each rule says of a prompt how many of its tokens it takes from a cache, and then remembers it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple, Protocol

from pageinn.memory.scopes import Scope
from pageinn.memory.tokens import TOKEN_BYTES, common_blocks
from pageinn.simulate.jobs import Job

_DIGEST_BYTES = 16
_NEVER = float("-inf")


class Rule(Protocol):
    """One system's reuse."""

    def cached(self, job: Job) -> int:
        """Prompt tokens taken from the cache; the prompt is known from then on. Jobs come in order of time."""
        ...


class Reuse(NamedTuple):
    """Sums over a log."""

    prompt_tokens: int
    cached_tokens: int

    @property
    def hit_rate(self) -> float | None:
        """Cached by all prompt tokens; None where there were none."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


def reuse(jobs: Iterable[Job], rule: Rule) -> Reuse:
    """Take a log through a rule."""
    prompts = cached = 0
    for job in jobs:
        prompts += len(job.request.prompt) // TOKEN_BYTES
        cached += rule.cached(job)
    return Reuse(prompts, cached)


class Slots:
    """llama.cpp's server: each slot keeps the tokens of its last request, prompt and answer.

    A request takes the slot that shares the longest prefix with it if that is more than a tenth of the prompt
    (`--slot-prompt-similarity`), else the one used least recently. All slots are taken to be idle when a request comes.
    Tenants are not told apart: the server does not.
    """

    SIMILARITY = 0.1

    def __init__(self, slots: int) -> None:
        self._slots = [b""] * slots

    def cached(self, job: Job) -> int:
        """The prefix shared with the chosen slot, at least one token short of the prompt."""
        prompt = job.request.prompt
        total = len(prompt) // TOKEN_BYTES
        shared = [common_blocks(prompt, 0, slot, 0, TOKEN_BYTES) for slot in self._slots]
        best = max(range(len(shared)), key=lambda slot: shared[slot])
        # Slots stand in order of their last use, the oldest first.
        chosen = best if shared[best] > self.SIMILARITY * total else 0
        taken = shared[chosen]
        del self._slots[chosen]
        self._slots.append(prompt + job.answer)
        return min(taken, max(total - 1, 0))


class Steps:
    """OpenAI's automatic caching: prefixes of 1,024 tokens and each 128 more, until `idle` seconds without a use.

    https://platform.openai.com/docs/guides/prompt-caching: usually 5 to 10 minutes of inactivity, at most an hour.
    Organisations (here: tenants) do not share.
    """

    FIRST, STEP = 1024, 128

    def __init__(self, idle: float = 300.0) -> None:
        self._idle = idle
        self._used: dict[tuple[Scope, bytes], float] = {}

    def cached(self, job: Job) -> int:
        """The longest of those prefixes that was used lately; all of the prompt's are known from then on."""
        total = len(job.request.prompt) // TOKEN_BYTES
        found = 0
        ends = range(self.FIRST, total + 1, self.STEP)
        for end, digest in zip(ends, _digests(job.request.prompt, ends), strict=True):
            key = (job.request.scope, digest)
            if job.time - self._used.get(key, _NEVER) <= self._idle:
                found = end
            self._used[key] = job.time
        return found


class Breakpoints:
    """Anthropic's explicit caching: what was written up to a breakpoint can be read up to there for `ttl` seconds.

    https://docs.claude.com/en/docs/build-with-claude/prompt-caching: at least 1,024 tokens; each use renews the time. A
    request looks back from its own breakpoints; that it does so over 20 parts only is left out. A log that says nothing
    of breakpoints is taken to set one at the end of each prompt, as agents do, so that the next turn reads all of this
    one. Organisations (here: tenants) do not share.
    """

    LEAST = 1024

    def __init__(self, ttl: float = 300.0) -> None:
        self._ttl = ttl
        self._written: dict[Scope, dict[int, dict[bytes, float]]] = {}

    def cached(self, job: Job) -> int:
        """The longest prefix, written before and still kept, that this prompt begins with up to its last breakpoint."""
        prompt = job.request.prompt
        ends = (len(prompt) // TOKEN_BYTES,) if job.breakpoints is None else job.breakpoints
        written = self._written.setdefault(job.request.scope, {})
        lengths = sorted(length for length in written if length <= max(ends, default=0))
        found = 0
        for length, digest in zip(lengths, _digests(prompt, lengths), strict=True):
            if job.time - written[length].get(digest, _NEVER) <= self._ttl:
                written[length][digest] = job.time
                found = length
        ends = tuple(end for end in ends if end >= self.LEAST)
        for end, digest in zip(ends, _digests(prompt, ends), strict=True):
            written.setdefault(end, {})[digest] = job.time
        return found


def _digests(packed: bytes, lengths: Iterable[int]) -> list[bytes]:
    """A digest of each prefix, its lengths in tokens and in ascending order."""
    running, done, found = blake2b(digest_size=_DIGEST_BYTES), 0, []
    view = memoryview(packed)
    for length in lengths:
        running.update(view[done : length * TOKEN_BYTES])
        done = length * TOKEN_BYTES
        found.append(running.copy().digest())
    return found
