"""Records in order of time, past what memory holds: sorted runs on disk, merged."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator
from heapq import merge
from operator import itemgetter
from typing import IO

from pageinn.traffic.record import BlockIds, Chat, Record, Text, Tokens

#: Bytes of prompts that are sorted in memory.
MEMORY = 256 << 20
_Timed = tuple[float, int, Record]
#: Order by time, then by place in the log: a stable sort.
_KEY = itemgetter(0, 1)


def in_time_order(records: Iterable[Record], memory: int = MEMORY) -> Iterator[Record]:
    """The same records by time. One without a time stays behind the one it followed.

    memory: about how many bytes of prompts are held; more goes to temporary files.
    """
    runs: list[IO[bytes]] = []
    held: list[_Timed] = []
    weight = 0
    time = float("-inf")
    try:
        for number, record in enumerate(records):
            time = time if record.time is None else record.time
            held.append((time, number, record))
            weight += _weight(record)
            if weight > memory:
                runs.append(_spilled(held))
                held, weight = [], 0
        held.sort(key=_KEY)
        for _, _, record in merge(*(_stored(run) for run in runs), held, key=_KEY):
            yield record
    finally:
        for run in runs:
            run.close()


def _spilled(held: list[_Timed]) -> IO[bytes]:
    held.sort(key=_KEY)
    run = tempfile.TemporaryFile()  # noqa: SIM115  (closed by in_time_order)
    for item in held:
        pickle.dump(item, run, protocol=pickle.HIGHEST_PROTOCOL)
    run.seek(0)
    return run


def _stored(run: IO[bytes]) -> Iterator[_Timed]:
    """What this process wrote itself just now, so unpickling it is safe."""
    while True:
        try:
            yield pickle.load(run)
        except EOFError:
            return


def _weight(record: Record) -> int:
    prompt = record.prompt
    size = 500 + len(record.output or "")
    if isinstance(prompt, Text):
        size += len(prompt.text)
    elif isinstance(prompt, Tokens):
        size += len(prompt.packed)
    elif isinstance(prompt, BlockIds):
        size += 40 * len(prompt.ids)
    elif isinstance(prompt, Chat):
        size += sum(len(str(message)) for message in prompt.messages) + 1000 * len(prompt.tools)
    return size
