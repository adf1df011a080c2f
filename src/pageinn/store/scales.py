"""Scales by head that were found beforehand, on declared data: a file that says what it was made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pageinn.store.kv_store import HeadScales, check_scales

FORMAT = "pageinn-kv-scales/1"
#: Scales from fewer tokens say too little of what a head may hold.
MIN_TOKENS = 2048


class ScalesError(Exception):
    """A file of scales that cannot be used; one line that names it and the way out."""


class Calibration(NamedTuple):
    """Scales, how many tokens they were made from, and the fingerprint of the model that computed them."""

    scales: HeadScales
    tokens: int
    fingerprint: str


def write_scales(path: Path, calibration: Calibration) -> None:
    """Write a file for `read_scales`. Raises ScalesError for too few tokens or a path that cannot be written."""
    _require_tokens(path, calibration.tokens)
    fields = {
        "format": FORMAT,
        "model_fingerprint": calibration.fingerprint,
        "tokens": calibration.tokens,
        "key_scales": calibration.scales.keys.tolist(),
        "value_scales": calibration.scales.values.tolist(),
    }
    try:
        path.write_text(json.dumps(fields) + "\n", encoding="utf-8")
    except OSError as error:
        raise ScalesError(f"{path}: {error.strerror}") from error


def read_scales(path: Path, fingerprint: str, layers: int, heads: int) -> Calibration:
    """Read scales for the model with that fingerprint and so many layers and key-value heads.

    Raises ScalesError for a file of another kind, model or size, or from too few tokens.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields["format"] != FORMAT:
            raise ScalesError(f"{path}: its format is {fields['format']!r}, not {FORMAT!r}")
        found = Calibration(
            scales=HeadScales(*(np.array(fields[name], np.float32) for name in ("key_scales", "value_scales"))),
            tokens=int(fields["tokens"]),
            fingerprint=str(fields["model_fingerprint"]),
        )
    except OSError as error:
        raise ScalesError(f"{path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ScalesError(f"{path} is not a file of scales; `pageinn drift --calibrate` writes one") from error
    if found.fingerprint != fingerprint:
        raise ScalesError(f"{path} was made with another model; make one with `pageinn drift MODEL --calibrate`")
    _require_tokens(path, found.tokens)
    try:
        check_scales(found.scales, layers, heads)
    except ValueError as error:
        raise ScalesError(f"{path}: {error}") from error
    return found


def _require_tokens(path: Path, tokens: int) -> None:
    if tokens < MIN_TOKENS:
        raise ScalesError(f"{path}: scales from {tokens} tokens are not to be trusted; {MIN_TOKENS} are the least")
