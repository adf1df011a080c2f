"""From what a person names to an opened model."""

from __future__ import annotations

from pathlib import Path

from pageinn.model.checkpoint import Checkpoint
from pageinn.model.config import ModelError
from pageinn.model.folder import PICKLES, SafetensorsFolder
from pageinn.model.gguf_file import GGUFFile


def open_checkpoint(model: str | Path) -> Checkpoint:
    """Open a GGUF file, or a folder with config.json, safetensors and tokenizer.json.

    Raises ModelError, one line that names it, if it cannot be served.
    """
    path = Path(model)
    if path.is_dir():
        return _open_folder(path)
    if path.suffix in PICKLES:
        raise ModelError(f"{path}: a pickle, which can run code when it is read; convert the model to safetensors")
    if path.suffix == ".safetensors":
        raise ModelError(f"{path}: weights alone are not a model; name the folder that holds config.json")
    return GGUFFile(path)


def _open_folder(path: Path, name: str | None = None) -> Checkpoint:
    inside = sorted(file.name for file in path.glob("*.gguf"))
    if inside and not (path / "config.json").exists():
        raise ModelError(f"{path}: a directory, not a GGUF file; name the one in it, for example {path / inside[0]}")
    return SafetensorsFolder(path, name)
