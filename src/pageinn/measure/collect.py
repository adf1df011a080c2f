"""From records to paths: who may share with whom, and how long each request runs."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pageinn.measure.block_columns import BlockColumns
from pageinn.measure.paths import Floats, Ints, Paths
from pageinn.measure.token_tree import TokenTree
from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.traffic.ordering import in_time_order
from pageinn.traffic.record import BlockIds, Length, Record
from pageinn.traffic.rendering import Renderer
from pageinn.traffic.report import BadRowError, ReadReport


class MeasureError(ValueError):
    """A log that cannot be measured; one line says why and what to do."""


@dataclass(frozen=True)
class Settings:
    """How to measure.

    block_size: tokens of a block where the log does not say. answers: whether answers stay in the cache too.
    isolate: whether tenants share nothing. prefill_rate, decode_rate: tokens per second, for requests whose duration
    the log does not say, and for what is claimed of latency.
    """

    block_size: int = 16
    answers: bool = False
    isolate: bool = True
    prefill_rate: float = 5000.0
    decode_rate: float = 50.0


class Names:
    """Strings by number."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def number(self, name: str) -> int:
        """The string's number."""
        return self.known.setdefault(name, len(self.known))

    def __len__(self) -> int:
        return len(self.known)

    def list(self) -> list[str]:
        """All, by number."""
        return list(self.known)


class Columns(NamedTuple):
    """What is known beside the prompts, one entry a request, by arrival.

    outputs: tokens of the answer, or -1. reported: what the provider said, [requests, 3] (prompt, cached, written), or
    -1. source, line: where it was read.
    """

    tenant: Ints
    model: Ints
    session: Ints
    source: Ints
    line: Ints
    outputs: Ints
    reported: NDArray[np.int64]


class Collected(NamedTuple):
    """A log, ready to be measured.

    paths is None if the log knows no prompt by its content. scopings: repeated tokens when only the same (model,
    tenant), only the same model, or everybody may share. lengths: prompt tokens of requests known by length only, which
    have no place in the columns, and length_span: seconds between the first and the last of them, None without times.
    reported: what providers said of all requests, as in the columns. clock: whether the log has times.
    """

    paths: Paths | None
    columns: Columns
    tenants: list[str]
    models: list[str]
    sources: list[str]
    sessions: int
    scopings: dict[str, int]
    lengths: list[int]
    length_span: float | None
    reported: NDArray[np.int64]
    clock: bool


def collect(records: Iterator[Record], renderer: Renderer, settings: Settings, report: ReadReport) -> Collected:
    """Take all records, in any order. Raises MeasureError for a log that mixes what cannot be compared."""
    head = next(records, None)
    everything: Iterable[Record] = records if head is None else chain([head], records)
    if head is not None and isinstance(head.prompt, BlockIds):
        return _Blocks(settings, report).collect(everything)
    return _Texts(renderer, settings, report).collect(everything)


