"""The async face of the engine: what the server holds. The only file that knows the engine runs in a thread."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from pageinn.engine.messages import (
    BusyError,
    Cancel,
    ConfigureTenants,
    Delta,
    EngineDeadError,
    GenerationRequest,
    ListPins,
    RefusedError,
    ResetPrefixCache,
    ResetReport,
    Submit,
    TakenView,
    TenantRules,
    Unpin,
    ViewMemory,
)
from pageinn.engine.stats import Stats
from pageinn.memory.retention import Pin
from pageinn.memory.shares import check_shares

if TYPE_CHECKING:
    from pageinn.engine.core import EngineCore
    from pageinn.engine.engine import Engine

log = logging.getLogger("pageinn")

#: How often an idle loop looks at the clock, so that windowed figures do not stand still.
_IDLE_SECONDS = 1.0
#: How often figures are taken while it works, in seconds; besides, whenever an answer starts or ends.
_STATS_SECONDS = 0.05
#: How often it hands more to the disk's writer while there is nothing else to do.
_BEHIND_SECONDS = 0.002


class _Stream:
    """Where a request's deltas go: a queue of the event loop that waits for them. None ends it.

    started: whether the core has the request; before that, deltas under its id belong to an earlier one.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[Delta | EngineDeadError | None] = asyncio.Queue()
        self.started = False


class _Shutdown:
    """Ends the step loop."""


_Question = tuple[ResetPrefixCache | ListPins | Unpin | ViewMemory, "Future[Any]"]
_Message = tuple[Submit, _Stream] | Cancel | ConfigureTenants | _Shutdown | _Question
T = TypeVar("T")


