"""Log lines of vLLM, SGLang and llama-server: how much of the prompts they found in their caches."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import UTC, datetime

from pageinn.traffic.envelope import Place
from pageinn.traffic.fields import tokens_of
from pageinn.traffic.record import Length, Record, Reported, Text, Tokens
from pageinn.traffic.report import BadRowError, Sample

_VLLM_RATE = re.compile(r"[Pp]refix cache hit rate: (?:GPU: ([\d.]+)%, CPU: ([\d.]+)%|([\d.]+)%)")
_VLLM_REQUEST = re.compile(
    r"(?:Received request|Request) (\S+?)(?: details)?: "
    r"prompt: ('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|None), ?"
    r"(?:(?:prefix_pos: \S+, ?)?(?:sampling[_ ])?params: |prompt_token_ids: )"
)
_VLLM_IDS = re.compile(r"prompt_token_ids: (\[[\d, ]*\])")
_SGLANG = re.compile(r"Prefill batch\b.*?#new-token: (\d+), #cached-token: (\d+)")
_SGLANG_RATE = re.compile(r"cache hit rate: ([\d.]+)%")
_LLAMA_NEW = re.compile(
    r"slot\s+(?:update_slots|launch_slot_): id\s+(\d+) \| task (-?\d+) \|.*?new prompt,.*?n_tokens = (\d+)"
)
_LLAMA_OLD = re.compile(r"slot\s+update_slots: id\s+(\d+) \| task (-?\d+) \|.*?n_prompt_tokens = (\d+)")
_LLAMA_KEPT = re.compile(
    r"slot\s+update_slots: id\s+(\d+) \| task (-?\d+) \|.*?"
    r"(?:(?:n_tokens|n_past) = (\d+), memory_seq_rm|kv cache rm \[(\d+),|memory_seq_rm \[(\d+),)"
)
_CLOCK = re.compile(r"(?:(\d{4})-)?(?:(\d\d)-(\d\d) )?(\d\d):(\d\d):(\d\d)")
_MARKS = (_VLLM_RATE, _VLLM_REQUEST, _SGLANG, _LLAMA_NEW, _LLAMA_OLD, _LLAMA_KEPT)
#: Lines without a year or a day count from here: times are used for their differences only.
_YEAR, _MONTH, _DAY = 2000, 1, 1


def claims(line: str) -> bool:
    """Whether an engine wrote the line, and it says something of requests or the cache."""
    return any(mark.search(line) for mark in _MARKS)


class EngineLog:
    """The lines of one file, in order: llama-server says how long a prompt is in one line, what it kept in the next."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], int] = {}

    def read(self, line: str, place: Place) -> Iterator[Record | Sample]:
        """What the line says; nothing for a line that is about something else. Raises BadRowError."""
        if found := _VLLM_RATE.search(line):
            yield from _vllm_rates(found, line, place)
        elif found := _VLLM_REQUEST.search(line):
            yield _vllm_request(found, line, place)
        elif found := _SGLANG.search(line):
            new, cached = int(found[1]), int(found[2])
            rate = _SGLANG_RATE.search(line)
            said = float(rate[1]) / 100 if rate else None
            yield Sample(place.source, place.line, "sglang", _clock(line), said, new, cached)
        else:
            yield from self._llama(line, place)

    def _llama(self, line: str, place: Place) -> Iterator[Record]:
        if found := _LLAMA_NEW.search(line) or _LLAMA_OLD.search(line):
            self._waiting[found[1], found[2]] = int(found[3])
        elif found := _LLAMA_KEPT.search(line):
            # The first such line of a task; later ones tell of the next pieces of the same prompt.
            total = self._waiting.pop((found[1], found[2]), None)
            kept = int(found[3] or found[4] or found[5])
            if total is not None:
                said = Reported(total, min(kept, total), 0)
                yield Record(place.source, place.line, Length(total), _clock(line), reported=said)


def _vllm_rates(found: re.Match[str], line: str, place: Place) -> Iterator[Sample]:
    time = _clock(line)
    if found[3] is not None:
        yield Sample(place.source, place.line, "vllm", time, float(found[3]) / 100)
        return
    for tier, share in (("gpu", found[1]), ("cpu", found[2])):
        yield Sample(place.source, place.line, "vllm", time, float(share) / 100, tier=tier)


def _vllm_request(found: re.Match[str], line: str, place: Place) -> Record:
    ids = _VLLM_IDS.search(line, found.end(2))
    prompt: Text | Tokens
    if ids:
        prompt = tokens_of(ast.literal_eval(ids[1]), "prompt_token_ids")
    elif found[2] != "None":
        prompt = Text(ast.literal_eval(found[2]))
    else:
        raise BadRowError("the request's prompt is not in its line")
    return Record(place.source, place.line, prompt, _clock(line))


def _clock(line: str) -> float | None:
    found = _CLOCK.search(line)
    if not found:
        return None
    year, month, day, hour, minute, second = (int(part) if part else 0 for part in found.groups())
    try:
        when = datetime(year or _YEAR, month or _MONTH, day or _DAY, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    return when.timestamp()
