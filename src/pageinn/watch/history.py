"""Samples in a file, one JSON line each, so that a run from cron has the last one's baseline."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pageinn.watch.sample import Sample, SampleError, from_json, to_json


class HistoryError(RuntimeError):
    """The file cannot be read or written; one line that names it."""


#: What is older than this, in seconds, is dropped.
KEPT = 2 * 3600.0


def load(path: Path, url: str, now: float) -> list[Sample]:
    """The samples of one server, oldest first; none if there is no file. A broken line is skipped.

    Raises HistoryError if the file is there and cannot be read.
    """
    try:
        lines = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HistoryError(f"{path}: {error.strerror or error}") from error
    found = [sample for line in lines if (sample := _sample(line, url)) is not None]
    return sorted((sample for sample in found if now - KEPT <= sample.time < now), key=lambda sample: sample.time)


def _sample(line: str, url: str) -> Sample | None:
    try:
        row = json.loads(line)
        if not isinstance(row, dict) or row.pop("url", None) != url:
            return None
        return from_json(row)
    except (ValueError, TypeError, SampleError):
        return None


def save(path: Path, url: str, samples: Sequence[Sample]) -> None:
    """Replace the file in one step; lines of other servers are kept. Raises HistoryError if it cannot be written."""
    rows = "".join(json.dumps({"url": url, **to_json(sample)}) + "\n" for sample in samples)
    try:
        handle, name = tempfile.mkstemp(dir=path.resolve().parent, prefix=path.name)
        with os.fdopen(handle, "w") as file:
            file.write("".join(_others(path, url)) + rows)
        os.replace(name, path)
    except OSError as error:
        raise HistoryError(f"{path}: {error.strerror or error}") from error


def _others(path: Path, url: str) -> list[str]:
    lines = path.read_text(errors="replace").splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if json.dumps(url) not in line]
