"""Runs a plan on the model: the only place where block numbers meet bytes."""

from __future__ import annotations

import logging
import time
from collections import Counter
from itertools import groupby
from typing import NamedTuple

import numpy as np

from pageinn.engine.logits import Controls
from pageinn.engine.messages import PromptLogProb, SamplingParams, TokenLogProb
from pageinn.kernels.backend import F32, I32, Backend, SampleParams
from pageinn.memory.moves import Move, MoveKind
from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.model.decoder import Batch, Decoder
from pageinn.scheduling.measuring import Copied
from pageinn.scheduling.plan import Plan, Work
from pageinn.store.host_store import HostStore
from pageinn.store.kv_store import KVStore

log = logging.getLogger("pageinn")


class ChoiceId(NamedTuple):
    """A request and the place among its n choices."""

    request_id: str
    choice: int


class SeatParams(NamedTuple):
    """Who sits in a seat and how they sample; the seed was drawn when the request arrived.

    score: a prompt whose own log-probabilities are wanted as it is computed; empty for none.
    """

    who: ChoiceId
    sampling: SamplingParams
    seed: int
    controls: Controls | None
    score: tuple[int, ...] = ()


class Scored(NamedTuple):
    """Log-probabilities of the prompt tokens from position `start` on."""

    request_id: str
    start: int
    tokens: list[PromptLogProb]


class MoveResult(NamedTuple):
    """Which of a step's moves failed, by place in the plan; blocks and seconds to the host and back."""

    failed: frozenset[int] = frozenset()
    copied: Copied = Copied()


class StepResult(NamedTuple):
    """The sampled token by seat, and log-probabilities where the request wants them."""

    tokens: dict[int, int]
    logprobs: dict[ChoiceId, TokenLogProb]
    scored: list[Scored]
    moves: MoveResult


class _Score(NamedTuple):
    """Rows of a step that say how likely the prompt tokens `tokens`, from position `start` on, are."""

    params: SeatParams
    first_row: int
    start: int
    tokens: tuple[int, ...]