class EngineClient:
    """Starts the step loop in a thread and exchanges messages with it."""

    def __init__(self, engine: Engine) -> None:
        self._core: EngineCore = engine.core
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._streams: dict[str, _Stream] = {}
        self._stats = self._core.stats()
        self._next_stats = 0.0
        self._draining = False
        self._abandoned = False
        self._ended: str | None = None
        self._thread = threading.Thread(target=self._run, name="pageinn-step", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the step loop still runs."""
        return self._thread.is_alive()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """Stream the deltas of all choices; closing the iterator early cancels.

        Raises RefusedError and BusyError before the first delta, EngineDeadError when the loop has ended or is ending.
        """
        if request.sampling.json_schema is None:
            self._core.check(request)
        else:
            # Compiling a schema may take a second, in which other streams go on.
            await asyncio.to_thread(self._core.check, request)
        if request.request_id in self._streams:
            raise RefusedError(f"request id {request.request_id} is in use", "request_id")
        if self._draining:
            raise EngineDeadError("the engine is shutting down")
        stream = self._streams[request.request_id] = _Stream()
        unfinished = request.sampling.n
        self._inbox.put((Submit(request), stream))
        try:
            # Asked after the stream is there to be told: a loop that ends from here on tells it.
            self._require_loop()
            while unfinished:
                delta = await stream.queue.get()
                if delta is None:
                    return
                if isinstance(delta, EngineDeadError):
                    raise delta
                if delta.busy is not None:
                    raise BusyError(delta.error or "", delta.busy)
                unfinished -= delta.finish_reason is not None
                yield delta
        finally:
            del self._streams[request.request_id]
            if unfinished:
                self._inbox.put(Cancel(request.request_id))

    async def cancel(self, request_id: str) -> None:
        """Free everything of a request at the next step; its stream ends where it is."""
        self._inbox.put(Cancel(request_id))
        stream = self._streams.get(request_id)
        if stream is not None:
            _wake(stream.loop, [(stream, None)])

    async def reset_prefix_cache(self) -> ResetReport:
        """Drop all kept blocks; says what that freed. Raises EngineDeadError when the loop has ended."""
        answer: Future[ResetReport] = Future()
        return await self._ask((ResetPrefixCache(), answer), answer)

    async def pins(self) -> list[Pin]:
        """The pinned prefixes. Raises EngineDeadError when the loop has ended."""
        answer: Future[list[Pin]] = Future()
        return await self._ask((ListPins(), answer), answer)

    async def unpin(self, name: str) -> Pin | None:
        """Let go of a pinned prefix; None if there is none of this name. Raises EngineDeadError as above."""
        answer: Future[Pin | None] = Future()
        return await self._ask((Unpin(name), answer), answer)

    async def view_memory(self) -> TakenView:
        """Who holds which block, as of the end of a step. Raises EngineDeadError as above."""
        answer: Future[TakenView] = Future()
        return await self._ask((ViewMemory(), answer), answer)

    def configure_tenants(self, rules: Mapping[str, TenantRules]) -> None:
        """Let these rules hold from the next step on. Raises SharesError where they contradict each other."""
        check_shares({tenant: rule.share for tenant, rule in rules.items()})
        self._inbox.put(ConfigureTenants(rules))

    async def _ask(self, message: _Question, answer: Future[T]) -> T:
        self._inbox.put(message)
        # Asked after the message is there to be found: a loop that ends from here on finds it.
        self._require_loop()
        return await asyncio.wrap_future(answer)

    def stats(self) -> Stats:
        """Counters and gauges: as of the last step that started or ended an answer, or newer ones."""
        return self._stats

    async def drain(self) -> None:
        """Refuse new requests, wait for the running ones, stop the loop."""
        self._draining = True
        while self._streams and self.alive:
            await asyncio.sleep(0.01)
        self._inbox.put(_Shutdown())
        await asyncio.to_thread(self._thread.join)

    def abandon(self) -> None:
        """End the loop with the step under way, whatever still runs or is to be written to disk, and wait for that.

        A process that ended while a kernel runs in another thread could end by an abort instead of its exit code.
        """
        self._draining = self._abandoned = True
        self._inbox.put(_Shutdown())
        self._thread.join()

    def _require_loop(self) -> None:
        if self._ended is not None:
            raise EngineDeadError(self._ended)

    # --- the step loop's side ---

    def _run(self) -> None:
        try:
            while self._take_messages():
                self._publish(self._core.step())
            if not self._abandoned:
                self._core.close()
            self._end("the engine has stopped")
        except Exception as error:
            log.exception("the step loop has ended")
            self._end(_why(error))

    def _take_messages(self) -> bool:
        """Act on what came in, waiting for something to do; False to end the loop."""
        while True:
            try:
                pause = _BEHIND_SECONDS if self._core.behind else _IDLE_SECONDS
                message = self._inbox.get(block=self._core.idle, timeout=pause)
            except queue.Empty:
                if not self._core.idle:
                    return True
                self._core.rest()
                self._stats = self._core.stats()
                continue
            match message:
                case (Submit(request), _Stream() as stream):
                    self._core.submit(request)
                    stream.started = True
                case Cancel(request_id):
                    self._core.cancel(request_id)
                case ConfigureTenants(rules):
                    self._core.configure_tenants(rules)
                    self._stats = self._core.stats()
                case (ResetPrefixCache() | ListPins() | Unpin() | ViewMemory() as question, Future() as answer):
                    if answer.set_running_or_notify_cancel():
                        self._answer_to(question, answer)
                case _Shutdown():
                    return False

    def _answer_to(self, question: ResetPrefixCache | ListPins | Unpin | ViewMemory, answer: Future[Any]) -> None:
        """Settle a future that is no longer in the inbox: what ends the loop here would find it nowhere else."""
        try:
            result = self._answer(question)
            self._stats = self._core.stats()
        except Exception as error:
            answer.set_exception(EngineDeadError(_why(error)))
            raise
        answer.set_result(result)

    def _answer(
        self, question: ResetPrefixCache | ListPins | Unpin | ViewMemory
    ) -> ResetReport | list[Pin] | Pin | TakenView | None:
        match question:
            case ResetPrefixCache():
                return self._core.reset_prefix_cache()
            case ListPins():
                return self._core.pins()
            case Unpin(name):
                return self._core.unpin(name)
            case ViewMemory():
                return self._core.view_memory()

    def _publish(self, deltas: list[Delta]) -> None:
        now = time.monotonic()
        came_or_went = self._core.scheduler.num_running != self._stats.running
        ended = self._core.idle or any(delta.finish_reason is not None for delta in deltas)
        if came_or_went or ended or now >= self._next_stats:
            self._stats, self._next_stats = self._core.stats(), now + _STATS_SECONDS
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, Delta]]] = {}
        for delta in deltas:
            stream = self._streams.get(delta.request_id)
            if stream is not None and stream.started:
                by_loop.setdefault(stream.loop, []).append((stream, delta))
        # One wake-up a step and loop, however many streams are open.
        for loop, pieces in by_loop.items():
            _wake(loop, pieces)

    def _end(self, why: str) -> None:
        """Tell everybody who waits; whoever comes later sees `_ended`."""
        self._ended = why
        for stream in list(self._streams.values()):
            _wake(stream.loop, [(stream, EngineDeadError(why))])
        while not self._inbox.empty():
            match self._inbox.get():
                case (ResetPrefixCache() | ListPins() | Unpin() | ViewMemory(), Future() as answer):
                    if answer.set_running_or_notify_cancel():
                        answer.set_exception(EngineDeadError(why))


def _why(error: Exception) -> str:
    return f"the engine has stopped: {error}"


def _deliver(pieces: Sequence[tuple[_Stream, Delta | EngineDeadError | None]]) -> None:
    for stream, piece in pieces:
        stream.queue.put_nowait(piece)


def _wake(loop: asyncio.AbstractEventLoop, pieces: Sequence[tuple[_Stream, Delta | EngineDeadError | None]]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(_deliver, pieces)
