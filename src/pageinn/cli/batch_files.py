"""The two files of a batch: requests, read twice; answers, written in the requests' order and taken up again.

Because answers are in order, the file of a run that was cut short is a beginning of the whole one, and how many lines
it has says where to go on.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any


class BatchError(RuntimeError):
    """A file that cannot be used; one line names the file, the line and the way out."""


def read_ids(path: Path) -> list[str]:
    """The custom_id of each request, all of which must have one of its own. Raises BatchError."""
    ids: dict[str, int] = {}
    for number, line in _lines(path):
        name = _custom_id(line, f"{path}, line {number}")
        if name in ids:
            raise BatchError(
                f"{path}, line {number}: custom_id {name!r} is that of line {ids[name]} too; each needs its own"
            )
        ids[name] = number
    return list(ids)


def read_requests(path: Path, skip: int) -> Iterator[dict[str, Any]]:
    """The requests after the first `skip`, as `read_ids` has found them good."""
    for _, line in islice(_lines(path), skip, None):
        yield json.loads(line)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines with something in them, and their numbers."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise BatchError(f"cannot read the requests in {path}: {error.strerror}") from error


def _custom_id(line: bytes, where: str) -> str:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BatchError(f"{where}: not JSON: {error}") from error
    name = data.get("custom_id") if isinstance(data, dict) else None
    if not isinstance(name, str) or not name:
        raise BatchError(f"{where}: no custom_id; give each request one, a string that is not empty")
    if not _is_text(name):
        raise BatchError(f"{where}: custom_id holds half of a surrogate pair, which is no character")
    return name


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class Answers:
    """The file of answers, locked against a second run. Raises BatchError if it is not the requests' own.

    done: how many answers it has. models: the models that gave them.
    """

    def __init__(self, path: Path, ids: Sequence[str]) -> None:
        self._path = path
        self.done = 0
        self.models: set[str] = set()
        try:
            self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BatchError(f"another run is writing {path}; wait for it, or give another -o") from error
        except OSError as error:
            raise BatchError(f"cannot write the answers to {path}: {error.strerror}") from error
        self._take_up(ids)

    def _take_up(self, ids: Sequence[str]) -> None:
        """Check what is there, and cut off a last line that was not written to its end."""
        end = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            self._check(line, ids)
            self.done += 1
            end += len(line)
        self._file.truncate(end)
        self._file.seek(end)

    def _check(self, line: bytes, ids: Sequence[str]) -> None:
        where = f"{self._path}, line {self.done + 1}"
        try:
            row = json.loads(line)
            name, response = row["custom_id"], row["response"]
            model = response["body"].get("model") if response else None
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise BatchError(f"{where}: not an answer; give another -o") from error
        expected = ids[self.done] if self.done < len(ids) else None
        if name != expected:
            asked = "there is no request for it" if expected is None else f"the request there is {expected!r}"
            raise BatchError(f"{where}: an answer to {name!r}, and {asked}; give another -o")
        if model is not None:
            self.models.add(model)

    def append(self, row: dict[str, Any]) -> None:
        """Write the next answer, whole; a kill from here on does not lose it."""
        self._file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        self.done += 1

    def __enter__(self) -> Answers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.fsync(self._file.fileno())
        self._file.close()
