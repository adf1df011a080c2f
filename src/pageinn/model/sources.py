"""From what a person names to an opened model."""

from __future__ import annotations

from pathlib import Path

from pageinn.model import hub
from pageinn.model.checkpoint import Checkpoint
from pageinn.model.config import ModelError
from pageinn.model.folder import PICKLES, SafetensorsFolder, has_weights
from pageinn.model.gguf_file import GGUFFile


def open_checkpoint(model: str | Path) -> Checkpoint:
    """Open a GGUF file, a folder with config.json, safetensors and tokenizer.json, or such a one on the hub.

    What exists here is meant as a path; otherwise owner/name is a name on the hub, fetched into its cache.
    Raises ModelError, one line that names it, if it cannot be served.
    """
    path = Path(model)
    if not path.exists() and hub.is_name(str(model)):
        return SafetensorsFolder(hub.fetch(str(model)), str(model))
    return _open_path(path)


def open_for_check(model: str | Path) -> Checkpoint:
    """As open_checkpoint, but of a model on the hub only the small files are fetched.

    Where the weights are not in the cache already, the checkpoint has no tensors.
    """
    path = Path(model)
    if not path.exists() and hub.is_name(str(model)):
        folder = hub.fetch(str(model), weights=False)
        return SafetensorsFolder(folder, str(model), weights=has_weights(folder))
    return _open_path(path)


def _open_path(path: Path) -> Checkpoint:
    if path.is_dir():
        inside = sorted(file.name for file in path.glob("*.gguf"))
        if inside and not (path / "config.json").exists():
            raise ModelError(
                f"{path}: a directory, not a GGUF file; name the one in it, for example {path / inside[0]}"
            )
        return SafetensorsFolder(path)
    if path.suffix in PICKLES:
        raise ModelError(f"{path}: a pickle, which can run code when it is read; convert the model to safetensors")
    if path.suffix == ".safetensors":
        raise ModelError(f"{path}: weights alone are not a model; name the folder that holds config.json")
    return GGUFFile(path)
