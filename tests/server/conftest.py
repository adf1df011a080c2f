"""A tokenizer for servers without a model, and the real server with the default model for all others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from tiny import write_tiny_llama
from tokenizers.pre_tokenizers import ByteLevel

from pageinn.model.gguf_file import GGUFFile
from pageinn.text.data import TokenizerData
from pageinn.text.tokenizer import Tokenizer
from served_pageinn import Server


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


def soon(condition: Callable[[], object], seconds: float = 60) -> bool:
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
