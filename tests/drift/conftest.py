"""A tiny random model with float32 weights, so that its cache is all that is rounded."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import write_tiny_llama


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("drift") / "tiny.gguf", seed=1, context_length=2048)
