"""One step after another: events to the scheduler, its plan to the executor, the outcome to text."""

from __future__ import annotations

import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import NamedTuple

from pageinn.engine.advice import Advice
from pageinn.engine.checks import check_request
from pageinn.engine.disk_tier import DiskTier
from pageinn.engine.executor import ChoiceId, Executor, SeatParams
from pageinn.engine.grammar import GrammarError, Grammars
from pageinn.engine.messages import (
    Delta,
    FinishReason,
    GenerationRequest,
    RefusedError,
    ResetReport,
    Sources,
    TakenView,
    TenantRules,
    TokenLogProb,
)
from pageinn.engine.outputs import Stream
from pageinn.engine.stats import Blocks, Stats, TenantStats
from pageinn.memory.retention import Pin
from pageinn.memory.tokens import TOKEN_BYTES, pack
from pageinn.scheduling.backlog import Queued
from pageinn.scheduling.measuring import measured
from pageinn.scheduling.plan import Abort, Arrive, Counters, Event, Found, Outcome, Request, Stop, TenantCounters, Weigh
from pageinn.scheduling.scheduler import Scheduler
from pageinn.text.tokenizer import Tokenizer

log = logging.getLogger("pageinn")

WINDOW_SECONDS = 60
_SEED_BITS = 64


class _Second(NamedTuple):
    """Queries and hits up to the end of one second of the clock."""

    second: int
    queries: int
    hits: int


