"""Scales of an fp8 cache, from the file that --kv-cache-scales names."""

from __future__ import annotations

from pathlib import Path

from pageinn.kernels.slots import STORE_DTYPES, Scales
from pageinn.model.checkpoint import Checkpoint
from pageinn.scheduling.config import ConfigError
from pageinn.store.scales import Calibration, ScalesError, read_scales


def declared_scales(path: Path | None, dtype: str, checkpoint: Checkpoint) -> Calibration | None:
    """The scales that a file declares for a model's cache, if one is named.

    Raises ConfigError for a dtype without declared scales, or a file
    that cannot be used.
    """
    if path is None:
        return None
    if STORE_DTYPES[dtype].scales is not Scales.HEAD:
        raise ConfigError(f"--kv-cache-scales is for an fp8 cache, not for {dtype}; leave it out")
    try:
        shape = checkpoint.config
        return read_scales(path, checkpoint.fingerprint(), shape.num_layers, shape.num_kv_heads)
    except ScalesError as error:
        raise ConfigError(f"--kv-cache-scales {error}") from error
