"""How a client ends: draining, step loops that die, questions and resets meanwhile; nobody is left waiting."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from client_runs import GREEDY, PATIENCE, answers_of, client_of, engine_of, request, within_patience
from engine_runs import Answer, ChoiceKey, run, take

from pageinn.engine.client import EngineClient
from pageinn.engine.messages import EngineDeadError, FinishReason

#: By the core's method that answers.
QUESTIONS: dict[str, Callable[[EngineClient], Awaitable[object]]] = {
    "reset_prefix_cache": EngineClient.reset_prefix_cache,
    "pins": EngineClient.pins,
    "unpin": lambda client: client.unpin("nobody's"),
    "view_memory": EngineClient.view_memory,
}


def test_draining_finishes_what_runs_and_refuses_the_rest(tiny_path: Path) -> None:
    async def drain() -> None:
        client = EngineClient(engine_of(tiny_path))
        running = client.generate(request("running", sampling=replace(GREEDY, max_tokens=200)))
        await anext(running)
        draining = asyncio.create_task(client.drain())
        await asyncio.sleep(0)
        with pytest.raises(EngineDeadError, match="shutting down"):
            await anext(client.generate(request("late")))
        assert client.alive
        rest = [delta async for delta in running]
        assert len(rest) == 199
        assert rest[-1].finish_reason is FinishReason.LENGTH
        await draining
        assert not client.alive
        with pytest.raises(EngineDeadError):
            await client.reset_prefix_cache()

    within_patience(drain())


def test_abandoning_waits_for_no_request(tiny_path: Path) -> None:
    """The loop is over when it returns, and who waits hears of it."""

    async def leave() -> None:
        engine = engine_of(tiny_path)
        client = EngineClient(engine)
        running = client.generate(request("running", sampling=replace(GREEDY, max_tokens=3000)))
        await anext(running)
        client.abandon()
        assert not client.alive
        assert engine.core.scheduler.num_running == 1
        with pytest.raises(EngineDeadError, match="has stopped"):
            async for _ in running:
                pass
        with pytest.raises(EngineDeadError):
            await client.pins()

    within_patience(leave())


def test_a_step_that_fails_ends_every_stream(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits hears of it, a reset that was asked for too; later requests are turned away, none hangs."""

    async def die() -> None:
        engine = engine_of(tiny_path)
        client = EngineClient(engine)
        streams = [client.generate(request(f"r{i}", sampling=replace(GREEDY, max_tokens=3000))) for i in range(3)]
        for stream in streams:
            await anext(stream)

        failing = threading.Event()

        def fail(*_: object) -> NoReturn:
            # The reset below comes in while the step is under way.
            failing.set()
            time.sleep(0.05)
            raise ArithmeticError("out of numbers")

        monkeypatch.setattr(engine.core._executor, "execute", fail)
        await asyncio.to_thread(failing.wait)
        reset = asyncio.ensure_future(client.reset_prefix_cache())
        for stream in streams:
            with pytest.raises(EngineDeadError, match="out of numbers"):
                async for _ in stream:
                    pass
        with pytest.raises(EngineDeadError):
            await reset
        with pytest.raises(EngineDeadError, match="stopped"):
            await anext(client.generate(request("late")))
        client._thread.join()
        assert not client.alive
        await client.drain()

    within_patience(die())


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("last", ["close", "empty"])
def test_a_question_while_the_loop_ends_is_answered(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, question: str, last: str
) -> None:
    """Asked after the loop took its last message (close), or when it has just found its inbox empty."""

    async def end() -> None:
        engine = engine_of(tiny_path)
        client = EngineClient(engine)
        there, go_on = threading.Event(), threading.Event()
        owner = engine.core if last == "close" else client._inbox
        plain = getattr(owner, last)

        def hold() -> object:
            result = plain()
            if threading.current_thread() is client._thread and not there.is_set():
                there.set()
                assert go_on.wait(PATIENCE)
            return result

        if last == "close":
            monkeypatch.setattr(engine.core, "close", hold)
        else:
            # The inbox is a C object that takes no attributes.
            monkeypatch.setattr(client, "_inbox", SimpleNamespace(put=owner.put, get=owner.get, empty=hold))
        draining = asyncio.ensure_future(client.drain())
        assert await asyncio.to_thread(there.wait, PATIENCE)
        asked = asyncio.ensure_future(QUESTIONS[question](client))
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(EngineDeadError, match="has stopped"):
            await asked
        await draining

    within_patience(end())


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_that_ends_the_loop_is_answered(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    """The one that was asked, one that came behind it, and a stream all hear why."""

    async def die() -> None:
        engine = engine_of(tiny_path)
        client = EngineClient(engine)
        running = client.generate(request("running", sampling=replace(GREEDY, max_tokens=3000)))
        await anext(running)

        def fail(*_: object) -> NoReturn:
            raise ArithmeticError("out of numbers")

        monkeypatch.setattr(engine.core, question, fail)
        answers = await asyncio.gather(*(QUESTIONS[question](client) for _ in range(2)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [EngineDeadError] * 2
        assert "out of numbers" in str(answers[0])
        with pytest.raises(EngineDeadError, match="out of numbers"):
            async for _ in running:
                pass
        await client.drain()

    within_patience(die())


def test_a_reset_while_something_runs(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case F6: it frees what is kept and reports what is in use; the running stream's answer is the same."""
    sampling = replace(GREEDY, max_tokens=100)
    expected = run(engine_of(tiny_path), [request("running", sampling=sampling)])[ChoiceKey("running", 0)]

    async def reset() -> None:
        engine, inbox_has_it = engine_of(tiny_path), threading.Event()
        async with client_of(engine) as client:
            await answers_of(client, request("done", range(100, 164)))
            answers: dict[ChoiceKey, Answer] = {}
            execute, steps = engine.core._executor.execute, count(1)

            def held(*given: Any) -> Any:
                """The second step waits for the question, which else the last one may be over before."""
                assert next(steps) != 2 or inbox_has_it.wait(PATIENCE)
                return execute(*given)

            monkeypatch.setattr(engine.core._executor, "execute", held)
            stream = client.generate(request("running", sampling=sampling))
            take(answers, await anext(stream))
            asked = asyncio.ensure_future(client.reset_prefix_cache())
            await asyncio.sleep(0)
            inbox_has_it.set()
            report = await asked
            # 64 prompt and 7 stored answer tokens; the running one has 50 of its prompt and one of its answer.
            assert (report.freed, report.in_use) == (5, 4)
            async for delta in stream:
                take(answers, delta)
            assert answers[ChoiceKey("running", 0)].bits == expected.bits
            assert (await client.reset_prefix_cache()).in_use == 0
            assert client.stats().blocks_free == client.stats().blocks_total

    within_patience(reset())


def test_a_reset_that_nobody_waits_for(tiny_path: Path) -> None:
    """Whoever asked for it goes away before it is done: the step loop lives."""

    async def leave() -> None:
        async with client_of(engine_of(tiny_path)) as client:
            stream = client.generate(request("running", sampling=replace(GREEDY, max_tokens=300)))
            await anext(stream)
            for _ in range(50):
                reset = asyncio.ensure_future(client.reset_prefix_cache())
                await asyncio.sleep(0)
                reset.cancel()
                await asyncio.sleep(0)
            assert len([delta async for delta in stream]) == 299
            assert client.alive

    within_patience(leave())
