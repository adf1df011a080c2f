"""From what a person names to an opened model."""

from __future__ import annotations

from pathlib import Path

from pageinn.model.checkpoint import Checkpoint
from pageinn.model.gguf_file import GGUFFile


def open_checkpoint(model: str | Path) -> Checkpoint:
    """Open a GGUF file. Raises ModelError, one line that names it, if it cannot be served."""
    return GGUFFile(Path(model))
