"""The engines: how each is started with its own best documented settings, and what its rows are to say."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from pageinn.model.gguf_file import GGUFFile
from pageinn.text.tokenizer import Tokenizer

from .http_target import AskTokens, Dialect, HttpTarget
from .load import LoadError, Target
from .pipe_target import PipeTarget

CHILDREN = Path(__file__).parent / "children"
#: An engine that is not up by then will not come up.
START_SECONDS = 600.0


@dataclass(frozen=True)
class Setup:
    """What all engines have in common. work: a folder for logs and the converted model."""

    model: Path
    threads: int
    work: Path

    @property
    def folder(self) -> Path:
        """The model for engines that read no GGUF; see children/convert.py."""
        return self.work / "model-float32"


@dataclass(frozen=True)
class Engine:
    """One row's engine. up: starts it, yields it while it serves, and ends it."""

    name: str
    interface: str
    up: Callable[[Setup], AbstractAsyncContextManager[Target]]


def pageinn(flags: Sequence[str]) -> Engine:
    """The server with its default settings, and `flags`."""

    @asynccontextmanager
    async def up(setup: Setup) -> AsyncIterator[Target]:
        serve = [sys.executable, "-m", "pageinn.cli", "serve", str(setup.model)]
        command = [*serve, "--served-model-name", "m", "--threads", str(setup.threads), *flags]
        precision = "int8 weights, bfloat16 cache"
        dialect = Dialect(
            "pageinn", precision, "/ready", ("/openapi.json", "info", "version"), _pageinn_tokens(setup.model)
        )
        async with _server(dialect, command, setup, {}) as target:
            yield target

    return Engine("pageinn", "HTTP", up)


def llama_server(binary: Path) -> Engine:
    """16 slots over one cache of 49,152 tokens, which is what the largest workload holds at once."""

    @asynccontextmanager
    async def up(setup: Setup) -> AsyncIterator[Target]:
        sizes = ["-t", str(setup.threads), "-np", "16", "-c", "49152", "--kv-unified"]
        command = [str(binary), "-m", str(setup.model), *sizes]
        precision = "Q4_1 weights, float16 cache"
        dialect = Dialect("llama.cpp", precision, "/health", ("/props", "build_info"), _llama_tokens)
        async with _server(dialect, command, setup, {}) as target:
            yield target

    return Engine("llama.cpp", "HTTP", up)


def vllm(python: Path, dtype: str) -> Engine:
    """The OpenAI server of the CPU build, prefix caching on, one worker thread per core."""

    @asynccontextmanager
    async def up(setup: Setup) -> AsyncIterator[Target]:
        env = {
            "VLLM_CPU_KVCACHE_SPACE": "4",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{setup.threads - 1}",
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        serve = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(setup.folder)]
        sizes = ["--dtype", dtype, "--max-model-len", "8192", "--max-num-seqs", "16", "--enable-prefix-caching"]
        command = [*serve, *sizes, "--served-model-name", "m"]
        dialect = Dialect("vllm", f"{dtype} weights and cache", "/health", ("/version", "version"), _vllm_tokens)
        async with _server(dialect, command, setup, env) as target:
            yield target

    return Engine("vllm", "HTTP", up)


def openvino(python: Path) -> Engine:
    """OpenVINO GenAI's continuous batching with prefix caching."""

    @asynccontextmanager
    async def up(setup: Setup) -> AsyncIterator[Target]:
        command = [str(python), str(CHILDREN / "run_openvino.py"), str(setup.model), str(setup.threads)]
        async with PipeTarget(command, _environment({}), setup.work / "openvino.log", setup.model) as target:
            yield target

    return Engine("openvino", "in process", up)


def transformers(python: Path) -> Engine:
    """`generate`, one request after another."""

    @asynccontextmanager
    async def up(setup: Setup) -> AsyncIterator[Target]:
        command = [str(python), str(CHILDREN / "run_transformers.py"), str(setup.folder), str(setup.threads)]
        async with PipeTarget(command, _environment({}), setup.work / "transformers.log", setup.model) as target:
            yield target

    return Engine("transformers", "in process", up)


@asynccontextmanager
async def _server(dialect: Dialect, command: Sequence[str], setup: Setup, env: dict[str, str]) -> AsyncIterator[Target]:
    """A server of its own on a free port; its output goes to a log in the work folder."""
    port = _free_port()
    url, log = f"http://127.0.0.1:{port}", setup.work / f"{dialect.name}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *[*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=output,
            stderr=output,
            env=_environment(env),
            start_new_session=True,
        )
    try:
        await _wait_for(url + dialect.ready, process, log)
        async with HttpTarget(url, dialect) as target:
            yield target
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """The server and, at the latest then, the processes that it started: it leads a group of its own."""
    if process.returncode is None:
        process.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 30)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def _wait_for(url: str, process: asyncio.subprocess.Process, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline:
            if process.returncode is not None:
                raise LoadError(f"it did not start; {log} says why")
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
    raise LoadError(f"it was not up after {START_SECONDS:.0f} s; {log} may say why")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _environment(more: dict[str, str]) -> dict[str, str]:
    """This process's, but for what would hold back a library's choice of kernels."""
    dropped = {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "PYTHONPATH"}
    return {**{name: value for name, value in os.environ.items() if name not in dropped}, **more}


def _llama_tokens(prompt: Sequence[int], count: int) -> tuple[str, dict[str, Any], Callable[[Any], list[int]]]:
    body = {"prompt": list(prompt), "n_predict": count, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    return "/completion", body, lambda reply: reply["tokens"]


def _vllm_tokens(prompt: Sequence[int], count: int) -> tuple[str, dict[str, Any], Callable[[Any], list[int]]]:
    return "/v1/completions", {**_greedy(prompt, count), "return_token_ids": True}, _token_ids


def _token_ids(reply: Any) -> list[int]:
    return reply["choices"][0]["token_ids"]


def _pageinn_tokens(model: Path) -> AskTokens:
    """By the names of the log-probabilities' tokens, which no two tokens share."""
    tokenizer = Tokenizer(GGUFFile(model).tokenizer)
    ids = {_named(tokenizer, token): token for token in range(len(tokenizer.token_bytes))}

    def ask(prompt: Sequence[int], count: int) -> tuple[str, dict[str, Any], Callable[[Any], list[int]]]:
        def read(reply: Any) -> list[int]:
            return [ids[name] for name in reply["choices"][0]["logprobs"]["tokens"]]

        return "/v1/completions", {**_greedy(prompt, count), "logprobs": 0}, read

    return ask


def _named(tokenizer: Tokenizer, token: int) -> str:
    exact = tokenizer.token_bytes[token]
    try:
        return exact.decode() if exact else tokenizer.token_text(token)
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in exact)


def _greedy(prompt: Sequence[int], count: int) -> dict[str, Any]:
    return {"model": "m", "prompt": list(prompt), "max_tokens": count, "temperature": 0, "ignore_eos": True}
