"""An answer depends on its request alone: not on the batch, the threads, the chunks, the blocks, or the cache.

Each case is compared with the same request alone, cold, without a prefix cache, on one thread: equal tokens, equal
text, and log-probabilities equal to the last bit.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from engine_runs import Answer, ChoiceKey, alone, poison, run, with_blocks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pageinn.engine.config import EngineConfig
from pageinn.engine.engine import Engine
from pageinn.engine.messages import GenerationRequest, SamplingParams
from pageinn.kernels.backend import F32, PackedLinear
from pageinn.kernels.cpu import CpuBackend

FORMATS = [(quantization, dtype) for quantization in ("int8", "none") for dtype in ("bfloat16", "float32")]
VOCAB = 320


def requests_of(seed: int, vocab: int, count: int, head: int, answer: int) -> list[GenerationRequest]:
    """Prompts that share some beginnings, ending anywhere in a block; greedy and sampled, some with four choices."""
    rng = random.Random(seed)
    heads = [[rng.randrange(vocab) for _ in range(head)] for _ in range(3)]
    requests = []
    for number in range(count):
        shared = rng.choice(heads)[: rng.randrange(1, head)]
        prompt = (*shared, *(rng.randrange(vocab) for _ in range(rng.randrange(1, 20))))
        sampling = SamplingParams(
            max_tokens=rng.randrange(5, answer),
            n=rng.choice([1, 1, 4]),
            temperature=rng.choice([0.0, 0.7, 1.0]),
            top_p=rng.choice([1.0, 0.9]),
            top_k=rng.choice([0, 20]),
            min_p=rng.choice([0.0, 0.01]),
            seed=number,
            logprobs=2,
            ignore_eos=rng.random() < 0.7,
        )
        requests.append(GenerationRequest(f"r{number}", prompt, sampling))
    return requests


REQUESTS = requests_of(5, VOCAB, 16, 60, 40)


@cache
def reference(path: Path, quantization: str, dtype: str) -> Mapping[ChoiceKey, Answer]:
    config = EngineConfig(model=path, quantization=quantization, kv_cache_dtype=dtype, kv_cache_memory_bytes=8 << 20)
    return alone(replace(config, max_num_batched_tokens=512), REQUESTS)


def assert_same(answers: Mapping[ChoiceKey, Answer], expected: Mapping[ChoiceKey, Answer]) -> None:
    for key, answer in answers.items():
        assert answer.bits == expected[key].bits, key
        assert answer.finish == expected[key].finish, key


@dataclass(frozen=True)
class Conditions:
    """Everything that must not matter. 14 blocks force preemptions; 400 hold everything."""

    order: int
    blocks: int
    threads: int
    seats: int
    budget: int
    prefix_cache: str
    evicted: int


conditions = st.builds(
    Conditions,
    order=st.integers(0, 1 << 30),
    blocks=st.sampled_from([14, 24, 400]),
    threads=st.sampled_from([1, 2]),
    seats=st.sampled_from([1, 3, 16]),
    budget=st.sampled_from([16, 17, 37, 128, 512]),
    prefix_cache=st.sampled_from(["off", "live", "keep", "keep"]),
    evicted=st.integers(0, 8),
)


def run_under(engine: Engine, under: Conditions) -> dict[ChoiceKey, Answer]:
    """A round cold, then one with what the first left, some of it evicted, over poisoned and shuffled free blocks."""
    rng = random.Random(under.order)
    memory = engine.core.scheduler.memory
    poison(engine)
    answers = {}
    for part in ("cold", "warm"):
        rng.shuffle(memory.pool._free)
        poison(engine, memory.pool._free)
        requests = [replace(request, request_id=f"{request.request_id}/{part}") for request in REQUESTS]
        requests = [r for r in requests if engine.core.scheduler.refusal(engine.core._request(r)) is None]
        rng.shuffle(requests)
        for key, answer in run(engine, requests).items():
            answers[ChoiceKey(key.request_id.removesuffix(f"/{part}"), key.index)] = answer
            memory.check()
        memory.tree.evict(under.evicted)
    assert memory.usage().in_use == 0
    return answers


@pytest.mark.parametrize(("quantization", "dtype"), FORMATS)
def test_tiny_model_under_any_conditions(tiny_path: Path, quantization: str, dtype: str) -> None:
    """Field cases A4, B4, B6: cold, warm, shared, forked, chunked, preempted and partly evicted answers are equal."""
    expected = reference(tiny_path, quantization, dtype)
    seen = {"preemptions": 0, "hits": 0, "evictions": 0}

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(conditions)
    def check(under: Conditions) -> None:
        config = EngineConfig(
            quantization=quantization,
            kv_cache_dtype=dtype,
            threads=under.threads,
            prefix_cache=under.prefix_cache,
            max_num_seqs=under.seats,
            max_num_batched_tokens=max(under.seats, under.budget),
        )
        engine = Engine(with_blocks(tiny_path, under.blocks, config))
        assert engine.num_blocks == under.blocks
        assert_same(run_under(engine, under), expected)
        stats = engine.core.stats()
        seen["preemptions"] += stats.preemptions
        seen["hits"] += stats.prefix_cache_hits
        seen["evictions"] += stats.evicted_blocks

    check()
    run_forced = Engine(
        with_blocks(
            tiny_path, 14, EngineConfig(quantization=quantization, kv_cache_dtype=dtype, max_num_seqs=16, threads=2)
        )
    )
    assert_same(run_under(run_forced, Conditions(3, 14, 2, 16, 256, "keep", 4)), expected)
    stats = run_forced.core.stats()
    assert stats.preemptions > 0
    assert stats.prefix_cache_hits > 0
    assert stats.evicted_blocks > 0


class _BatchDependent(CpuBackend):
    """A backend whose linear layers depend, in the last bits, on how many rows stand side by side."""

    def linear(self, x: F32, weight: PackedLinear, out: F32, add: bool = False) -> None:
        super().linear(x, weight, out, add)
        out *= 1 + len(x) * 2.0**-23


def test_a_batch_dependent_kernel_is_caught(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: a matrix product that picks another kernel by shape turns it red."""
    monkeypatch.setattr("pageinn.engine.engine.CpuBackend", _BatchDependent)
    config = EngineConfig(model=tiny_path, kv_cache_memory_bytes=8 << 20)
    expected = alone(config, REQUESTS[:6])
    together = run(Engine(config), REQUESTS[:6])
    assert any(together[key].bits != expected[key].bits for key in expected)


