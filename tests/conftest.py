"""What tests of several rooms need."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from pageinn.engine.default_model import default_model

# How long an example takes says something of the machine, and nothing of what is tested.
settings.register_profile("pageinn", deadline=None)
settings.load_profile("pageinn")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's file."""
    return default_model()
