"""From files of any format to a stream of records: `read`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from pageinn.traffic import block_traces, cassette, engine_logs, json_rows, tables
from pageinn.traffic.envelope import Place
from pageinn.traffic.fields import short
from pageinn.traffic.formats import BLOCK_TRACE, ENGINE_LOG, LENGTHS, NAMES, ROW_FORMATS, RowFormat, format_of
from pageinn.traffic.json_rows import Numbered
from pageinn.traffic.lengths import length_records
from pageinn.traffic.opening import STREAM_ERRORS, name_of, open_log
from pageinn.traffic.ordering import in_time_order
from pageinn.traffic.plain_rows import text_records
from pageinn.traffic.record import Record
from pageinn.traffic.report import BadRowError, ReadError, ReadReport, Sample

#: Rows that are looked at to find a trace's block size.
_ROWS_FOR_SIZE = 200


class Reading(Iterator[Record]):
    """The records of some logs; `report` is complete when they have all been taken."""

    def __init__(self, records: Iterator[Record], report: ReadReport) -> None:
        self._records = records
        self.report = report

    def __next__(self) -> Record:
        return next(self._records)


def read(paths: Sequence[str | Path], format: str | None = None, *, ordered: bool = True) -> Reading:
    """Records of these files together ('-' is standard input), by time unless `ordered` is false.

    format: one of `formats.NAMES`; without it each file's, and in files of JSON each row's, is found from what is in
    it. A broken row is counted and skipped. Raises ReadError, while it is iterated, for a file that cannot be opened,
    and at the end if not one row was good.
    """
    if format is not None and format not in NAMES:
        raise ReadError(f"unknown format {format!r}; known are {', '.join(NAMES)}")
    report = ReadReport()
    records = _all(paths, format, report)
    return Reading(in_time_order(records) if ordered else records, report)


def _all(paths: Sequence[str | Path], format: str | None, report: ReadReport) -> Iterator[Record]:
    timed, untimed = 0, 0
    for path in paths:
        for record in _File(path, format, report).records():
            timed += record.time is not None
            untimed += record.time is None
            yield record
    if report.good == 0:
        names = ", ".join(name_of(path) for path in paths)
        seen = f": {report.first_broken[0]}" if report.first_broken else ""
        raise ReadError(f"{names}: not one row could be read{seen}; --format forces one of {', '.join(NAMES)}")
    if untimed and not timed and report.good > len(report.samples):
        report.assume("the log has no times; its order is the order of arrival")
    elif untimed and timed:
        report.assume(f"{untimed:,} records without a time follow the record before them in the log")


class _File:
    """One file on its way to records."""

    def __init__(self, path: str | Path, format: str | None, report: ReadReport) -> None:
        self._name = name_of(path)
        self._path = path
        self._format = format
        self._report = report
        self._chats = block_traces.Chats()
        self._line = 0

    def records(self) -> Iterator[Record]:
        """All of them. Raises ReadError if the file cannot be opened."""
        head, stream = open_log(self._path)
        try:
            with stream:
                yield from self._found(head, stream)
        except STREAM_ERRORS as error:
            self._report.skip(self._name, self._line + 1, f"{error}; nothing after it was read")

    def _found(self, head: bytes, stream: BinaryIO) -> Iterator[Record]:
        form = self._format
        text = head.decode(errors="replace")
        lines = json_rows.is_lines(head)
        table = tables.table_of(text)
        rows = lines is True and b"\n" in head.strip()
        if form == ENGINE_LOG or (form is None and not rows and table is None and _engine_wrote(text)):
            return self._engine_lines(stream)
        if form == LENGTHS or (table is not None and table.lengths):
            return self._lengths(stream, table)
        if self._plain(head, lines, table):
            return self._plain_lines(stream)
        if table is not None:
            return self._rows(tables.objects(stream, table))
        if cassette.claims(head):
            return self._rows(self._exchanges(stream))
        # A format of JSON that is forced is believed even if the file does not begin as JSON does.
        return self._rows((json_rows.from_document if lines is False else json_rows.from_lines)(stream))

    def _plain(self, head: bytes, lines: bool | None, table: tables.Table | None) -> bool:
        """Whether each line is a prompt as it is."""
        if lines is not None or table is not None or self._format not in (None, "prompts") or cassette.claims(head):
            return False
        return not json_rows.mostly_rows(head)

    def _skip(self, line: int, reason: str) -> None:
        self._line = line
        self._report.skip(self._name, line, reason)

    def _exchanges(self, stream: BinaryIO) -> Iterator[Numbered]:
        try:
            for number, row in enumerate(cassette.rows(stream), 1):
                yield Numbered(number, row)
        except BadRowError as error:
            yield Numbered(1, error)

    # --- rows of JSON ---

    def _rows(self, values: Iterable[Numbered]) -> Iterator[Record]:
        values = _unwrapped(values)
        looked_at = list(islice(values, _ROWS_FOR_SIZE))
        size = block_traces.block_size_of([item.value for item in looked_at])
        forced = next((form for form in ROW_FORMATS if form.name == self._format), None)
        for line, value in chain(looked_at, values):
            self._line = line
            if isinstance(value, BadRowError):
                self._skip(line, str(value))
                continue
            place = Place(self._name, line)
            if block_traces.claims_trace(value) if self._format is None else self._format == BLOCK_TRACE:
                name, records = BLOCK_TRACE, self._trace(value, place, size)
            else:
                form = forced or format_of(value)
                if form is None:
                    self._skip(line, f"no known format: {_shape(value)}")
                    continue
                name, records = form.name, self._shaped(form, value, place)
            yield from self._counted(name, records, line)

    def _trace(self, value: object, place: Place, size: int | None) -> Iterator[Record]:
        if not isinstance(value, dict) or "hash_ids" not in value:
            raise BadRowError(f"no block ids: {_shape(value)}")
        if "block_size" not in value:
            self._report.assume(f"blocks of {size} tokens, which fits the lengths")
        if "chat_id" not in value and "timestamp" in value:
            self._report.assume("small timestamps beside block ids are milliseconds")
        yield from block_traces.trace_records(value, place, size, self._chats.session(value))

    def _shaped(self, form: RowFormat, value: object, place: Place) -> Iterator[Record]:
        if form.name == "sharegpt":
            self._report.assume("ShareGPT: each answer was a request for the conversation before it, one after another")
        if form.name == "coding-agent":
            self._report.assume("coding-agent sessions: every session starts at time 0")
        if form.name not in ("token-ids", "prompts") and not isinstance(value, dict):
            raise BadRowError(f"not of the format {form.name}: {_shape(value)}")
        yield from form.records(value, place)

    def _counted(self, name: str, records: Iterator[Record], line: int) -> Iterator[Record]:
        """A row's records, all or none of them."""
        try:
            found = list(records)
        except BadRowError as error:
            self._skip(line, str(error))
        except (KeyError, AttributeError, TypeError, ArithmeticError, ValueError, RecursionError) as error:
            self._skip(line, f"not of the format {name}: {type(error).__name__} {error}")
        else:
            self._report.good += 1
            self._report.formats[name] += 1
            yield from found

    # --- lines of text ---

    def _lengths(self, stream: BinaryIO, table: tables.Table | None) -> Iterator[Record]:
        if table is None or not table.lengths:
            raise ReadError(f"{self._name}: the first line names no columns of prompt and answer tokens")
        for line, row in tables.cells(stream, table):
            self._line = line
            if isinstance(row, BadRowError):
                self._skip(line, str(row))
            else:
                yield from self._counted(LENGTHS, length_records(row, Place(self._name, line)), line)

    def _engine_lines(self, stream: BinaryIO) -> Iterator[Record]:
        log = engine_logs.EngineLog()
        for number, raw in enumerate(stream, 1):
            self._line = number
            try:
                found = list(log.read(raw.decode(errors="replace"), Place(self._name, number)))
            except (BadRowError, ValueError, SyntaxError) as error:
                self._skip(number, str(error))
                continue
            if found:
                self._report.good += 1
                self._report.formats[ENGINE_LOG] += 1
            for item in found:
                if isinstance(item, Sample):
                    self._report.samples.append(item)
                else:
                    yield item

    def _plain_lines(self, stream: BinaryIO) -> Iterator[Record]:
        self._report.assume("one prompt a line")
        for number, raw in enumerate(stream, 1):
            self._line = number
            if b"\0" in raw:
                self._skip(number, "a zero byte is in it, so it is no text in UTF-8")
                continue
            try:
                text = raw.rstrip(b"\r\n").decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                self._skip(number, "not UTF-8")
                continue
            if text.strip():
                yield from self._counted("prompts", text_records(text, Place(self._name, number)), number)


def _unwrapped(values: Iterable[Numbered]) -> Iterator[Numbered]:
    """Objects that are no row themselves but hold rows give those."""
    for item in values:
        inner = json_rows.rows_inside(item.value)
        if inner is None or block_traces.claims_trace(item.value) or format_of(item.value) is not None:
            yield item
        else:
            yield from (Numbered(item.line, row) for row in inner)


def _engine_wrote(text: str) -> bool:
    """Whether an engine wrote lines of it: they may begin with a bracket as JSON does, but not with what JSON holds."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith(("{", '"', "]", "}")))
    return any(engine_logs.claims(line) for line in lines)


def _shape(value: object) -> str:
    """A row for a message: its keys, not its content."""
    return f"an object with {short(sorted(value))}" if isinstance(value, dict) else f"a {type(value).__name__}"
