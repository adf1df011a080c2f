"""An answer depends on its request alone: not on the batch, the threads, the chunks, the blocks, or the cache.

Each case is compared with the same request alone, cold, without a prefix cache, on one thread: equal tokens, equal
text, and log-probabilities equal to the last bit.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from engine_runs import Answer, ChoiceKey, alone, poison, run, with_blocks
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pageinn.engine.config import EngineConfig
from pageinn.engine.default_model import default_model
from pageinn.engine.engine import Engine
from pageinn.engine.messages import GenerationRequest, SamplingParams
from pageinn.engine.stats import Stats
from pageinn.kernels.backend import F32, PackedLinear
from pageinn.kernels.cpu import CpuBackend
from pageinn.memory.questions import PrefixCache
from pageinn.model.checkpoint import Checkpoint
from pageinn.model.decoder import Decoder
from pageinn.model.sources import open_checkpoint
from pageinn.model.weights import load_weights
from pageinn.scheduling.config import AdmissionMode

FORMATS = [
    *(("int8", dtype) for dtype in ("bfloat16", "float32", "float16", "fp8_e4m3", "fp8_e5m2", "int8")),
    ("none", "bfloat16"),
    ("none", "float32"),
]
VOCAB = 320


def requests_of(seed: int, vocab: int, count: int, head: int, most_own: int) -> list[GenerationRequest]:
    """Prompts that share some beginnings, ending anywhere in a block; greedy and sampled, some with four choices."""
    rng = random.Random(seed)
    heads = [[rng.randrange(vocab) for _ in range(head)] for _ in range(3)]
    requests = []
    for number in range(count):
        shared = rng.choice(heads)[: rng.randrange(head // 2, head)]
        prompt = (*shared, *(rng.randrange(vocab) for _ in range(rng.randrange(1, most_own))))
        sampling = SamplingParams(
            max_tokens=rng.randrange(5, 40),
            n=rng.choice([1, 1, 4]),
            temperature=rng.choice([0.0, 0.7, 1.0]),
            top_p=rng.choice([1.0, 0.9]),
            top_k=rng.choice([0, 20]),
            min_p=rng.choice([0.0, 0.01]),
            seed=number,
            logprobs=2,
            ignore_eos=rng.random() < 0.7,
        )
        requests.append(GenerationRequest(f"{head}-{number}", prompt, sampling))
    return requests


#: Sixteen short ones, and five that share and outgrow one or two partitions of 256 keys.
REQUESTS = [*requests_of(5, VOCAB, 16, 60, 20), *requests_of(6, VOCAB, 5, 600, 40)]


@cache
def reference(path: Path, quantization: str, dtype: str) -> Mapping[ChoiceKey, Answer]:
    config = EngineConfig(model=path, quantization=quantization, kv_cache_dtype=dtype, kv_cache_memory_bytes=8 << 20)
    return alone(replace(config, max_num_batched_tokens=512), REQUESTS)


@dataclass(frozen=True)
class Conditions:
    """Everything that must not matter. Up to 384 slots hold the short requests only, and the fewest force preemptions.

    disturbances: how many more choices to preempt, each after any step, whatever it is doing. evicted: kept blocks to
    evict with each of them and after each round.
    """

    order: int = 3
    slots: int = 160
    block_size: int = 16
    threads: int = 2
    seats: int = 16
    budget: int = 256
    prefix_cache: str = "keep"
    admission: str = "optimistic"
    disturbances: int = 0
    evicted: int = 4


conditions = st.builds(
    Conditions,
    order=st.integers(0, 1 << 30),
    slots=st.sampled_from([128, 160, 384, 1024, 8000]),
    block_size=st.sampled_from([8, 16, 16, 32]),
    threads=st.sampled_from([1, 2]),
    seats=st.sampled_from([1, 3, 16]),
    budget=st.sampled_from([16, 17, 37, 128, 512]),
    prefix_cache=st.sampled_from(["off", "live", "keep", "keep"]),
    admission=st.sampled_from(["optimistic", "optimistic", "predicted", "guaranteed"]),
    disturbances=st.sampled_from([0, 0, 40]),
    evicted=st.integers(0, 8),
)


def engine_under(path: Path, quantization: str, dtype: str, under: Conditions) -> Engine:
    config = EngineConfig(
        quantization=quantization,
        kv_cache_dtype=dtype,
        block_size=under.block_size,
        threads=under.threads,
        prefix_cache=PrefixCache(under.prefix_cache),
        admission=AdmissionMode(under.admission),
        max_num_seqs=under.seats,
        max_num_batched_tokens=max(under.seats, under.budget),
    )
    engine = Engine(with_blocks(path, under.slots // under.block_size, config))
    assert engine.num_blocks == under.slots // under.block_size
    return engine


def check_rounds(
    engine: Engine,
    requests: Sequence[GenerationRequest],
    expected: Mapping[ChoiceKey, Answer],
    under: Conditions,
) -> Stats:
    """A round cold, then one with what the first left, some of it evicted, over poisoned and shuffled free blocks."""
    rng = random.Random(under.order)
    scheduler, memory = engine.core.scheduler, engine.core.scheduler.memory
    left = under.disturbances

    def disturb() -> None:
        nonlocal left
        if left and scheduler._running and rng.random() < 0.3:
            left -= 1
            scheduler._preempt([rng.choice(scheduler._running)])
            memory.tree.evict(under.evicted)
            poison(engine, memory.pool._free)

    poison(engine)
    fitting = [each for each in requests if scheduler.refusal(engine.core._request(each)) is None]
    assert len(fitting) > len(requests) // 2 or under.admission == "guaranteed"
    for _ in ("cold", "warm"):
        rng.shuffle(memory.pool._free)
        poison(engine, memory.pool._free)
        rng.shuffle(fitting)
        answers = run(engine, fitting, disturb)
        assert len(answers) == sum(each.sampling.n for each in fitting)
        for key, answer in answers.items():
            assert answer.bits == expected[key].bits, key
            assert answer.finish == expected[key].finish, key
        memory.check()
        memory.tree.evict(under.evicted)
    stats = engine.core.stats()
    assert stats.blocks_in_use == 0
    return stats


@pytest.mark.parametrize(("quantization", "dtype"), FORMATS)
def test_tiny_model_under_any_conditions(tiny_path: Path, quantization: str, dtype: str) -> None:
    """Field cases A4, B4, B6, E2, E3, E4: cold, warm, shared, forked, chunked, preempted, partly evicted: all equal.

    No dtype switches anything off: with each, prefixes are found, blocks evicted and tokens recomputed.
    """
    expected = reference(tiny_path, quantization, dtype)
    seen: Counter[str] = Counter()

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(conditions)
    @example(Conditions())
    def check(under: Conditions) -> None:
        engine = engine_under(tiny_path, quantization, dtype, under)
        stats = check_rounds(engine, REQUESTS, expected, under)
        seen.update(
            preemptions=stats.preemptions,
            hits=stats.prefix_cache_hits,
            evictions=stats.evicted_blocks,
            recomputed=stats.recomputed_tokens,
        )

    check()
    assert min(seen.values()) > 0


@pytest.mark.parametrize(("quantization", "dtype"), FORMATS)
@pytest.mark.parametrize(
    "under", [Conditions(), Conditions(slots=1024, budget=37, disturbances=40)], ids=["short", "long"]
)
def test_tiny_model_under_forced_conditions(tiny_path: Path, quantization: str, dtype: str, under: Conditions) -> None:
    """Field cases A4, B6: preempted for want of blocks, and at any moment beyond a partition of keys."""
    engine = engine_under(tiny_path, quantization, dtype, under)
    stats = check_rounds(engine, REQUESTS, reference(tiny_path, quantization, dtype), under)
    assert stats.preemptions > 0
    assert stats.recomputed_tokens > 0
    assert stats.prefix_cache_hits > 0
    assert stats.evicted_blocks > 0


def test_tiny_model_on_portable_kernels(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels without AVX2 have bits of their own, which depend on as little."""
    monkeypatch.setenv("PAGEINN_ISA", "portable")
    requests = REQUESTS[::3]
    config = EngineConfig(model=tiny_path, kv_cache_memory_bytes=8 << 20)
    under = Conditions(slots=1024, disturbances=20)
    engine = engine_under(tiny_path, "int8", "bfloat16", under)
    assert check_rounds(engine, requests, alone(config, requests), under).preemptions > 0


