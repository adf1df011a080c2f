"""A line in the log for each deploy: what prompts begin with now, and where that differs from before."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import thread_time
from typing import Any, NamedTuple

from pageinn.explain.values import clipped, masked
from pageinn.memory.tokens import TOKEN_BYTES, unpack
from pageinn.misses.heads import Change, Head, Heads, head_of
from pageinn.misses.look import Decode
from pageinn.misses.record import Record
from pageinn.misses.thrift import Thrift

log = logging.getLogger(__name__)

_VERSION = 1
#: Beginnings of prompts whose head is known without a look at their text, and deploys that are remembered.
_BEGINNINGS, _REMEMBERED = 64, 16
#: Prompts whose heads may wait to be read; others beyond that are passed over.
_WAITING = 4
_SHOWN = 160


class Deploy(NamedTuple):
    """What was told of a change: when (seconds since 1970), and texts masked unless text is shown."""

    time: float
    tenant: str
    fingerprint: str
    before: str
    line: int
    was: str
    now: str


class _Seen(NamedTuple):
    """A request: its head, or its prompt where that is to be read."""

    tenant: str
    head: Head | None
    prompt: bytes


class Deploys:
    """Sees each request that is recorded. What is read and written is done in a thread of its own, thriftily."""

    def __init__(
        self, decode: Decode, clock: Callable[[], float], file: Path | None = None, show_text: bool = False
    ) -> None:
        self._decode = decode
        self._clock = clock
        self._file = file
        self._shown = clipped if show_text else masked
        self._thrift = Thrift(clock)
        self._heads = Heads(() if file is None else _read(file))
        self._beginnings: OrderedDict[tuple[str, bytes], Head] = OrderedDict()
        self._inbox: deque[_Seen] = deque()
        self._unread = 0
        self._lock = threading.Lock()
        self._reader = ThreadPoolExecutor(1, "pageinn-heads")
        self.told: deque[Deploy] = deque(maxlen=_REMEMBERED)

    def see(self, record: Record) -> None:
        """A request was recorded. Takes microseconds; what is not known of its beginning is read by and by."""
        tenant, prompt = record.scope.tenant, record.prompt
        with self._lock:
            head = self._known(tenant, prompt)
            if head is None and self._unread >= _WAITING:
                return
            self._unread += head is None
            idle = not self._inbox
            self._inbox.append(_Seen(tenant, head, b"" if head is not None else prompt))
        if idle:
            self._reader.submit(self._take_in)

    def close(self) -> None:
        """Let go of the thread, once it has done what it has begun."""
        self._reader.shutdown()

    def _known(self, tenant: str, prompt: bytes) -> Head | None:
        for owner, beginning in reversed(self._beginnings):
            if owner == tenant and prompt.startswith(beginning):
                self._beginnings.move_to_end((owner, beginning))
                return self._beginnings[owner, beginning]
        return None

    # --- in the thread ---

    def _take_in(self) -> None:
        while self._inbox:
            seen = self._inbox[0]
            try:
                self._read_one(seen)
            except Exception:
                # A prompt may hold anything; one that cannot be read is not to keep the next ones from it.
                log.exception("what a prompt of tenant %s begins with cannot be read", seen.tenant)
            with self._lock:
                self._unread -= bool(seen.prompt)
                self._inbox.popleft()

    def _read_one(self, seen: _Seen) -> None:
        head = seen.head or self._learn(seen.tenant, seen.prompt)
        change = None if head is None else self._heads.see(seen.tenant, head)
        if change is not None:
            self._tell(change)

    def _learn(self, tenant: str, prompt: bytes) -> Head | None:
        """Read the head of a prompt, if it has one and that is affordable now."""
        if self._thrift.allowance() <= 0:
            return None
        began = thread_time()
        head = head_of(self._decode(unpack(prompt)))
        if head is not None:
            beginning = _beginning(prompt, head.text, self._decode)
            # One text for all that are the same but for their clocks.
            head = self._heads.known(tenant, head.fingerprint) or head
            with self._lock:
                self._beginnings[tenant, beginning] = head
                if len(self._beginnings) > _BEGINNINGS:
                    self._beginnings.popitem(last=False)
        self._thrift.spent(thread_time() - began)
        return head

    def _tell(self, change: Change) -> None:
        was, now = self._shown(change.was, _SHOWN), self._shown(change.now, _SHOWN)
        before = "" if change.before is None else change.before.fingerprint
        name = f"prompts of tenant {change.tenant} begin with head {change.head.fingerprint}"
        size = f"{len(change.head.text):,} characters"
        if change.before is None:
            log.info("%s, %s, which is like none before", name, size)
        elif before == change.head.fingerprint:
            log.info("%s, %s, as before the restart", name, size)
        else:
            log.info("%s, %s, no longer with %s; line %d differs: %r was %r", name, size, before, change.line, now, was)
        self.told.append(Deploy(self._clock(), change.tenant, change.head.fingerprint, before, change.line, was, now))
        if self._file is not None:
            _write(self._file, self._heads.told())


def _beginning(prompt: bytes, head: str, decode: Decode) -> bytes:
    """The tokens, packed, that stand for no more than the head's text."""
    tokens = unpack(prompt)
    low, high = 0, len(tokens)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(decode(tokens[:middle])) <= len(head) else (low, middle - 1)
    return prompt[: low * TOKEN_BYTES]


def _read(file: Path) -> list[tuple[str, str]]:
    """Heads told of by an earlier process; none, and a line in the log, if the file is not what `_write` wrote."""
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']}")
        return [(str(head["tenant"]), str(head["text"])) for head in content["heads"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s: prompt heads of earlier deploys cannot be read: %s", file, error)
        return []


def _write(file: Path, told: list[tuple[str, str]]) -> None:
    """Replace the file, which its owner alone may read, for it holds the text of prompts' heads."""
    content = {"version": _VERSION, "heads": [{"tenant": tenant, "text": text} for tenant, text in told]}
    fresh = file.with_name(f"{file.name}.new")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
            json.dump(content, out)
        fresh.replace(file)
    except OSError as error:
        log.warning("%s: prompt heads cannot be written: %s", file, error)
