"""A tiny random model, and the default one, each written or loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import write_tiny_llama


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("engine") / "tiny.gguf", seed=1)
