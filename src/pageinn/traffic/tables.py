"""Tables in CSV, with commas, semicolons or tabs: of lengths, or rows whose cells hold prompts, bodies or exports."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

from pageinn.traffic.json_rows import Numbered
from pageinn.traffic.lengths import columns_of
from pageinn.traffic.opening import HEAD
from pageinn.traffic.report import BadRowError

_DELIMITERS = ",;\t"
#: Columns, one of which a table of prompts must have beside others.
_CONTENT = frozenset(
    (
        "prompt",
        "messages",
        "input",
        "text",
        "request",
        "request_body",
        "body",
        "conversation",
        "conversations",
        "prompt_token_ids",
        "token_ids",
        "input_ids",
        "hash_ids",
    )
)
_COLUMN = re.compile(r"[\w .:/()\[\]-]{1,60}")
#: Cells of other columns that look like a number are one; those of these stay as they are written.
_WRITTEN = _CONTENT | {"output", "response", "completion", "answer"}
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d+)?")
#: A prompt may be longer than the csv module's own limit for a cell.
csv.field_size_limit(1 << 30)


class Table(NamedTuple):
    """How a table is written. lengths: whether it says how long prompts are, and nothing else of them."""

    delimiter: str
    columns: list[str]
    lengths: bool


def table_of(head: str) -> Table | None:
    """What table a file with this beginning holds, if it is one that can be used."""
    text = head.lstrip("\ufeff")
    for delimiter in _DELIMITERS:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        try:
            names, second = next(rows, []), next(rows, None)
        except csv.Error:
            continue
        lengths = columns_of(names)
        if lengths is not None:
            return Table(delimiter, lengths, True)
        names = [name.strip() for name in names]
        if len(names) < 2 or not _CONTENT.intersection(names) or not all(map(_COLUMN.fullmatch, names)):
            continue
        # A second row that is cut by the end of what is looked at has fewer cells.
        if second is not None and (len(second) == len(names) or (len(second) < len(names) and len(head) >= HEAD // 2)):
            return Table(delimiter, names, False)
    return None


def cells(stream: BinaryIO, table: Table) -> Iterator[Numbered]:
    """Each row as text by column, and the line it ends on."""
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="")
    rows = csv.reader(text, delimiter=table.delimiter)
    next(rows, None)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield Numbered(rows.line_num, BadRowError(str(error)))
            continue
        if row:
            yield Numbered(rows.line_num, dict(zip(table.columns, row, strict=False)))


def objects(stream: BinaryIO, table: Table) -> Iterator[Numbered]:
    """Each row as an object of the formats in JSON."""
    for line, row in cells(stream, table):
        yield Numbered(line, row if isinstance(row, BadRowError) else _object(row))


def _object(row: Mapping[str, str]) -> dict[str, Any]:
    return {name: _cell(name, text) for name, text in row.items() if text}


def _cell(name: str, text: str) -> Any:
    if text.lstrip().startswith(("{", "[")):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return json.loads(text) if name not in _WRITTEN and _NUMBER.fullmatch(text) else text
