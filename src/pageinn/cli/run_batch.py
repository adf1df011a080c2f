"""`pageinn run`: a file of requests to a file of answers, in order, to be continued after any end."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from argparse import Namespace
from collections import deque
from collections.abc import Iterator
from typing import Any

import httpx
from tqdm import tqdm

from pageinn.cli.batch_files import Answers, BatchError, read_ids, read_requests
from pageinn.cli.batch_rows import Request, answer_row, error_row, request_of
from pageinn.cli.connection import UnavailableError, connect, error_of, model_of

#: Requests under way or answered before their turn to be written, for each that may be under way.
_WINDOW = 4
#: A server that is overloaded or restarts is asked again after so many seconds each time.
_PAUSES = (0.5, 1.0, 2.0, 4.0)
_TRANSIENT = (429, 502, 503, 504)


def run_command(args: Namespace) -> int:
    """Answer what is not answered yet; returns the exit code. A row may be an error: that is no error of the run."""
    try:
        return asyncio.run(_run(args))
    except (BatchError, UnavailableError) as error:
        print(f"pageinn: error: {error}", file=sys.stderr)
        return 1


async def _run(args: Namespace) -> int:
    ids = read_ids(args.requests)
    if args.output.exists() and args.output.samefile(args.requests):
        raise BatchError(f"{args.output} holds the requests; give another -o")
    with Answers(args.output, ids) as answers:
        if answers.done == len(ids):
            print(f"{args.output} has all {len(ids)} answers", file=sys.stderr)
            return 0
        async with connect(args) as client:
            model = await model_of(client)
            if answers.models - {model}:
                (other, *_) = sorted(answers.models - {model})
                raise BatchError(
                    f"{args.output} was begun with the model {other}, and this is {model}; give another -o"
                )
            requests = (request_of(data) for data in read_requests(args.requests, skip=answers.done))
            with Progress(len(ids), answers.done) as progress:
                await _answer_all(client, requests, answers, args.concurrency, progress)
    print(progress.summary(), file=sys.stderr)
    return 0


async def _answer_all(
    client: httpx.AsyncClient, requests: Iterator[Request], answers: Answers, concurrency: int, progress: Progress
) -> None:
    """Keep `concurrency` requests under way, and write the answers in order."""
    seats = asyncio.Semaphore(concurrency)
    pending: deque[asyncio.Task[dict[str, Any]]] = deque()

    async def seated(request: Request) -> dict[str, Any]:
        async with seats:
            return await _answer(client, request, progress)

    async def write_next() -> None:
        row = await pending[0]
        pending.popleft()
        answers.append(row)
        progress.row(row)

    try:
        for request in requests:
            if len(pending) >= _WINDOW * concurrency:
                await write_next()
            pending.append(asyncio.create_task(seated(request)))
        while pending:
            await write_next()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def _answer(client: httpx.AsyncClient, request: Request, progress: Progress) -> dict[str, Any]:
    """One row. Raises UnavailableError if there is nobody to answer, which says nothing about the request."""
    if request.wrong is not None:
        return error_row(request, "invalid_request", request.wrong)
    got = await _ask(client, request)
    try:
        body = got.json()
    except ValueError:
        if got.is_success:
            return error_row(request, "invalid_answer", "the server's answer is not JSON")
        body = {"error": {"message": error_of(got), "type": None, "param": None, "code": None}}
    if got.is_success:
        progress.count(body)
    return answer_row(request, got.status_code, body)


async def _ask(client: httpx.AsyncClient, request: Request) -> httpx.Response:
    """The server's answer, asked for again where it may only be a matter of time."""
    content = json.dumps(request.body).encode()
    headers = {"content-type": "application/json"}
    for pause in (*_PAUSES, None):
        try:
            got = await client.post(request.url, content=content, headers=headers)
            if got.status_code not in _TRANSIENT:
                return got
            reason = f"answers {got.status_code}: {error_of(got)}"
        except httpx.TransportError as error:
            reason = f"cannot be reached: {str(error) or type(error).__name__}"
        if pause is not None:
            await asyncio.sleep(pause)
    raise UnavailableError(f"{client.base_url} {reason}; what is answered is kept, run the same command to continue")


class Progress:
    """A bar with tokens per second and the share of prompt tokens that were cached."""

    def __init__(self, rows: int, done: int) -> None:
        self._began = time.monotonic()
        self._bar = tqdm(total=rows, initial=done, unit="row", disable=None)
        self._rows = self._errors = 0
        self._prompt = self._cached = self._generated = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def count(self, body: Any) -> None:
        """Count the tokens of an answer."""
        usage = (body.get("usage") if isinstance(body, dict) else None) or {}
        self._prompt += usage.get("prompt_tokens", 0)
        self._generated += usage.get("completion_tokens", 0)
        self._cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)

    def row(self, row: dict[str, Any]) -> None:
        """Count a row that was written."""
        self._rows += 1
        self._errors += row["error"] is not None or row["response"]["status_code"] >= httpx.codes.BAD_REQUEST
        self._bar.set_postfix_str(f"{self._speed():.1f} tokens/s, hit rate {self._hit_rate()}", refresh=False)
        self._bar.update()

    def _speed(self) -> float:
        return self._generated / max(time.monotonic() - self._began, 1e-9)

    def _hit_rate(self) -> str:
        return f"{self._cached / self._prompt:.1%}" if self._prompt else "none yet"

    def summary(self) -> str:
        """What this run did, in one line."""
        return (
            f"{self._rows} rows, {self._errors} of them errors; {self._generated} tokens generated, "
            f"{self._speed():.1f} a second; {self._cached} of {self._prompt} prompt tokens cached"
        )
