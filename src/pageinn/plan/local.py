"""A model by what a person names: its own files, or a name of the catalogue. Weights are not read."""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pageinn.catalogue.errors import CatalogueError
from pageinn.catalogue.models import find_model, repository_of
from pageinn.catalogue.published import shape_of
from pageinn.catalogue.shape import Shape
from pageinn.model.config import ModelError
from pageinn.model.gguf_header import Header, read_header
from pageinn.plan.figures import PlanError


class Model(NamedTuple):
    """named: what engines are told to serve. files: bytes of the weights' files, None where there are none here."""

    shape: Shape
    named: str
    files: int | None


def find(name: str) -> Model:
    """A GGUF, a folder with a config.json, a config.json, or a model of the catalogue.

    Raises PlanError, one line, for files that cannot be read and architectures that are not known; CatalogueError for a
    name that is neither here nor in the catalogue.
    """
    path = Path(name)
    if not path.exists():
        shape = find_model(name)
        return Model(shape, repository_of(shape), None)
    try:
        if path.is_dir():
            return _folder(path)
        if path.suffix == ".gguf":
            return _gguf(path)
        return Model(_config(path), str(path.parent), None)
    except (CatalogueError, ModelError) as error:
        raise PlanError(f"{path}: {error}") from error
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror or error}") from error


def _folder(path: Path) -> Model:
    if not (path / "config.json").exists():
        raise PlanError(f"{path}: a folder without config.json; name a GGUF, or a model of the catalogue")
    files = [file.stat().st_size for file in path.glob("*.safetensors")]
    return Model(_config(path / "config.json", path.resolve().name), str(path), sum(files) or None)


def _config(path: Path, name: str | None = None) -> Shape:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise PlanError(f"{path}: not JSON") from error
    if not isinstance(content, dict):
        raise PlanError(f"{path}: not a JSON object")
    return shape_of(content, name or path.resolve().parent.name, str(path))


def _gguf(path: Path) -> Model:
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise PlanError(f"{path}: the file is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
            header = read_header(data)
    shape = shape_of(gguf_config(header), path.name.removesuffix(".gguf"), str(path))
    return Model(shape, str(path), sum(tensor.nbytes for tensor in header.tensors.values()))


#: A GGUF's architecture as transformers' class.
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "gpt-oss": "GptOssForCausalLM",
}
#: Its keys as those of a config.json.
_KEYS = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "context_length": "max_position_embeddings",
    "vocab_size": "vocab_size",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}


def gguf_config(header: Header) -> dict[str, object]:
    """A GGUF's metadata as a config.json. Raises PlanError for an architecture that is not known."""
    metadata: Mapping[str, object] = header.metadata
    name = metadata.get("general.architecture")
    if name not in _CLASSES:
        raise PlanError(f"architecture {str(name)[:40]!r} is not known in a GGUF (known: {', '.join(_CLASSES)})")
    config = {ours: metadata.get(f"{name}.{theirs}") for theirs, ours in _KEYS.items()}
    tokens = metadata.get("tokenizer.ggml.tokens")
    if config["vocab_size"] is None and isinstance(tokens, list):
        config["vocab_size"] = len(tokens)
    # 0 is how a converter says that there is none.
    config = {key: None if value == 0 else value for key, value in config.items()}
    architecture = _CLASSES[str(name)]
    if architecture == "LlamaForCausalLM" and config["num_experts"]:
        architecture = "MixtralForCausalLM"
    if architecture == "GptOssForCausalLM":
        config["intermediate_size"] = config["moe_intermediate_size"]
    return {
        **config,
        "architectures": [architecture],
        "num_local_experts": config["num_experts"],
        "tie_word_embeddings": "output.weight" not in header.tensors,
    }
