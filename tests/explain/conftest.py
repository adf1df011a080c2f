"""Explaining a log of records, as the command does it, without a model."""

from __future__ import annotations

import pytest
from explaining import Explain

from pageinn.explain.analysis import explain as explain_records
from pageinn.explain.rendering import Rendering
from pageinn.traffic import open_renderer


@pytest.fixture
def explain() -> Explain:
    return lambda records: explain_records(records, Rendering(open_renderer(None)))


@pytest.fixture(scope="session")
def model_name() -> str:
    """The default model's file."""
    from pageinn.engine.default_model import default_model

    return str(default_model())
