"""An engine without a server of its own: a child process that hears requests on its stdin and answers on its stdout.

It gets token ids and gives token ids, so that neither HTTP nor JSON streams nor tokenising are on its account.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import orjson

from pageinn.model.gguf_file import GGUFFile
from pageinn.text.template import ChatTemplate
from pageinn.text.tokenizer import Tokenizer

from .load import Answer, LoadError, Messages


class _Done(NamedTuple):
    first: float
    tokens: list[int]


class PipeTarget:
    """Speaks children/pipe.py's protocol. Use as an async context."""

    def __init__(self, command: Sequence[str], env: dict[str, str], log: Path, model: Path) -> None:
        self._command, self._env, self._log = command, env, log
        checkpoint = GGUFFile(model)
        self._tokenizer = Tokenizer(checkpoint.tokenizer)
        self._template = ChatTemplate.of(checkpoint.tokenizer)
        self._names = itertools.count()
        self._first: dict[int, float] = {}
        self._waiting: dict[int, asyncio.Future[_Done]] = {}

    async def __aenter__(self) -> PipeTarget:
        with self._log.open("wb") as log:
            self._child = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._env,
                limit=1 << 24,
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._stdin, self._stdout = self._child.stdin, self._child.stdout
        ready = await self._stdout.readline()
        if not ready:
            await self._child.wait()
            raise LoadError(f"it did not start; {self._log} says why")
        about = orjson.loads(ready)
        self.version, self.precision = about["ready"], about["precision"]
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if failed is not None:
            self._child.kill()
        self._stdin.close()
        await self._child.wait()
        await self._reader

    async def complete(self, prompt: Sequence[int], max_tokens: int) -> Answer:
        began = time.perf_counter()
        done = await self._ask(prompt, max_tokens)
        return Answer(done.first - began, len(prompt), len(done.tokens), 0)

    async def chat(self, messages: Messages, max_tokens: int) -> Answer:
        text = self._template.render(messages, add_generation_prompt=True)
        prompt = self._tokenizer.encode(text)
        began = time.perf_counter()
        done = await self._ask(prompt, max_tokens)
        return Answer(done.first - began, len(prompt), len(done.tokens), 0, self._tokenizer.decode(done.tokens))

    async def tokens(self, prompt: Sequence[int], max_tokens: int) -> list[int]:
        return (await self._ask(prompt, max_tokens)).tokens

    async def _ask(self, prompt: Sequence[int], max_tokens: int) -> _Done:
        name = next(self._names)
        self._waiting[name] = asyncio.get_running_loop().create_future()
        self._stdin.write(orjson.dumps({"id": name, "prompt": list(prompt), "max_tokens": max_tokens}) + b"\n")
        return await self._waiting[name]

    async def _read(self) -> None:
        async for line in self._stdout:
            event = orjson.loads(line)
            if "tokens" in event:
                done = _Done(self._first.pop(event["id"]), event["tokens"])
                self._waiting.pop(event["id"]).set_result(done)
            else:
                self._first[event["id"]] = time.perf_counter()
        for waiting in self._waiting.values():
            waiting.set_exception(LoadError(f"it ended; {self._log} says why"))