class EngineCore:
    """Drives scheduler and executor; not thread-safe, owned by whoever calls `step`."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        tokenizer: Tokenizer,
        seed: int | None,
        clock: Callable[[], float],
        disk: DiskTier | None = None,
    ) -> None:
        self.scheduler = scheduler
        self._executor = executor
        self._tokenizer = tokenizer
        self._grammars = Grammars(tokenizer)
        self._clock = clock
        self._disk = disk
        self._seeds = random.Random(seed)
        self._streams: dict[str, Stream] = {}
        self._events: list[Event] = []
        self._stats = Stats()
        self._advice = Advice()
        #: By tenant's label and reason.
        self._refused: Counter[tuple[str, str]] = Counter()
        # The last minute, so that the rate moves when the traffic does.
        self._window: deque[_Second] = deque()

    @property
    def idle(self) -> bool:
        """Whether a step would have nothing to do."""
        return not self._events and self.scheduler.idle and not self._waiting_for_disk.requests

    def check(self, request: GenerationRequest) -> Request:
        """The request as the scheduler sees it. Reads only constants: any thread may call it.

        Raises RefusedError for a request that can never be served.
        """
        check_request(request, len(self._tokenizer.token_bytes), self._tokenizer.eos_ids)
        if request.sampling.json_schema is not None:
            try:
                self._grammars.check(request.sampling.json_schema)
            except GrammarError as error:
                raise RefusedError(str(error), "response_format") from error
        scheduled = self._request(request)
        reason = self.scheduler.refusal(scheduled)
        if reason is not None:
            raise RefusedError(reason, "prompt")
        return scheduled

    def submit(self, request: GenerationRequest) -> None:
        """Take in a request. Raises RefusedError for one that can never be served."""
        if request.request_id in self._streams:
            raise RefusedError(f"request id {request.request_id} is in use", "request_id")
        scheduled = self.check(request)
        seed = request.sampling.seed
        seed = self._seeds.getrandbits(_SEED_BITS) if seed is None else seed % (1 << _SEED_BITS)
        self._streams[request.request_id] = Stream(request, seed, self._tokenizer, self._grammars, self._clock())
        self._stats.prompt_tokens += len(request.prompt)
        if not self._waits_for_disk(scheduled):
            self._events.append(Arrive(scheduled))

    def cancel(self, request_id: str) -> None:
        """Free everything of a request at the next step. Unknown and finished ones are ignored."""
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            reason = FinishReason.ABORT.value
            self._stats.finished[reason] = self._stats.finished.get(reason, 0) + len(stream.unfinished)
            self._events.append(Abort(request_id))
            if self._disk is not None:
                self._disk.forget(request_id)
                for choice in stream.unfinished:
                    self._leave(stream, choice)

    def reset_prefix_cache(self) -> ResetReport:
        """Drop all kept blocks. Call it between steps only."""
        if self._disk is not None:
            self._events += [Arrive(request) for request in self._disk.clear()]
        counts = self.scheduler.memory.reset()
        return ResetReport(counts.freed, counts.in_use)

    def configure_tenants(self, rules: Mapping[str, TenantRules]) -> None:
        """Take these rules in place of the former ones. Call it between steps only. Raises SharesError."""
        self.scheduler.memory.configure_shares({tenant: rule.share for tenant, rule in rules.items()})
        self._events.append(Weigh({tenant: rule.weight for tenant, rule in rules.items()}))

    def pins(self) -> list[Pin]:
        """The pinned prefixes. Call it between steps only."""
        return self.scheduler.memory.retention.pins()

    def unpin(self, name: str) -> Pin | None:
        """Let go of a pinned prefix; None if there is none of this name. Call it between steps only."""
        return self.scheduler.memory.unpin(name)

    def view_memory(self) -> TakenView:
        """Who holds which block. Call it between steps only."""
        began = self._clock()
        memory = self.scheduler.memory.view()
        return TakenView(memory, self._clock() - began)

    def _waits_for_disk(self, request: Request) -> bool:
        """Whether a request waits for its blocks first. Beyond the queue's bounds none does: it is turned away."""
        if self._disk is None:
            return False
        self.scheduler.backlog.elsewhere = self._disk.waiting
        return self.scheduler.backlog.objection(request) is None and self._disk.arrive(request)

    @property
    def _waiting_for_disk(self) -> Queued:
        return Queued(0, 0) if self._disk is None else self._disk.waiting

    @property
    def behind(self) -> bool:
        """Whether `write_behind` has something to do."""
        return self._disk is not None and self._disk.behind

    def write_behind(self, computed: int | None = None) -> None:
        """Hand some blocks of ended sequences to the disk's writer.

        computed: as many blocks as so many tokens fill, so that writing keeps pace with steps and costs a like part of
        each; None for those of a large step, where nothing runs.
        """
        if self._disk is not None:
            tokens = self.scheduler.config.max_num_batched_tokens if computed is None else computed
            self._disk.copy_out(self.scheduler.memory.blocks_for(tokens))

    def rest(self) -> None:
        """What is to be done where a step would have nothing to do: let time pass, and write to disk."""
        self.scheduler.rest(self._clock())
        self.write_behind()

    def close(self) -> None:
        """Write to disk what is still to be written. No step may follow."""
        if self._disk is not None:
            self._disk.close()

    def step(self) -> list[Delta]:
        """Plan, compute and commit one step; what it brought, in the order of the plan."""
        if self._disk is not None:
            self._events += [Arrive(request) for request in self._disk.poll()]
            self.scheduler.backlog.elsewhere = self._disk.waiting
        events, self._events = self._events, []
        plan = self.scheduler.schedule(self._clock(), events)
        self._advice.after(self.scheduler, plan)
        seated = {}
        for seat in plan.seated:
            stream = self._streams[seat.request_id]
            if seat.found is not None:
                stream.sources = self._sources(seat.request_id, seat.found)
            who = ChoiceId(seat.request_id, seat.choice)
            controls, score = stream.controls[seat.choice], stream.to_score(seat.choice)
            seated[seat.seat] = SeatParams(who, stream.request.sampling, stream.seed, controls, score)
        began = self._clock()
        result = self._executor.execute(plan, seated)
        rates = measured(plan, self._clock() - began, result.moves.copied)
        if rates is not None:
            self._events.append(rates)
        for scored in result.scored:
            self._streams[scored.request_id].score(scored.start, scored.tokens)
        outcomes = [*plan.ended, *self.scheduler.commit(plan, result.tokens, result.moves.failed)]
        now = self._clock()
        self._stats.steps += 1
        self._roll_window(now)
        deltas = [self._delta(outcome, result.logprobs, now) for outcome in outcomes]
        self.write_behind(sum(len(work.tokens) for work in plan.work) // TOKEN_BYTES)
        if self._disk is not None and self._disk.waiting.requests and not plan.work:
            self._disk.wait()
        return deltas

    def _delta(self, outcome: Outcome, logprobs: Mapping[ChoiceId, TokenLogProb], now: float) -> Delta:
        choice = ChoiceId(outcome.request_id, outcome.choice)
        stream = self._streams[outcome.request_id]
        if outcome.retry_after is not None:
            delta = stream.turned_away(outcome, self._stats)
            if self._disk is not None:
                self._disk.forget(outcome.request_id)
            if outcome.choice == 0 and delta.busy is not None:
                label = self.scheduler.memory.shares.label(stream.request.scope.tenant)
                self._refused[label, delta.busy.reason.value] += 1
            if not stream.unfinished:
                del self._streams[outcome.request_id]
            return delta
        delta = stream.push(outcome, logprobs.get(choice), now, self._stats)
        if delta.error is not None:
            log.warning("%s: %s", outcome.request_id, delta.error)
        if delta.finish_reason is not None:
            self._leave(stream, choice.choice)
            if outcome.ending is None:
                self._events.append(Stop(*choice))
        if not stream.unfinished:
            del self._streams[outcome.request_id]
        return delta

    def _sources(self, request_id: str, found: Found) -> Sources:
        """Where a request's cached tokens were. What the disk brought came by the host."""
        disk = 0 if self._disk is None else min(self._disk.loaded(request_id), found.host)
        return Sources(found.cached - found.host, found.host - disk, disk, found.public)

    def _leave(self, stream: Stream, choice: int) -> None:
        """A choice's blocks are kept from now on."""
        if self._disk is not None:
            self._disk.left(stream.request.scope, pack(stream.tokens(choice)))

    def _roll_window(self, now: float) -> None:
        newest = _Second(int(now), self.scheduler.counters.queries, self.scheduler.counters.hits)
        if self._window and self._window[-1].second == newest.second:
            self._window.pop()
        self._window.append(newest)

    def stats(self) -> Stats:
        """Counters and gauges as they are now; a copy."""
        now, counters, usage = self._clock(), self.scheduler.counters, self.scheduler.memory.usage()
        slots, host = self.scheduler.memory.occupancy(), self.scheduler.memory.host
        ages = self.scheduler.memory.tree.ages
        # The newest entry from before the window is what the window's growth is measured from.
        while len(self._window) > 1 and self._window[1].second <= now - WINDOW_SECONDS:
            self._window.popleft()
        before = (
            self._window[0] if self._window and self._window[0].second <= now - WINDOW_SECONDS else _Second(0, 0, 0)
        )
        return replace(
            self._stats,
            prefix_cache_queries=counters.queries,
            prefix_cache_hits=counters.hits,
            prefix_cache_bypassed=counters.bypassed,
            below_granularity=counters.below_granularity,
            prompt_tokens_computed=counters.computed_prompt_tokens,
            recomputed_tokens=counters.recomputed_tokens,
            preemptions=counters.preemptions,
            swaps=counters.swaps,
            swapped_out_blocks=counters.swapped_out_blocks,
            swapped_in_blocks=counters.swapped_in_blocks,
            demoted_blocks=host.demoted_blocks,
            promoted_blocks=host.promoted_blocks,
            dropped_host_blocks=host.dropped_blocks,
            failed_stores=host.failed_stores,
            host_blocks_free=host.usage().free,
            host_blocks_kept=host.usage().kept,
            host_blocks_held=host.usage().held,
            evicted_blocks=self.scheduler.memory.evicted_blocks,
            finished=dict(self._stats.finished),
            refused=dict(self._stats.refused),
            preemptions_by_way=_by_way(counters),
            queued_tokens=self.scheduler.backlog.tokens + self._waiting_for_disk.tokens,
            thrashing=self.scheduler.thrash.now,
            preemption_watermark=self.scheduler.watermark,
            running=self.scheduler.num_running,
            waiting=self.scheduler.num_waiting + self._waiting_for_disk.requests,
            blocks_total=usage.total,
            blocks_free=usage.free,
            blocks_kept=usage.kept,
            blocks_in_use=usage.in_use,
            block_size=self.scheduler.memory.block_size,
            slots_stored=slots.stored,
            slots_reserved=slots.reserved,
            slots_lost=slots.last_block,
            slots_saved=slots.saved,
            saturated_values=self._executor.saturated_values,
            window_queries=counters.queries - before.queries,
            window_hits=counters.hits - before.hits,
            time_to_first_token=self._stats.time_to_first_token.copy(),
            time_per_output_token=self._stats.time_per_output_token.copy(),
            request_latency=self._stats.request_latency.copy(),
            block_lifetime=ages.lifetime.copy(),
            block_idle=ages.idle.copy(),
            block_reuse_gap=ages.reuse_gap.copy(),
            tenants=self._tenants(),
            blocks_retained=self.scheduler.memory.tree.num_held,
            retentions=asdict(self.scheduler.memory.retention.counters),
            disk=None if self._disk is None else self._disk.stats(),
        )

    def _tenants(self) -> dict[str, TenantStats]:
        """Counters and blocks by tenant, those without a rule together."""
        shares, counters = self.scheduler.memory.shares, self.scheduler.counters.tenants
        blocks: dict[str, Blocks] = {}
        for holding in shares.all():
            label = shares.label(holding.tenant)
            active, kept = blocks.get(label, (0, 0))
            blocks[label] = Blocks(active + holding.active, kept + holding.kept)
        queued: dict[str, Queued] = {}
        for tenant, (requests, tokens) in self.scheduler.backlog.tenants.items():
            label = shares.label(tenant)
            before = queued.get(label, Queued(0, 0))
            queued[label] = Queued(before.requests + requests, before.tokens + tokens)
        refused: dict[str, dict[str, int]] = {}
        for (label, reason), count in self._refused.items():
            refused.setdefault(label, {})[reason] = count
        nothing = TenantCounters()
        return {
            label: TenantStats(
                prefix_cache_queries=counters.get(label, nothing).queries,
                prefix_cache_hits=counters.get(label, nothing).hits,
                prompt_tokens_computed=counters.get(label, nothing).computed_prompt_tokens,
                preemptions_by_way=_by_way(counters.get(label, nothing)),
                evicted_blocks=shares.evicted[label],
                queued_requests=queued.get(label, Queued(0, 0)).requests,
                queued_tokens=queued.get(label, Queued(0, 0)).tokens,
                refused=refused.get(label, {}),
                blocks=blocks.get(label, Blocks(0, 0)),
            )
            for label in sorted({*counters, *shares.evicted, *blocks, *queued, *refused})
        }

    def _request(self, request: GenerationRequest) -> Request:
        sampling = request.sampling
        return Request(
            request_id=request.request_id,
            prompt=pack(request.prompt),
            scope=request.scope,
            max_tokens=max(sampling.max_tokens, 1),
            n=sampling.n,
            eos_ids=self._tokenizer.eos_ids,
            ignore_eos=sampling.ignore_eos,
            stop_ids=frozenset(sampling.stop_token_ids),
            read_cache=request.read_cache and sampling.prompt_logprobs is None,
            store=request.store,
            retain=request.retain,
            pin=request.pin,
            queue_timeout=request.queue_timeout,
        )


def _by_way(counters: Counters | TenantCounters) -> dict[str, int]:
    return {"recompute": counters.preemptions - counters.swaps, "swap": counters.swaps}
