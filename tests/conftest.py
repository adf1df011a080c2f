"""What tests of several rooms need."""

from __future__ import annotations

from pathlib import Path

import pytest

from pageinn.engine.default_model import default_model


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's file."""
    return default_model()
