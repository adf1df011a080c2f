"""A folder of safetensors as transformers saves it: config.json, weights, tokenizer.json."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pageinn.kernels.backend import F32, I32
from pageinn.model.config import ModelConfig, ModelError, naming
from pageinn.model.hf_config import read_hf_config
from pageinn.model.hf_tokenizer import read_hf_tokenizer, read_json
from pageinn.model.safetensors_file import SafeTensor, as_float32, read_safetensors
from pageinn.text.data import TokenizerData

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

#: transformers' names and a GGUF's, without the suffix; of a layer without its number.
_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_OF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", re.ASCII)
#: Buffers that older versions of transformers saved; they are computed from the configuration.
_BUFFERS = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq", re.ASCII)


class SafetensorsFolder:
    """A folder whose files have been checked but for the values of the weights; a `Checkpoint`."""

    interleaved_rotary = False

    def __init__(self, path: Path, name: str | None = None, *, weights: bool = True) -> None:
        """Read the small files and the tables of the large ones.

        name: what the model is called, by default as the folder. weights: without them there are no tensors.
        Raises ModelError, one line that names the folder, if it is not a model that is supported.
        """
        self.path = path
        with naming(path):
            content = read_json(path / "config.json", required=True)
            self.config: ModelConfig = read_hf_config(content, name or path.resolve().name)
            self._tied_head: SafeTensor | None = None
            self.tensors: Mapping[str, SafeTensor] = self._table() if weights else {}
            self.tokenizer: TokenizerData = read_hf_tokenizer(path, content, self.config.vocab_size)

    @property
    def served_name(self) -> str:
        """The name on the hub, or the folder's."""
        return self.config.name

    def own_name(self, name: str) -> str:
        """What transformers calls a tensor."""
        return _transformers_name(name)

    def tensor(self, name: str) -> F32:
        """A tensor as float32. Raises ModelError if it holds values that are not finite."""
        tensor = self.tensors[name]
        values = as_float32(tensor.stored(), tensor.dtype)
        with naming(self.path):
            if not (np.isfinite(values.min()) and np.isfinite(values.max())):
                raise ModelError(f"tensor {tensor.name!r} holds values that are not finite")
            if name == "token_embd.weight" and self._tied_head is not None:
                self._require_tied(tensor, self._tied_head)
        return values

    def rows(self, name: str, wanted: I32) -> F32:
        """Some rows of a matrix as float32 [len(wanted), row length]. Raises IndexError for a row it lacks."""
        tensor = self.tensors[name]
        return as_float32(tensor.stored()[wanted], tensor.dtype)

    def fingerprint(self) -> str:
        """SHA-256 over config.json and the files of weights, each with its name and length in front."""
        digest = hashlib.sha256()
        for path in [self.path / "config.json", *(self.path / name for name in sorted(set(_files(self.path))))]:
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def _table(self) -> dict[str, SafeTensor]:
        """All tensors by the project's names; a head that is stored although it is tied is set apart."""
        found: dict[str, SafeTensor] = {}
        for file in sorted(set(_files(self.path))):
            for own, tensor in read_safetensors(self.path / file).items():
                name = _project_name(own)
                if name in found:
                    raise ModelError(f"tensor {own!r} occurs twice")
                if not _BUFFERS.fullmatch(own):
                    found[name] = tensor
        if self.config.tied_embeddings:
            self._tied_head = found.pop("output.weight", None)
        return found

    def _require_tied(self, embedding: SafeTensor, head: SafeTensor) -> None:
        same = embedding.dtype == head.dtype and embedding.shape == head.shape
        if not (same and np.array_equal(embedding.raw, head.raw)):
            raise ModelError(f"{head.name!r} differs from {embedding.name!r}, and config.json says that they are tied")


def has_weights(folder: Path) -> bool:
    """Whether all files of weights that the folder speaks of are there."""
    speaks = (folder / SINGLE).exists() or (folder / INDEX).exists()
    return speaks and all((folder / name).exists() for name in _files(folder))


def _files(folder: Path) -> list[str]:
    """The names of the files that hold weights. Raises ModelError where there are none that may be read."""
    if (folder / SINGLE).exists():
        return [SINGLE]
    if (folder / INDEX).exists():
        shards = read_json(folder / INDEX).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise ModelError(f"{INDEX} has no weight_map")
        names = [str(name) for name in shards.values()]
        for name in names:
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise ModelError(f"{INDEX} names {name!r}, which is not a safetensors file of the folder")
        return names
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if pickles:
        raise ModelError(
            f"{pickles[0]} is a pickle, which can run code when it is read; convert the weights to safetensors"
        )
    raise ModelError(f"{SINGLE} is missing")


def _project_name(own: str) -> str:
    """A GGUF's name for transformers' name; a tensor that has none keeps its own."""
    module, _, kind = own.rpartition(".")
    if module in _WHOLE:
        return f"{_WHOLE[module]}.{kind}"
    match = _LAYER_NAME.fullmatch(own)
    if match and match[2] in _OF_LAYER:
        return f"blk.{match[1]}.{_OF_LAYER[match[2]]}.{match[3]}"
    return own


def _transformers_name(name: str) -> str:
    module, _, kind = name.rpartition(".")
    for own, project in _WHOLE.items():
        if module == project:
            return f"{own}.{kind}"
    block, _, part = module.partition(".")[2].partition(".")
    for own, project in _OF_LAYER.items():
        if part == project:
            return f"model.layers.{block}.{own}.{kind}"
    return name
