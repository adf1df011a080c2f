"""`pageinn chat`: talk in the terminal, and see what the cache did for each answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from argparse import Namespace
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from io import TextIOWrapper
from typing import Any

import httpx

from pageinn.cli.connection import UnavailableError, connect, error_of, model_of

_HELP = "/reset starts anew, /exit or Ctrl-D leaves, Ctrl-C ends an answer"
#: What a model may not do to a terminal. Line ends and tabs are text.
_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class TurnError(RuntimeError):
    """A turn that got no answer, or not all of it; the conversation can go on."""


@dataclass
class Answer:
    """What has come of an answer so far. Times are in seconds; usage is the server's, at the end."""

    began: float = field(default_factory=time.monotonic)
    text: str = ""
    first: float | None = None
    usage: dict[str, Any] | None = None


def chat_command(args: Namespace) -> int:
    """Talk until /exit or the end of the input; returns the exit code."""
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (gives input() a history and keys to edit with)
    elif isinstance(sys.stdin, TextIOWrapper):
        # A piped line that is no UTF-8 is no reason to end.
        sys.stdin.reconfigure(errors="replace")
    with asyncio.Runner() as runner:
        try:
            return _talk(args, runner)
        except UnavailableError as error:
            print(f"pageinn: error: {error}", file=sys.stderr)
            return 1


def _talk(args: Namespace, runner: asyncio.Runner) -> int:
    stack = AsyncExitStack()
    client = runner.run(stack.enter_async_context(connect(args)))
    try:
        model = runner.run(model_of(client))
        print(f"{model}\n{_HELP}", file=sys.stderr)
        conversation = Conversation(client, model, args)
        while (line := _ask()) is not None and line != "/exit":
            if line == "/reset":
                conversation.reset()
                print("[a new conversation]", file=sys.stderr)
            elif line:
                _answer(conversation, line, runner)
    finally:
        runner.run(stack.aclose())
    return 0


def _ask() -> str | None:
    """The next line; None at the end of the input. Ctrl-C at the prompt only drops what was typed."""
    while True:
        try:
            return input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return None
        except KeyboardInterrupt:
            print(f"\n[{_HELP}]", file=sys.stderr)


def _answer(conversation: Conversation, line: str, runner: asyncio.Runner) -> None:
    """Print the answer to a line and what it cost. Ctrl-C ends it, and what has come of it stays said."""
    answer = Answer()
    end = ""
    try:
        runner.run(conversation.ask(line, answer))
    except KeyboardInterrupt:
        end = "interrupted"
    except TurnError as error:
        end = f"error: {error}"
    conversation.close(answer)
    print(flush=True)
    print(f"[{'; '.join(filter(None, (end, _cost(answer))))}]", file=sys.stderr, flush=True)


class Conversation:
    """The turns so far, and where to send the next one."""

    def __init__(self, client: httpx.AsyncClient, model: str, args: Namespace) -> None:
        self._client = client
        self._options: dict[str, Any] = {
            "model": model,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({} if args.temperature is None else {"temperature": args.temperature}),
            **({} if args.max_tokens is None else {"max_tokens": args.max_tokens}),
        }
        self._system = [] if args.system is None else [{"role": "system", "content": args.system}]
        self._turns: list[dict[str, str]] = []

    def reset(self) -> None:
        """Forget all turns but the system's."""
        self._turns.clear()

    async def ask(self, line: str, answer: Answer) -> None:
        """Print the answer as it comes, and put it together in `answer`. Raises TurnError."""
        self._turns.append({"role": "user", "content": line})
        body = {**self._options, "messages": self._system + self._turns}
        try:
            async with self._client.stream("POST", "/v1/chat/completions", json=body) as got:
                if got.status_code != httpx.codes.OK:
                    await got.aread()
                    raise TurnError(error_of(got))
                await _read(got, answer)
        except httpx.TransportError as error:
            raise TurnError(f"the connection broke: {str(error) or type(error).__name__}") from error

    def close(self, answer: Answer) -> None:
        """Keep what was answered, also if it was cut short; without an answer, the question is taken back."""
        if answer.text:
            self._turns.append({"role": "assistant", "content": answer.text})
        else:
            self._turns.pop()


async def _read(response: httpx.Response, answer: Answer) -> None:
    """Print a stream of server-sent events. Raises TurnError if it tells of an error or breaks off."""
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            return
        if not line.startswith("data: "):
            continue
        try:
            chunk = json.loads(line.removeprefix("data: "))
        except ValueError as error:
            raise TurnError("the server sent something that is no JSON") from error
        if "error" in chunk:
            raise TurnError(str(chunk["error"].get("message")))
        answer.usage = chunk.get("usage") or answer.usage
        for choice in chunk["choices"]:
            text = choice["delta"].get("content") or ""
            if text and answer.first is None:
                answer.first = time.monotonic()
            answer.text += text
            print(text.translate(_CONTROLS), end="", flush=True)
    raise TurnError("the answer broke off")


def _cost(answer: Answer) -> str:
    """Cached tokens, time to the first token, and speed, as far as they are known."""
    parts = []
    if answer.usage is not None:
        details = answer.usage.get("prompt_tokens_details") or {}
        parts.append(f"{details.get('cached_tokens', 0)} of {answer.usage['prompt_tokens']} prompt tokens cached")
    if answer.first is not None:
        parts.append(f"first token after {answer.first - answer.began:.2f} s")
    if answer.usage is not None and answer.first is not None:
        tokens, seconds = answer.usage["completion_tokens"], time.monotonic() - answer.first
        parts.append(f"{tokens} tokens" + (f", {(tokens - 1) / seconds:.1f} a second" if tokens > 1 else ""))
    return ", ".join(parts)
