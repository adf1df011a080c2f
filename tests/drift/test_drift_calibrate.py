"""Scales from declared data: what they are, who may use them, and that they do what they are for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny import write_tiny_llama

from pageinn.cli.main import main
from pageinn.drift.calibrate import Extremes, scales_from
from pageinn.drift.forced import Contender
from pageinn.engine.config import ConfigError, EngineConfig
from pageinn.engine.engine import Engine
from pageinn.engine.messages import SamplingParams
from pageinn.kernels.cpu import CpuBackend
from pageinn.model.decoder import Decoder
from pageinn.model.sources import open_checkpoint
from pageinn.store.kv_store import HeadScales, KVStore
from pageinn.store.scales import ScalesError, read_scales
from stored_values import gather


def extremes_of(path: Path, texts: list[np.ndarray]) -> tuple[Extremes, KVStore]:
    model = Decoder.load(path, CpuBackend(2), "none", max_tokens=128)
    store = KVStore(layers=2, blocks=20, kv_heads=2, head_dim=16, block_size=16, dtype="float32")
    store.keys[:], store.values[:] = np.nan, np.nan
    extremes = Extremes(Contender("float32", model, store))
    assert sum(extremes.read(texts)) == sum(map(len, texts)) == extremes.tokens
    return extremes, store


def test_the_largest_of_each_head_is_found_and_poisoned_slots_are_not_read(tiny_path: Path) -> None:
    """Field case E2: a text that ends inside a block of slots that are not numbers."""
    text = np.random.default_rng(0).integers(3, 320, 300).astype(np.int32)
    extremes, store = extremes_of(tiny_path, [text])
    for layer in range(2):
        keys, values = gather(store.layer(layer), np.arange(19, dtype=np.int32), 300)
        np.testing.assert_array_equal(extremes.keys[layer], np.abs(keys).max(axis=(1, 2)))
        np.testing.assert_array_equal(extremes.values[layer], np.abs(values).max(axis=(1, 2)))


def test_scales_are_powers_of_two_that_leave_twice_the_room(tiny_path: Path) -> None:
    extremes, _ = extremes_of(tiny_path, [np.arange(3, 200, dtype=np.int32)])
    extremes.keys[:] = [[224, 225], [0, 1e-3]]
    scales = scales_from(extremes)
    assert scales.keys.tolist() == [[1, 2], [1, 2.0**-17]]
    assert (extremes.values * 2 <= scales.values * 448).all()
    assert (extremes.values * 4 > scales.values * 448).all()


@pytest.fixture(scope="session")
def loud_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose norms make keys and values a thousand times as large: beyond what an e4m3 holds at a scale of 1."""
    loud = {f"blk.{layer}.attn_norm.weight": np.full(64, 1000, np.float32) for layer in range(2)}
    path = tmp_path_factory.mktemp("loud") / "loud.gguf"
    return write_tiny_llama(path, seed=1, context_length=2048, tensors=loud)


def test_declared_scales_keep_an_fp8_cache_from_saturating(
    loud_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Field case E1: from declared data with a count of tokens that is reported; saturation is counted without them."""
    file = tmp_path / "scales.json"
    flags = ["drift", str(loud_path), "--max-model-len", "2048", "--calibrate", str(file)]
    assert main(flags) == 0
    assert "scales of 2 layers of 2 heads from 2,048 tokens" in capsys.readouterr().out
    engines = [
        Engine(
            EngineConfig(model=loud_path, kv_cache_dtype="fp8", kv_cache_scales=scales, kv_cache_memory_bytes=1 << 20)
        )
        for scales in (None, file)
    ]
    prompt = list(range(3, 90))
    for engine in engines:
        engine.generate([prompt], SamplingParams(max_tokens=4, temperature=0.0))
    assert engines[0].core.stats().saturated_values > 1000
    assert engines[1].core.stats().saturated_values == 0
    assert "  scales by head from 2048 tokens" in engines[1].description.splitlines()
    compare = ["drift", str(loud_path), "--dtypes", "fp8", "--answer-tokens", "0", "--max-model-len", "300", "--json"]
    assert main(compare) == 0
    plain = json.loads(capsys.readouterr().out)["dtypes"][0]
    assert main([*compare, "--kv-cache-scales", str(file)]) == 0
    captured = capsys.readouterr()
    scaled = json.loads(captured.out)["dtypes"][0]
    assert "from 2,048 tokens" in captured.err
    assert plain["saturated"] > 1000
    assert scaled["saturated"] == 0
    assert scaled["kl"] < plain["kl"]


def test_files_of_scales_that_do_not_fit_are_refused(tiny_path: Path, tmp_path: Path) -> None:
    fingerprint = open_checkpoint(tiny_path).fingerprint()
    good = {
        "format": "pageinn-kv-scales/1",
        "model_fingerprint": fingerprint,
        "tokens": 5000,
        "key_scales": [[1, 1], [1, 1]],
        "value_scales": [[1, 1], [1, 1]],
    }
    file = tmp_path / "scales.json"

    def refusal(dtype: str = "fp8", **changes: object) -> str:
        file.write_text(json.dumps({**good, **changes}))
        with pytest.raises(ConfigError) as raised:
            Engine(EngineConfig(model=tiny_path, kv_cache_dtype=dtype, kv_cache_scales=file))
        assert "\n" not in str(raised.value)
        return str(raised.value)

    file.write_text(json.dumps(good))
    assert read_scales(file, fingerprint, 2, 2).tokens == 5000
    assert "made with another model" in refusal(model_fingerprint="0")
    assert "scales from 200 tokens are not to be trusted; 2048 are the least" in refusal(tokens=200)
    assert "its format is 'x'" in refusal(format="x")
    assert "is not a file of scales" in refusal(tokens=None)
    assert "is not a file of scales" in refusal(key_scales=[[1], [1, 1]])
    assert "for an fp8 cache, not for int8; leave it out" in refusal("int8")
    assert "scales must be 2 x 2 numbers above 0" in refusal(key_scales=[[1, 1]])
    assert "scales must be 2 x 2 numbers above 0" in refusal(value_scales=[[1, 1], [0, 1]])
    with pytest.raises(ScalesError, match="No such file"):
        read_scales(tmp_path / "none.json", fingerprint, 2, 2)


def test_the_layout_names_what_a_block_s_bytes_depend_on() -> None:
    shape = {"layers": 2, "blocks": 3, "kv_heads": 2, "head_dim": 4, "block_size": 8}
    plain = KVStore(**shape, dtype="fp8_e4m3")
    assert KVStore(**shape, dtype="fp8_e4m3").layout == plain.layout
    halves = HeadScales(*(np.full((2, 2), 0.5, np.float32) for _ in range(2)))
    others = [
        KVStore(**shape, dtype="fp8_e4m3", scales=halves),
        KVStore(**{**shape, "block_size": 16}, dtype="fp8_e4m3"),
        KVStore(**shape, dtype="fp8_e5m2"),
        KVStore(**shape, dtype="int8"),
    ]
    assert len({plain.layout, *(each.layout for each in others)}) == 5
    # Scales of tokens are data, not layout.
    other = KVStore(**shape, dtype="int8")
    assert other.key_scales is not None
    other.key_scales[:] = 1
    assert other.layout == others[3].layout