class _Collector:
    """What both ways have in common."""

    def __init__(self, settings: Settings, report: ReadReport) -> None:
        self.settings = settings
        self.report = report
        self.tenants, self.models, self.sources, self.sessions = Names(), Names(), Names(), Names()
        # Requests without a session are number 0.
        self.sessions.number("")
        self.numbers = array("q")
        self.arrival = array("d")
        self.duration = array("d")
        self.said = array("b")
        self.lengths: list[int] = []
        self._length_times: tuple[float, float] | None = None
        self.clock = False
        self._time = 0.0
        self._assumed = False

    def note_length(self, record: Record) -> None:
        """Enter a request of which no more is known than its prompt's length."""
        self.lengths.append(record.prompt.tokens if isinstance(record.prompt, Length) else 0)
        if record.time is not None:
            first, last = self._length_times or (record.time, record.time)
            self._length_times = min(first, record.time), max(last, record.time)

    def note(self, record: Record, prompt_tokens: int, output_tokens: int | None) -> None:
        """Enter what is beside the prompt."""
        said = record.reported
        self.numbers.extend(
            (
                self.tenants.number(record.tenant),
                self.models.number(record.model),
                self.sessions.number(record.session),
                self.sources.number(record.source),
                record.line,
                -1 if output_tokens is None else output_tokens,
                *((said.prompt, said.cached, said.written) if said else (-1, -1, -1)),
            )
        )
        if record.time is not None:
            # What is known by its length only says nothing of when the others came.
            self.clock |= not isinstance(record.prompt, Length)
            self._time = record.time
        self.arrival.append(self._time)
        self.duration.append(self._duration(record, prompt_tokens, output_tokens))
        self.said.append(record.duration is not None)

    def _duration(self, record: Record, prompt_tokens: int, output_tokens: int | None) -> float:
        if record.duration is not None:
            return record.duration
        rates = self.settings
        if record.time is not None and not self._assumed:
            self._assumed = True
            self.report.assume(
                f"a request whose duration is unknown runs for its prompt at {rates.prefill_rate:,.0f} tokens/s and "
                f"its answer, where its length is known, at {rates.decode_rate:,.0f}, but not past its session's next "
                "request"
            )
        return prompt_tokens / rates.prefill_rate + (output_tokens or 0) / rates.decode_rate

    def columns(self, order: Ints) -> Columns:
        """The columns, in that order."""
        table = np.frombuffer(self.numbers, dtype=np.int64).reshape(-1, 9)[order]
        tenant, model, session, source, line, outputs = (np.ascontiguousarray(table[:, each]) for each in range(6))
        return Columns(tenant, model, session, source, line, outputs, table[:, 6:])

    def collected(self, paths: Paths | None, columns: Columns, scopings: dict[str, int]) -> Collected:
        """The whole."""
        if len(self.models) > 1:
            self.report.assume("requests to different models share nothing")
        if len(self.tenants) > 1 and self.settings.isolate:
            self.report.assume("tenants share nothing, unless it is said")
        return Collected(
            paths,
            columns,
            self.tenants.list(),
            self.models.list(),
            self.sources.list(),
            len(self.sessions) - 1,
            scopings,
            self.lengths,
            self._length_times[1] - self._length_times[0] if self._length_times else None,
            self.columns(np.arange(len(self.arrival))).reported,
            self.clock,
        )


def _next_of_session(session: Ints, order: Ints, arrival: Floats) -> Floats:
    """For each request in that order, when the next one of its session arrives; never for one without a session (0)."""
    following = np.full(len(order), np.inf)
    group = np.argsort(session[order], kind="stable")
    names = session[order][group]
    same = np.flatnonzero((names[1:] == names[:-1]) & (names[1:] != 0))
    following[group[same]] = arrival[order][group[same + 1]]
    return following


class _Blocks(_Collector):
    """A trace of block ids."""

    def collect(self, records: Iterable[Record]) -> Collected:
        blocks = BlockColumns()
        size = 0
        local = array("q")
        rooms = Names()
        for record in records:
            prompt = record.prompt
            if isinstance(prompt, Length):
                self.note_length(record)
                continue
            if not isinstance(prompt, BlockIds):
                raise MeasureError(f"{record.source}:{record.line}: a text among block ids; measure them apart")
            if prompt.block_size != size and size:
                raise MeasureError(
                    f"{record.source}:{record.line}: blocks of {prompt.block_size} tokens among blocks of {size}; "
                    "measure them apart"
                )
            size = prompt.block_size
            try:
                blocks.add(prompt.ids, prompt.tokens)
            except OverflowError:
                self.report.good -= 1
                self.report.skip(record.source, record.line, "a block id has more than 64 bits")
                continue
            local.append(rooms.number(f"{record.source}\0{record.session}") if prompt.local else -1)
            self.note(record, prompt.tokens, record.output_tokens)
        arrival = np.array(self.arrival)
        columns = self.columns(np.arange(len(arrival)))
        end = self._ends(arrival, columns.session)
        keys = {
            "tenant": np.stack([columns.model, columns.tenant, np.array(local)]),
            "model": np.stack([columns.model, np.array(local)]),
            "all": np.stack([np.array(local)]),
        }
        if not self.settings.isolate:
            keys["tenant"] = keys["model"]
        del columns
        scopes = {name: _numbered(key) for name, key in keys.items()}
        paths = blocks.paths(size, scopes["tenant"], arrival, end)
        scopings = {"tenant": int(paths.segments.tokens.sum())}
        for name in ("model", "all"):
            same = next((known for known in scopings if np.array_equal(scopes[known], scopes[name])), None)
            if same is None:
                other = blocks.paths(size, scopes[name], arrival, end)
                scopings[name] = int(other.segments.tokens.sum())
            else:
                scopings[name] = scopings[same]
        order = np.argsort(arrival, kind="stable")
        return self.collected(paths, self.columns(order), scopings)

    def _ends(self, arrival: Floats, session: Ints) -> Floats:
        order = np.argsort(arrival, kind="stable")
        following = np.empty(len(arrival))
        following[order] = _next_of_session(session, order, arrival)
        end = arrival + np.frombuffer(self.duration, dtype=np.float64)
        return np.where(np.frombuffer(self.said, dtype=np.int8) == 1, end, np.minimum(end, following))