def smollm2_requests(vocab: int) -> list[GenerationRequest]:
    """Long prompts, past a partition of 256 keys, that share a beginning, one with four choices; and short ones."""
    rng = random.Random(11)

    def ids(count: int) -> list[int]:
        return [rng.randrange(300, vocab) for _ in range(count)]

    head = ids(300)
    sampling = SamplingParams(max_tokens=12, temperature=0.0, logprobs=2, ignore_eos=True)
    requests = []
    for number in range(4):
        own = replace(sampling, n=4 if number == 1 else 1, temperature=number % 2, seed=number)
        requests.append(
            GenerationRequest(f"long{number}", (*head[: 300 - 37 * (number % 3)], *ids(5 + 9 * number)), own)
        )
    for number in range(6):
        own = replace(sampling, max_tokens=48, temperature=number % 2, seed=number)
        requests.append(GenerationRequest(f"short{number}", tuple(ids(20)), own))
    return requests


@pytest.mark.parametrize("quantization", ["int8", "none"])
def test_smollm2_under_some_conditions(quantization: str) -> None:
    """The same on the default model: 2 threads, chunks of 64 and 256, a pool that preempts, cold and warm."""
    config = EngineConfig(quantization=quantization, kv_cache_memory_bytes=200 << 20, max_num_seqs=16)
    requests = smollm2_requests(49152)
    expected = alone(config, requests)
    block_bytes = 30 * 2 * 3 * 64 * 16 * 2
    preemptions = []
    for blocks, budget in ((400, 64), (24, 256)):
        engine = Engine(replace(config, kv_cache_memory_bytes=blocks * block_bytes, max_num_batched_tokens=budget))
        memory = engine.core.scheduler.memory
        random.Random(blocks).shuffle(memory.pool._free)
        poison(engine)
        for part in (requests[4:], requests[:4], requests[:4]):
            assert_same(run(engine, part), expected)
            memory.check()
            memory.tree.evict(5)
        assert engine.core.stats().prefix_cache_hits > 0
        preemptions.append(engine.core.stats().preemptions)
    assert preemptions[0] == 0
    assert preemptions[1] > 0
