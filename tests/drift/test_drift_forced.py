"""Contenders on a text: what must be zero is zero, and what is bad is caught."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from pageinn.drift.forced import Chunk, Contender, Trace, compare, joined
from pageinn.drift.texts import CorpusError, built_in, read_corpus, windows
from pageinn.drift.trend import Kind, trend, verdict
from pageinn.kernels.backend import F32, I32, I64, LayerStore
from pageinn.kernels.cpu import CpuBackend
from pageinn.model.decoder import Decoder
from pageinn.store.kv_store import HeadScales, KVStore

TOKENS = 1600


def text() -> I32:
    return np.random.default_rng(0).integers(3, 320, TOKENS).astype(np.int32)


def contender(path: Path, name: str, dtype: str, backend: CpuBackend, scales: HeadScales | None = None) -> Contender:
    model = Decoder.load(path, backend, "none", max_tokens=128)
    store = KVStore(layers=2, blocks=TOKENS // 16, kv_heads=2, head_dim=16, block_size=16, dtype=dtype, scales=scales)
    return Contender(name, model, store)


class ConstantScale(CpuBackend):
    """int8 with one scale for all, of which most keys and values have more than 127."""

    scale = np.float32(0.002)

    def rotary_write(
        self, qkv: F32, positions: I32, cos: F32, sin: F32, num_heads: int, slots: I64, store: LayerStore
    ) -> None:
        super().rotary_write(qkv, positions, cos, sin, num_heads, slots, store)
        for array in (store.keys, store.values):
            array[:] = np.rint(array / self.scale).clip(-127, 127) * self.scale


class LateLoss(CpuBackend):
    """All is well up to position 799; keys and values behind it lose most of their digits."""

    def rotary_write(
        self, qkv: F32, positions: I32, cos: F32, sin: F32, num_heads: int, slots: I64, store: LayerStore
    ) -> None:
        late, size = positions >= 800, store.keys.shape[2]
        part = qkv[late, num_heads * size :]
        qkv[late, num_heads * size :] = np.rint(part * 2) / 2
        super().rotary_write(qkv, positions, cos, sin, num_heads, slots, store)


@cache
def traces(path: Path) -> dict[str, Trace]:
    backend, tiny = CpuBackend(2), np.full((2, 2), 1e-3, np.float32)
    contenders = [
        contender(path, "float32", "float32", backend),
        *(contender(path, dtype, dtype, backend) for dtype in ("bfloat16", "fp8_e4m3", "fp8_e5m2", "int8")),
        contender(path, "tiny scale", "fp8_e4m3", backend, HeadScales(tiny, tiny)),
        contender(path, "constant scale", "float32", ConstantScale(2)),
        contender(path, "late loss", "float32", LateLoss(2)),
    ]
    for each in contenders:
        each.store.keys[:], each.store.values[:] = 0, 0
    chunks = list(compare(contender(path, "reference", "float32", backend), contenders, [text()], 2))
    return {each.name: joined(chunks, each.name) for each in contenders}


def kind(trace: Trace) -> Kind:
    return verdict(trace, trend(trace)).kind


def test_float32_against_itself_is_exactly_zero(tiny_path: Path) -> None:
    trace = traces(tiny_path)["float32"]
    assert len(trace.kl) == TOKENS - 1
    assert (trace.kl == 0).all()
    assert (trace.gain == 0).all()
    assert trace.agree.all()
    assert kind(trace) is Kind.IDENTICAL


def test_fewer_bits_are_farther_away(tiny_path: Path) -> None:
    """Mantissas of 8, 4 and 3 bits, the hidden one included; int8's steps are between those of bfloat16 and fp8."""
    mean = {name: trace.kl.mean() for name, trace in traces(tiny_path).items()}
    assert 0 < mean["bfloat16"] < mean["int8"] < mean["fp8_e4m3"] < mean["fp8_e5m2"]
    for name in ("bfloat16", "int8", "fp8_e4m3"):
        assert kind(traces(tiny_path)[name]) is Kind.NO_DRIFT, name
        assert traces(tiny_path)[name].saturated == 0


def test_a_constant_scale_that_is_too_small_is_caught(tiny_path: Path) -> None:
    """Field case E1."""
    assert kind(traces(tiny_path)["constant scale"]) is Kind.UNUSABLE


def test_scales_that_saturate_are_caught_and_counted(tiny_path: Path) -> None:
    """Field case E1: of two layers, two heads of 16, keys and values, most elements are beyond 0.448."""
    trace = traces(tiny_path)["tiny scale"]
    assert kind(trace) is Kind.UNUSABLE
    assert 0.3 * TOKENS * 128 < trace.saturated <= TOKENS * 128


def test_coherent_early_and_degrading_late_is_a_drift(tiny_path: Path) -> None:
    """A short evaluation cannot see it: up to position 799, nothing differs at all."""
    trace = traces(tiny_path)["late loss"]
    assert (trace.kl[:800] == 0).all()
    found = verdict(trace, trend(trace))
    assert found.kind is Kind.DRIFT
    assert found.position is not None
    assert 512 <= found.position <= 1100


def test_chunks_say_which_text_and_where(tiny_path: Path) -> None:
    backend = CpuBackend(1)
    pair = [contender(tiny_path, name, "float32", backend) for name in ("reference", "same")]
    chunks: list[Chunk] = list(compare(pair[0], pair[1:], [text()[:200], text()[:130]]))
    assert [(each.text, each.start, len(each.found["same"].kl)) for each in chunks] == [
        (0, 0, 128),
        (0, 128, 71),
        (1, 0, 128),
        (1, 128, 1),
    ]
    trace = joined(chunks[:3], "same")
    assert trace.position.tolist() == [*range(199), *range(128)]
    assert trace.text.tolist() == [0] * 199 + [1] * 128


def test_windows_are_cut_from_the_beginning(tmp_path: Path) -> None:
    def encode(text: str) -> list[int]:
        return list(text.encode())

    cut = windows(["a" * 100 + "b" * 99, "c" * 40, "d" * 9], encode, 64, 10)
    assert [len(each) for each in cut] == [64, 64, 64, 40]
    assert len(windows(["a" * 200], encode, 64, 2)) == 2
    with pytest.raises(CorpusError, match="shorter than 32 tokens"):
        windows(["a" * 31], encode, 64, 1)
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(CorpusError, match=r"bad\.txt: is not text in UTF-8"):
        read_corpus([tmp_path / "bad.txt"])
    with pytest.raises(CorpusError, match=r"none\.txt: No such file"):
        read_corpus([tmp_path / "none.txt"])
    assert read_corpus([]) == [built_in()]
    assert "Project Gutenberg" not in built_in()
