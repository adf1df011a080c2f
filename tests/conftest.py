"""What tests of several rooms need."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pageinn.engine.default_model import default_model

# How long an example takes says something of the machine, and nothing of what is tested. The examples are the same each
# time, so that a change is blamed for what it broke; `make explore` looks for what no run has met yet.
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("pageinn", settings.get_profile("random"), derandomize=True)
settings.load_profile("pageinn")


@pytest.fixture(scope="session", autouse=True)
def caches_of_the_tests() -> Iterator[None]:
    """Commands that are started here keep packed weights among themselves, and leave the user's cache alone."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        # Models on the hub are looked for where they were.
        patch.setenv("HF_HOME", os.environ.get("HF_HOME", str(Path("~/.cache/huggingface").expanduser())))
        patch.setenv("XDG_CACHE_HOME", folder)
        yield


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's file."""
    return default_model()
