"""What is counted of choices on their way, and what of their prompts is retained."""

from __future__ import annotations

from pageinn.memory.manager import MemoryManager
from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.scheduling.choice import Choice
from pageinn.scheduling.plan import Counters, Ending, Found, Request, TenantCounters, Work


class Books:
    """Counters, and per request what it found in the cache and what is kept of it."""

    def __init__(self, memory: MemoryManager) -> None:
        self.counters = Counters()
        self._memory = memory
        self._cached: dict[str, int] = {}
        #: How many tokens of a request's prompt are retained, of those with any.
        self.retained: dict[str, int] = {}

    def start(self, choice: Choice) -> Found | None:
        """A choice starts for the first time. A request counts once; resuming after a preemption is no hit.

        Where the first choice of a request found what it did not compute; None for the others.
        """
        assert choice.sequence is not None
        choice.started = True
        # The last token is computed even if it is in the store.
        choice.reached = min(choice.sequence.stored, choice.prompt_tokens - 1)
        request, counters = choice.request, self.counters
        first = request.request_id not in self._cached
        choice.cached_tokens = self._cached.setdefault(request.request_id, choice.reached)
        if not first:
            return None
        counters.queries += choice.prompt_tokens
        counters.hits += choice.reached
        self.tenant(choice).queries += choice.prompt_tokens
        self.tenant(choice).hits += choice.reached
        counters.bypassed += 0 if request.read_cache else choice.prompt_tokens
        counters.below_granularity += choice.prompt_tokens < self._memory.block_size
        host, public = self._memory.sources(choice.sequence)
        return Found(choice.reached, min(host, choice.reached), min(public, choice.reached))

    def compute(self, choice: Choice, work: Work) -> None:
        """A choice has computed something."""
        start, end = work.start, work.start + len(work.tokens) // TOKEN_BYTES
        self.counters.recomputed_tokens += max(min(choice.reached, end) - start, 0)
        fresh = min(end, choice.prompt_tokens) - max(start, choice.reached)
        if fresh > 0:
            self.counters.computed_prompt_tokens += fresh
            self.tenant(choice).computed_prompt_tokens += fresh
        choice.reached = max(choice.reached, end)

    def preempt(self, choice: Choice) -> None:
        """A choice was preempted; to the host if it is parked."""
        self.counters.preemptions += 1
        self.tenant(choice).preemptions += 1
        if choice.parked is not None:
            self.counters.swaps += 1
            self.tenant(choice).swaps += 1
            self.counters.swapped_out_blocks += choice.parked.stored

    def refuse(self, objection: Ending) -> None:
        """A request was turned away by a bound of the queue."""
        self.counters.refused_by_requests += objection is Ending.QUEUED_REQUESTS
        self.counters.refused_by_tokens += objection is Ending.QUEUED_TOKENS

    def retain(self, choice: Choice, now: float) -> None:
        """Keep those prefixes of the prompt that are stored now and are to be kept: once, for the first choice."""
        request, sequence = choice.request, choice.sequence
        assert sequence is not None
        if choice.index > 0:
            return
        while choice.breakpoints < len(request.retain):
            tokens, seconds = request.retain[choice.breakpoints]
            if tokens > sequence.stored:
                return
            choice.breakpoints += 1
            self._note_retained(request, self._memory.retain(sequence, tokens, now + seconds))
        ready = sequence.stored >= choice.prompt_tokens and choice.breakpoints == len(request.retain)
        if request.pin is not None and ready:
            choice.breakpoints += 1
            pin = self._memory.pin(request.pin, sequence, choice.prompt_tokens)
            self._note_retained(request, 0 if pin is None else pin.tokens)

    def forget(self, request_id: str) -> None:
        """A request is gone."""
        self._cached.pop(request_id, None)
        self.retained.pop(request_id, None)

    def tenant(self, choice: Choice) -> TenantCounters:
        """A choice's tenant's part of the counters."""
        return self.counters.of(self._memory.shares.label(choice.request.scope.tenant))

    def _note_retained(self, request: Request, tokens: int) -> None:
        self.retained[request.request_id] = max(self.retained.get(request.request_id, 0), tokens)
