from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pageinn.drift.forced import Contender
from pageinn.drift.free import Answer, Parting, answers, blocks_for, calls_in, parting
from pageinn.drift.prompts import built_in_rows, read_rows, tokenised
from pageinn.drift.texts import CorpusError
from pageinn.engine.config import EngineConfig
from pageinn.engine.engine import Engine
from pageinn.engine.messages import SamplingParams
from pageinn.kernels.cpu import CpuBackend
from pageinn.model.decoder import Decoder
from pageinn.store.kv_store import KVStore
from pageinn.text.template import ChatTemplate

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize("dtype", ["float32", "fp8_e4m3", "int8"])
def test_answers_are_the_engine_s(tiny_path: Path, dtype: str) -> None:
    """The same greedy tokens as the engine's with that cache, whose batches and chunks are others."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 320, length).tolist() for length in (1, 40, 200)]
    model = Decoder.load(tiny_path, CpuBackend(2), "int8", max_tokens=128)
    blocks = blocks_for(16, prompts, 30)
    store = KVStore(layers=2, blocks=blocks, kv_heads=2, head_dim=16, block_size=16, dtype=dtype)
    *_, ours = answers(Contender(dtype, model, store), prompts, 30, frozenset({2}))
    engine = Engine(EngineConfig(model=tiny_path, kv_cache_dtype=dtype, kv_cache_memory_bytes=4 << 20))
    theirs = engine.generate(prompts, SamplingParams(max_tokens=30, temperature=0.0))
    assert [each.tokens for each in ours] == [
        tuple(token for token in choices[0].tokens if token != 2) for choices in theirs
    ]


def test_where_answers_part() -> None:
    def decode(tokens: object) -> str:
        return CALL

    assert parting(Answer((1, 2, 3)), Answer((1, 2, 3)), decode) == Parting(3, None, 1)
    assert parting(Answer((1, 2, 3)), Answer((1, 5, 3)), decode) == Parting(3, 1, 1)
    assert parting(Answer((1, 2, 3)), Answer((1, 2)), decode) == Parting(3, 2, 1)
    assert parting(Answer(()), Answer((4,)), decode) == Parting(0, 0, 1)


def test_only_calls_whose_arguments_parse_count() -> None:
    assert calls_in(f"well\n{CALL}\n{CALL}") == 2
    assert calls_in(CALL.replace("1", "1,,")) == 0
    assert calls_in(CALL[:30]) == 0
    assert calls_in('{"name": "f"}') == 0


def test_broken_rows_are_left_out_and_named(tmp_path: Path) -> None:
    template = ChatTemplate("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    good = json.dumps({"messages": [{"role": "user", "content": "hello"}]})
    rows = [good, "{", "[]", '{"messages": 3}', json.dumps({"messages": [{"role": "user", "content": "h" * 99}]})]
    found = tokenised(rows, template, lambda text: list(text.encode()), 50)
    assert found.tokens == [list(b"hello")]
    assert [line.split(":")[0] for line in found.skipped] == ["prompt 2", "prompt 3", "prompt 4", "prompt 5"]
    assert "99 tokens, outside 1 to 50" in found.skipped[3]
    path = tmp_path / "prompts.jsonl"
    path.write_text(f"{good}\n\n{good}\n")
    assert read_rows(path) == [good, good]
    with pytest.raises(CorpusError, match="--prompts"):
        read_rows(tmp_path / "none.jsonl")


def test_every_built_in_prompt_is_a_conversation() -> None:
    rows = built_in_rows()
    found = tokenised(rows, None, lambda text: list(text.encode()), 10_000)
    assert found.skipped == []
    assert len(found.tokens) == len(rows) >= 8
