"""Traces of lengths only, in CSV: Azure's and BurstGPT's. They say when and how much, and claim no reuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pageinn.traffic.envelope import Place
from pageinn.traffic.fields import count_of, name_of, short, time_of
from pageinn.traffic.record import Length, Record
from pageinn.traffic.report import BadRowError

#: Column names, lower case with blanks for anything but letters: time, prompt tokens, answer tokens, seconds.
_TIMES = ("timestamp", "arrived at", "arrival time", "arrival timestamp", "start time", "time")
_PROMPTS = (
    "contexttokens",
    "request tokens",
    "num prefill tokens",
    "input tokens",
    "prompt tokens",
    "input length",
    "prompt length",
    "prompt len",
    "input len",
)
_OUTPUTS = (
    "generatedtokens",
    "response tokens",
    "num decode tokens",
    "output tokens",
    "completion tokens",
    "output length",
    "output len",
)
_SECONDS = ("elapsed time", "duration")


def columns_of(header: Sequence[str]) -> list[str] | None:
    """The columns if these names head such a table, else None."""
    columns = [name.strip().strip('"').lower().replace("_", " ") for name in header]
    known = any(name in _PROMPTS for name in columns) and any(name in _OUTPUTS for name in columns)
    return columns if known else None


def length_records(row: Mapping[str, str], place: Place) -> Iterator[Record]:
    """One request. Raises BadRowError for a cell that is no count."""
    prompt = _cell(row, _PROMPTS)
    output = _cell(row, _OUTPUTS)
    yield Record(
        source=place.source,
        line=place.line,
        prompt=Length(_count(prompt)),
        time=time_of(_trimmed(_cell(row, _TIMES))),
        session=name_of(row.get("session id") or ""),
        model=name_of(row.get("model") or ""),
        output_tokens=_count(output),
        duration=_seconds(_cell(row, _SECONDS)),
    )


def _cell(row: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((row[name] for name in names if row.get(name)), None)


def _count(text: str | None) -> int:
    try:
        return count_of(float(text or ""), "tokens")
    except ValueError as error:
        raise BadRowError(f"{short(text)} is not a number of tokens") from error


def _seconds(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


def _trimmed(text: str | None) -> str | None:
    """Azure writes seven digits after the second, one more than an ISO date may have here."""
    if text is None:
        return None
    whole, dot, fraction = text.partition(".")
    digits = fraction[: len(fraction) - len(fraction.lstrip("0123456789"))] if dot else ""
    return f"{whole}.{digits[:6]}{fraction[len(digits) :]}" if len(digits) > 6 and ":" in whole else text
