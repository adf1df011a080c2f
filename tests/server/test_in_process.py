"""The application without a socket: streams flow, an early end is a disconnect; and publishing with tools."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from tiny import write_tiny_llama

from pageinn.cli.connection import UnavailableError, base_of, connect, model_of
from pageinn.cli.in_process import InProcess

TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
LONG = {"prompt": "Ships", "max_tokens": 2000, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("in-process") / "tiny.gguf"
    return write_tiny_llama(path, seed=5, metadata={"tokenizer.chat_template": TEMPLATE})


def with_client(model: Path, work: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    async def run() -> None:
        args = Namespace(url=None, model=model, kv_cache_memory_bytes=4 * 2**20, threads=1)
        async with connect(args) as client:
            await work(client)

    asyncio.run(run())


async def in_use(client: httpx.AsyncClient) -> int:
    text = (await client.get("/metrics")).text
    (line,) = [line for line in text.splitlines() if "pageinn:kv_blocks{" in line and 'state="in_use"' in line]
    return int(float(line.split()[-1]))


def test_a_stream_flows_and_its_early_end_frees_the_blocks(model: Path) -> None:
    """Field case G1, without a socket."""

    async def work(client: httpx.AsyncClient) -> None:
        async with client.stream("POST", "/v1/completions", json=LONG) as got:
            lines = got.aiter_lines()
            assert (await anext(lines)).startswith("data: {")
            assert await in_use(client) > 0
        while await in_use(client):
            await asyncio.sleep(0.01)

    with_client(model, work)


def test_a_cancelled_request_frees_its_blocks(model: Path) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        asking = asyncio.create_task(client.post("/v1/completions", json={**LONG, "stream": False}))
        while not await in_use(client):
            await asyncio.sleep(0.001)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        while await in_use(client):
            await asyncio.sleep(0.01)

    with_client(model, work)


def test_a_prefix_with_tools_is_published_as_chat_renders_it(model: Path) -> None:
    messages = [{"role": "system", "content": "Look out for ships."}]

    async def work(client: httpx.AsyncClient) -> None:
        published = (await client.post("/cache/public", json={"messages": messages, "tools": [TOOL]})).json()
        talk = {"messages": [*messages, {"role": "user", "content": "Now."}], "tools": [TOOL], "max_tokens": 1}
        usage = (await client.post("/v1/chat/completions", json=talk)).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == published["tokens"] > 100

    with_client(model, work)


def test_an_application_that_fails_says_so() -> None:
    async def fails(scope: object, receive: object, send: object) -> None:
        raise ValueError("boom")

    async def ends(scope: object, receive: object, send: object) -> None:
        pass

    async def ask(app: Callable[..., Awaitable[None]]) -> None:
        async with httpx.AsyncClient(base_url="http://in-process", transport=InProcess(app)) as client:
            await client.get("/")

    with pytest.raises(ValueError, match="boom"):
        asyncio.run(ask(fails))
    with pytest.raises(RuntimeError, match="ended without an answer"):
        asyncio.run(ask(ends))


def test_a_model_that_does_not_load() -> None:
    with pytest.raises(UnavailableError, match=r"no-such\.gguf"):
        with_client(Path("no-such.gguf"), model_of)


def test_addresses_with_and_without_their_path() -> None:
    for url in ("http://a:1", "http://a:1/", "http://a:1/v1", "http://a:1/v1/"):
        assert base_of(url) == "http://a:1"