class Executor:
    """A persistent batch: block tables and sampling parameters by seat, changed by each plan's delta."""

    def __init__(
        self, model: Decoder, store: KVStore, host: HostStore, backend: Backend, max_num_seqs: int, max_len: int
    ) -> None:
        self._model = model
        self._store = store
        self._host = host
        self._backend = backend
        # A sampled token may stand one past the longest sequence; its block is asked for before it is refused.
        self._tables = np.zeros((max_num_seqs, -(-(max_len + 1) // store.block_size)), np.int32)
        self._params: dict[int, SeatParams] = {}
        self._drawing = _Drawing(max_num_seqs)

    @property
    def saturated_values(self) -> int:
        """How many elements of keys and values the cache's dtype could not hold, so far."""
        return self._backend.saturated_values

    def execute(self, plan: Plan, seated: dict[int, SeatParams]) -> StepResult:
        """Perform one step. seated: the parameters of each seat that the plan fills."""
        for seat in plan.vacated:
            del self._params[seat]
        for seat, params in seated.items():
            self._params[seat] = params
            self._drawing.seat(seat, params)
        for taken in plan.seated:
            self._tables[taken.seat, : len(taken.table)] = taken.table
        for seat, edit in plan.edits:
            self._tables[seat, edit.start : edit.start + len(edit.blocks)] = edit.blocks
        moves = self._move(plan.moves)
        if not plan.work:
            return StepResult({}, {}, [], moves)
        scores = self._scores(plan.work)
        batch = self._batch(plan.work, scores)
        logits = self._model.forward(batch, self._store)
        scored = [self._score(score, logits, batch.logits_rows) for score in scores]
        sampled = [work for work in plan.work if work.sample]
        if scores:
            logits = logits[np.searchsorted(batch.logits_rows, _last_rows(batch.query_starts, plan.work))]
        tokens, logprobs = self._sample(sampled, logits) if sampled else ({}, {})
        return StepResult(tokens, logprobs, scored, moves)

    def _move(self, moves: list[Move]) -> MoveResult:
        """Move blocks in order, each run of one kind in one go."""
        if not moves:
            return MoveResult()
        failed: set[int] = set()
        seconds = dict.fromkeys(MoveKind, 0.0)
        index = 0
        for kind, group in groupby(moves, key=lambda move: move.kind):
            begin, run = time.perf_counter(), list(group)
            match kind:
                case MoveKind.COPY:
                    self._store.copy_blocks(self._backend, np.array([move[1:] for move in run], np.int32))
                case MoveKind.STORE:
                    failed.update(index + place for place in self._put_away(run))
                case MoveKind.LOAD:
                    for move in run:
                        self._host.load(self._store, move.source, move.destination)
            seconds[kind] += time.perf_counter() - begin
            index += len(run)
        kinds = Counter(move.kind for move in moves)
        out, back = MoveKind.STORE, MoveKind.LOAD
        return MoveResult(frozenset(failed), Copied(kinds[out], seconds[out], kinds[back], seconds[back]))

    def _put_away(self, stores: list[Move]) -> list[int]:
        """Copy blocks to the host; the places of those for which that failed."""
        failed, reason = [], ""
        for place, move in enumerate(stores):
            try:
                self._host.store(self._store, move.source, move.destination)
            except (OSError, MemoryError) as error:
                failed.append(place)
                reason = str(error)
        if failed:
            log.warning("%d of %d blocks could not be stored on the host: %s", len(failed), len(stores), reason)
        return failed

    def _scores(self, work: list[Work]) -> list[_Score]:
        """Which rows are wanted for the prompt's own log-probabilities: each says how likely its next token is."""
        scores, row = [], 0
        for item in work:
            count, params = len(item.tokens) // TOKEN_BYTES, self._params[item.seat]
            following = params.score[item.start + 1 : item.start + 1 + count]
            if following:
                scores.append(_Score(params, row, item.start + 1, following))
            row += count
        return scores

    def _score(self, score: _Score, logits: F32, rows: I32) -> Scored:
        first, count = int(np.searchsorted(rows, score.first_row)), len(score.tokens)
        own, tokens = logits[first : first + count], np.array(score.tokens, np.int32)
        most = score.params.sampling.prompt_logprobs or 0
        found = self._backend.log_probs(own, tokens, most)
        result = []
        for row, token in enumerate(score.tokens):
            rank = int(np.count_nonzero(own[row] > own[row, token])) + 1
            top = zip(found.top_ids[row].tolist(), found.top[row].tolist(), strict=True)
            result.append(PromptLogProb(token, float(found.chosen[row]), rank, tuple(top)))
        return Scored(score.params.who.request_id, score.start, result)

    def _batch(self, work: list[Work], scores: list[_Score]) -> Batch:
        """Lay the plan's work out as the rows of one ragged batch."""
        block_size = self._store.block_size
        packed = b"".join([item.tokens for item in work])
        columns = [(item.seat, item.start, item.write_from, len(item.tokens) // TOKEN_BYTES) for item in work]
        seats, starts, write_from, counts = np.array(columns, np.int64).T
        context_lens = starts + counts
        tables = self._tables[seats, : -(-int(context_lens.max()) // block_size)]
        row_of = np.arange(len(work))
        if len(packed) == len(work) * TOKEN_BYTES:
            # Decodes alone, the most frequent step by far: a row each.
            query_starts, positions = np.arange(len(work) + 1, dtype=np.int32), starts
        else:
            query_starts = np.zeros(len(work) + 1, np.int32)
            np.cumsum(counts, out=query_starts[1:])
            row_of = np.repeat(row_of, counts)
            positions = np.arange(query_starts[-1]) - query_starts[row_of] + starts[row_of]
            write_from = write_from[row_of]
        slots = tables[row_of, positions // block_size] * np.int64(block_size) + positions % block_size
        slots[positions < write_from] = -1
        logits_rows = _last_rows(query_starts, work)
        if scores:
            scored = [np.arange(score.first_row, score.first_row + len(score.tokens)) for score in scores]
            logits_rows = np.sort(np.concatenate([logits_rows, *scored])).astype(np.int32)
        return Batch(
            token_ids=np.frombuffer(packed, "<u4").astype(np.int32),
            positions=positions.astype(np.int32),
            slots=slots,
            tables=tables,
            query_starts=query_starts,
            context_lens=context_lens.astype(np.int32),
            logits_rows=logits_rows,
        )

    def _sample(self, work: list[Work], logits: F32) -> tuple[dict[int, int], dict[ChoiceId, TokenLogProb]]:
        seats = [item.seat for item in work]
        params = [self._params[seat] for seat in seats]
        wanted = [row for row, param in enumerate(params) if param.sampling.logprobs is not None]
        # Log-probabilities are the model's own: their rows are copied before anything is changed.
        own = logits[wanted] if wanted else logits[:0]
        for row, param in enumerate(params):
            if param.controls is not None:
                param.controls.apply(logits[row])
        positions = [item.start + len(item.tokens) // TOKEN_BYTES for item in work]
        tokens = self._backend.sample(logits, self._drawing.rows(seats, positions))
        logprobs = self._log_probs([params[row] for row in wanted], own, tokens[wanted]) if wanted else {}
        return dict(zip(seats, tokens.tolist(), strict=True)), logprobs

    def _log_probs(self, params: list[SeatParams], logits: F32, tokens: I32) -> dict[ChoiceId, TokenLogProb]:
        counts = [param.sampling.logprobs or 0 for param in params]
        found = self._backend.log_probs(logits, tokens, max(counts))
        result = {}
        for row, (param, count) in enumerate(zip(params, counts, strict=True)):
            top = zip(found.top_ids[row, :count].tolist(), found.top[row, :count].tolist(), strict=True)
            result[param.who] = TokenLogProb(int(tokens[row]), float(found.chosen[row]), tuple(top))
        return result


class _Drawing:
    """How each seat draws its tokens, in arrays: a step picks its rows out of them."""

    def __init__(self, seats: int) -> None:
        self._by_seat = SampleParams(
            temperature=np.zeros(seats, np.float32),
            top_k=np.zeros(seats, np.int32),
            top_p=np.zeros(seats, np.float32),
            min_p=np.zeros(seats, np.float32),
            seed=np.zeros(seats, np.uint64),
            choice=np.zeros(seats, np.uint64),
            position=np.zeros(0, np.uint64),
        )

    def seat(self, seat: int, params: SeatParams) -> None:
        """Note how a seat that was just taken draws."""
        sampling, to = params.sampling, self._by_seat
        to.temperature[seat], to.top_k[seat] = sampling.temperature, sampling.top_k
        to.top_p[seat], to.min_p[seat] = sampling.top_p, sampling.min_p
        to.seed[seat], to.choice[seat] = params.seed, params.who.choice

    def rows(self, seats: list[int], positions: list[int]) -> SampleParams:
        """The parameters of rows that belong to these seats and draw the tokens at these positions."""
        places, each = np.array(seats), self._by_seat
        return SampleParams(
            temperature=each.temperature[places],
            top_k=each.top_k[places],
            top_p=each.top_p[places],
            min_p=each.min_p[places],
            seed=each.seed[places],
            choice=each.choice[places],
            position=np.array(positions, np.uint64),
        )


def _last_rows(query_starts: I32, work: list[Work]) -> I32:
    """The rows from which tokens are sampled."""
    return query_starts[1:][[item.sample for item in work]] - np.int32(1)