def _numbered(keys: NDArray[np.int64]) -> Ints:
    """Equal columns get equal numbers, from 0 on by first appearance of the sorted keys."""
    numbers = np.zeros(keys.shape[1], dtype=np.int64)
    for row in keys:
        _, inverse = np.unique(row, return_inverse=True)
        _, numbers = np.unique(numbers * (int(inverse.max(initial=0)) + 1) + inverse, return_inverse=True)
    return numbers


class _Following:
    """When each session goes on, known before the first of its requests is looked at, because sorting reads all."""

    def __init__(self) -> None:
        self._sessions = Names()
        self._sessions.number("")
        self._session = array("q")
        self._arrival = array("d")
        self._after: Floats | None = None

    def noting(self, records: Iterable[Record]) -> Iterator[Record]:
        """The same records, seen."""
        time = float("-inf")
        for record in records:
            time = time if record.time is None else record.time
            self._session.append(self._sessions.number(record.session))
            self._arrival.append(time)
            yield record

    def after(self, place: int) -> float:
        """When the session of the request that is at that place by time goes on; infinity if it does not."""
        if self._after is None:
            arrival = np.array(self._arrival)
            order = np.argsort(arrival, kind="stable")
            self._after = _next_of_session(np.array(self._session, dtype=np.int64), order, arrival)
        return float(self._after[place])


class _Texts(_Collector):
    """A log of texts or token ids."""

    def __init__(self, renderer: Renderer, settings: Settings, report: ReadReport) -> None:
        super().__init__(settings, report)
        self.renderer = renderer

    def collect(self, records: Iterable[Record]) -> Collected:
        tree = TokenTree(self.settings.block_size)
        wider = {"model": TokenTree(self.settings.block_size), "all": TokenTree(self.settings.block_size)}
        known = dict.fromkeys(wider, 0)
        following = _Following()
        shown: list[int] = []
        for place, record in enumerate(in_time_order(following.noting(records))):
            if isinstance(record.prompt, BlockIds):
                raise MeasureError(f"{record.source}:{record.line}: block ids among texts; measure them apart")
            try:
                rendered = self.renderer.render(record)
            except BadRowError as error:
                self.report.good -= 1
                self.report.skip(record.source, record.line, str(error))
                continue
            if rendered is None:
                self.note_length(record)
                self.note(record, self.lengths[-1], record.output_tokens)
                continue
            shown.append(len(self.arrival))
            outputs = record.output_tokens
            if outputs is None and rendered.answer:
                outputs = len(rendered.answer) // TOKEN_BYTES
            self.note(record, len(rendered.prompt) // TOKEN_BYTES, outputs)
            arrival = self.arrival[-1]
            end = arrival + self.duration[-1]
            if record.duration is None:
                end = min(end, following.after(place))
            answer = rendered.answer if self.settings.answers else b""
            own = (record.model, record.tenant) if self.settings.isolate else (record.model,)
            tree.add(own, rendered.prompt, answer, arrival, end)
            for name, scope in (("model", record.model), ("all", "")):
                known[name] += wider[name].add(scope, rendered.prompt, answer, arrival, end)
        paths = tree.paths()
        columns = self.columns(np.array(shown, dtype=np.int64))
        if paths.requests == 0:
            return self.collected(None, columns, {})
        scopings = {"tenant": int(paths.segments.tokens.sum()), **known}
        return self.collected(paths, columns, scopings)
