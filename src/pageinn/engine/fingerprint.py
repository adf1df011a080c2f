"""What a block's bits depend on beside its tokens, as one digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from pageinn import kernels, model
from pageinn.kernels import _cpu
from pageinn.kernels.cpu import CpuBackend
from pageinn.model.checkpoint import Checkpoint
from pageinn.model.decoder import Decoder
from pageinn.store.kv_store import KVStore


def fingerprint(
    checkpoint: Checkpoint, decoder: Decoder, backend: CpuBackend, store: KVStore, quantization: str
) -> str:
    """Hexadecimal. Covers the files of weights, the tokenizer, the model's numbers, the rotary tables to the bit (and
    so whoever computed them), the format of the weights, the store's dtype, scales and block size, the instruction set
    and the code.

    The number of threads is no part of it: it changes no bit. Reads the whole model once.
    """
    return _digest(_parts(checkpoint, decoder, backend, store, quantization))


def packed_key(checkpoint: Checkpoint, backend: CpuBackend, quantization: str) -> str:
    """Hexadecimal, of what the bytes of packed weights depend on. Reads the whole model once."""
    return _digest(_weights(checkpoint, backend, quantization))


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _weights(checkpoint: Checkpoint, backend: CpuBackend, quantization: str) -> Iterator[bytes]:
    yield checkpoint.fingerprint().encode()
    yield repr(checkpoint.config).encode()
    yield f"{quantization} {backend.name} {backend.isa}".encode()
    for file in _code():
        yield file.name.encode()
        yield file.read_bytes()


def _parts(
    checkpoint: Checkpoint, decoder: Decoder, backend: CpuBackend, store: KVStore, quantization: str
) -> Iterator[bytes]:
    yield from _weights(checkpoint, backend, quantization)
    yield json.dumps(checkpoint.tokenizer, default=_listed, sort_keys=True).encode()
    yield store.layout.encode()
    for table in (decoder.cos, decoder.sin, *store.declared_scales()):
        yield hashlib.sha256(table.tobytes()).digest()


def _code() -> list[Path]:
    """The files that compute a block: the decoder's, the kernels' and the compiled extension."""
    folders = [Path(folder) for room in (kernels, model) for folder in room.__path__]
    sources = sorted(file for folder in folders for file in folder.glob("*.py"))
    return [*sources, Path(_cpu.__file__)]


def _listed(value: object) -> list[object]:
    """Sets have no order of their own; other sequences are what they hold."""
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return list(value)
    return [str(value)]
