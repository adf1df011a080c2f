"""A tokenizer for servers without a model, and the real server with the default model for all others."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tiny import write_tiny_llama
from tokenizers.pre_tokenizers import ByteLevel

from pageinn.model.gguf_file import GGUFFile
from pageinn.text.data import TokenizerData
from pageinn.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    """One token for each byte and nothing else."""
    return Tokenizer(
        TokenizerData(
            model="gpt2",
            pre="gpt-2",
            tokens=sorted(ByteLevel.alphabet()),
            token_types=[],
            merges=[],
            bos_id=None,
            eos_id=None,
            pad_id=None,
            add_bos=False,
            add_space_prefix=False,
            chat_template=None,
        )
    )


@pytest.fixture(scope="session")
def tokenizer(smollm2_path: Path) -> Tokenizer:
    return Tokenizer(GGUFFile(smollm2_path).tokenizer)


class Server:
    """A `pageinn serve` process on a free port, seen from outside."""

    def __init__(self, *flags: str) -> None:
        command = [sys.executable, "-m", "pageinn.cli", "serve", "--port", "0", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.log: list[str] = []
        self.url = self._wait_until_ready()
        # A pipe that nobody reads would stop the server once it is full.
        self._reader = threading.Thread(target=self._read_on, daemon=True)
        self._reader.start()
        self.http = httpx.Client(base_url=self.url, timeout=60)

    def _wait_until_ready(self) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"Ready in .* on (http://\S+)", line):
                return found[1]
        raise AssertionError(f"the server ended with {self.process.wait()}: {''.join(self.log)}")

    def _read_on(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of one sample whose labels include these; None if there is no such sample."""
        for family in text_string_to_metric_families(self.http.get("/metrics").text):
            for sample in family.samples:
                if sample.name == f"pageinn:{name}" and labels.items() <= sample.labels.items():
                    return sample.value
        return None

    def blocks(self) -> dict[str, float | None]:
        """Blocks by state."""
        return {state: self.metric("kv_blocks", state=state) for state in ("free", "kept", "in_use")}

    def complete(self, prompt: object, **fields: object) -> dict[str, Any]:
        """A greedy completion's JSON."""
        body = {"prompt": prompt, "temperature": 0, **fields}
        got = self.http.post("/v1/completions", json=body)
        assert got.status_code == 200, got.text
        return got.json()

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> int:
        """Signal the process and wait; returns its exit code."""
        self.process.send_signal(sig)
        code = self.process.wait(timeout=60)
        self.http.close()
        return code


def soon(condition: Callable[[], object], seconds: float = 20) -> bool:
    """Whether the condition comes true within this time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The default model with a pool of 2,912 tokens, which is less than the model's context of 8,192."""
    made = Server("--kv-cache-memory-bytes", "64MiB", "--threads", "2")
    yield made
    assert made.stop() == 0, "".join(made.log)


@pytest.fixture(scope="session")
def qwen_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with the chat template of Qwen 3, which has a place for tools."""
    template = (Path(__file__).parents[1] / "data/chat_templates/Qwen-Qwen3-0.6B.jinja").read_text(encoding="utf-8")
    path = tmp_path_factory.mktemp("qwen") / "tiny-qwen.gguf"
    return write_tiny_llama(path, metadata={"tokenizer.chat_template": template})


@pytest.fixture(scope="session")
def start_server() -> type[Server]:
    """For tests that need a process of their own."""
    return Server


@pytest.fixture(scope="session")
def comes_true() -> Callable[[Callable[[], object]], bool]:
    return soon


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