class _BatchDependent(CpuBackend):
    """A backend whose linear layers depend, in the last bits, on how many rows stand side by side."""

    def linear(self, x: F32, weight: PackedLinear, out: F32, add: bool = False) -> None:
        super().linear(x, weight, out, add)
        out *= 1 + len(x) * 2.0**-23


def test_a_batch_dependent_kernel_is_caught(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: a matrix product that picks another kernel by shape turns it red."""
    monkeypatch.setattr("pageinn.engine.engine.CpuBackend", _BatchDependent)
    requests = REQUESTS[:6]
    expected = alone(EngineConfig(model=tiny_path, kv_cache_memory_bytes=8 << 20), requests)
    under = Conditions(slots=8000)
    with pytest.raises(AssertionError, match="60-"):
        check_rounds(engine_under(tiny_path, "int8", "bfloat16", under), requests, expected, under)


def smollm2_requests() -> list[GenerationRequest]:
    """Some that share more than a partition of 256 keys, one with four choices, and some short ones."""
    rng = random.Random(11)

    def ids(count: int) -> list[int]:
        return [rng.randrange(300, 49152) for _ in range(count)]

    head = ids(300)
    sampling = SamplingParams(max_tokens=14, temperature=0.0, logprobs=2, ignore_eos=True)
    requests = []
    for number in range(3):
        own = replace(sampling, n=4 if number == 1 else 1, temperature=number % 2, seed=number)
        requests.append(
            GenerationRequest(f"long{number}", (*head[: 300 - 37 * (number % 3)], *ids(5 + 9 * number)), own)
        )
    for number in range(2):
        own = replace(sampling, temperature=number % 2, seed=number)
        requests.append(GenerationRequest(f"short{number}", tuple(ids(20 + number)), own))
    return requests


@pytest.mark.parametrize("quantization", ["int8", "none"])
def test_smollm2_under_some_conditions(quantization: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on the default model: 2 threads, chunks of 64 and 256, a pool that preempts, cold and warm."""
    weights = load_weights(open_checkpoint(default_model()), CpuBackend(2), quantization, lambda done, total: None)

    def loaded(checkpoint: Checkpoint, backend: CpuBackend, *_: object, max_tokens: int, kept: object) -> Decoder:
        """Read once, for three engines."""
        return Decoder(checkpoint.config, weights, backend, max_tokens)

    monkeypatch.setattr(Decoder, "load", loaded)
    config = EngineConfig(
        quantization=quantization,
        kv_cache_memory_bytes=200 << 20,
        max_num_seqs=16,
        threads=2,
        admission=AdmissionMode.OPTIMISTIC,
    )
    requests = smollm2_requests()
    expected = alone(config, requests)
    block_bytes = 30 * 2 * 3 * 64 * 16 * 2
    preemptions = []
    for blocks, budget in ((400, 64), (22, 256)):
        engine = Engine(replace(config, kv_cache_memory_bytes=blocks * block_bytes, max_num_batched_tokens=budget))
        assert engine.num_blocks == blocks
        stats = check_rounds(engine, requests, expected, Conditions(order=blocks, evicted=5))
        assert stats.prefix_cache_hits > 0
        preemptions.append(stats.preemptions)
    assert preemptions[0] == 0
    assert preemptions[1] > 0
