"""Wrong arguments are refused with a message that names them; several callers may share a backend."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from kernel_cases import PAIRS, Heads, cpu, empty_store, normal, same_bits

from pageinn.kernels.backend import LayerStore, SampleParams
from pageinn.kernels.cpu import CpuBackend

HEADS = Heads(4, 2, 16)


def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


def attention_arguments(**changes: Any) -> dict[str, Any]:
    good = {
        "q": zeros(3, 4, 16),
        "store": empty_store(HEADS, 5, 8, "float32", fill=0),
        "tables": np.array([[0, 1, 2], [3, 4, 0]], np.int32),
        "query_starts": np.array([0, 2, 3], np.int32),
        "context_lens": np.array([20, 9], np.int32),
        "scale": 0.25,
        "out": zeros(3, 4, 16),
    }
    return {**good, **changes}


def test_good_attention_arguments_are_good(backend: CpuBackend) -> None:
    backend.attention(**attention_arguments())
    # Entries that no context reaches are not looked at, and a sequence may bring no query.
    backend.attention(**attention_arguments(tables=np.array([[0, 1, 2], [3, 4, -9]], np.int32)))
    starts = np.array([0, 3, 3], np.int32)
    backend.attention(**attention_arguments(query_starts=starts, context_lens=np.array([20, 0], np.int32)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": zeros(3, 64)}, r"q must be float32 \[T, H, D\], got float32 \[3, 64\]"),
        (
            {"q": zeros(3, 4, 16, dtype=np.float64)},
            r"q must be float32 \[T, H, D\], got format d \[3, 4, 16\]",
        ),
        ({"q": [[1]]}, "q must be a numpy array, got <class 'list'>"),
        ({"q": zeros(3, 4, 32)[:, :, ::2]}, "q must be C-contiguous within a row"),
        ({"q": zeros(3, 3, 16), "out": zeros(3, 3, 16)}, "q has 3 heads, not a multiple of the store's 2"),
        (
            {"q": zeros(3, 4, 8)},
            r"q must have 16 in dimension 2 \(the store's head size\), got float32 \[3, 4, 8\]",
        ),
        ({"out": zeros(3, 4, 8)}, r"out must have 16 in dimension 2"),
        ({"tables": np.array([[0, 5, 2], [3, 4, 0]], np.int32)}, r"tables row\[1\] is 5, outside 0..4"),
        ({"tables": np.array([[0, 1, 2], [-1, 4, 0]], np.int32)}, r"tables row\[0\] is -1, outside 0..4"),
        ({"context_lens": np.array([25, 9], np.int32)}, r"context_lens\[0\] is 25, outside 2..24"),
        ({"context_lens": np.array([1, 9], np.int32)}, r"context_lens\[0\] is 1, outside 2..24"),
        ({"query_starts": np.array([0, 2, 4], np.int32)}, "query_starts must run from 0 to the 3 rows of q"),
        ({"query_starts": np.array([0, 4, 3], np.int32)}, "query_starts must not decrease"),
        ({"query_starts": np.array([0, 3], np.int32)}, r"query_starts must have 3 in dimension 0"),
        (
            {"query_starts": np.array([0, 2, 3])},
            r"query_starts must be int32 with one dimension, got int64 \[3\]",
        ),
        (
            {"store": LayerStore(zeros(5, 2, 16, 4), zeros(5, 2, 4, 16), "float32")},
            "a block must hold a multiple of 8 tokens, not 4",
        ),
        (
            {"store": LayerStore(zeros(5, 2, 16, 8), zeros(5, 2, 16, 8), "float32")},
            r"store.values must have 8 in dimension 2 \(the block size of the keys\)",
        ),
        (
            {"store": LayerStore(zeros(5, 2, 16, 8), zeros(5, 2, 8, 16, dtype=np.uint16), "float32")},
            "store.values must be float32",
        ),
        (
            {"store": LayerStore(zeros(5, 2, 16, 8, dtype=np.float16), zeros(5, 2, 8, 16), "float16")},
            r"store.values must be float16 \[blocks, G, B, D\], got float32",
        ),
        (
            {"store": LayerStore(zeros(5, 2, 16, 8), zeros(5, 2, 8, 16), "bfloat16")},
            r"store.keys must be uint16 \[blocks, G, D, B\], for bfloat16, got float32",
        ),
        (
            {"store": LayerStore(zeros(5, 2, 16, 8), zeros(5, 2, 8, 16), "int4")},
            "store.dtype 'int4' is not one that the cpu backend supports",
        ),
        ({"store": (zeros(5, 2, 16, 8), zeros(5, 2, 8, 16))}, "store must be a LayerStore, got <class 'tuple'>"),
        (
            {"store": LayerStore(*(np.zeros(s, np.uint8) for s in ((5, 2, 16, 8), (5, 2, 8, 16))), "fp8_e4m3")},
            "store.key_scales must be a numpy array, got <class 'NoneType'>",
        ),
        (
            {"store": empty_store(HEADS, 5, 8, "fp8_e5m2", 0)._replace(value_scales=np.ones(3, np.float32))},
            r"store.value_scales must have 2 in dimension 0 \(the heads of the keys\), got float32 \[3\]",
        ),
        (
            {"store": empty_store(HEADS, 5, 8, "int8", 0)._replace(key_scales=np.ones((5, 2, 8), np.float32))},
            r"store.key_scales must be uint16 \[blocks, G, B\], bfloat16, got float32",
        ),
        (
            {"store": empty_store(Heads(2, 2, 3), 5, 8, "int8", 0)},
            "a store of int8 needs a head of an even size, not 3",
        ),
        (
            {"store": empty_store(Heads(2, 2, 3), 5, 8, "bfloat16", 0)},
            "a store of bfloat16 needs a head of an even size, not 3",
        ),
        (
            {"store": empty_store(HEADS, 5, 8, "float32", 0)._replace(pairs=True)},
            "only a bfloat16 store can be in pairs",
        ),
    ],
)
def test_attention_names_what_is_wrong(backend: CpuBackend, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        backend.attention(**attention_arguments(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": np.array([0, 10], np.int32)}, r"positions\[1\] is 10, outside 0..9"),
        ({"positions": np.array([-1, 0], np.int32)}, r"positions\[0\] is -1, outside 0..9"),
        ({"slots": np.array([0, 40], np.int64)}, r"slots\[1\] is 40, outside -1..39"),
        ({"slots": np.array([0, -2], np.int64)}, r"slots\[1\] is -2, outside -1..39"),
        (
            {"cos": zeros(10, 9), "sin": zeros(10, 9)},
            "cos has 9 columns, but a head of size 16 can rotate at most 8",
        ),
        ({"sin": zeros(9, 8)}, r"sin must have 10 in dimension 0"),
        ({"num_heads": 3}, r"qkv must have 112 in dimension 1 \(\(H \+ 2G\) \* D\), got float32 \[2, 128\]"),
    ],
)
def test_rotary_write_names_what_is_wrong(backend: CpuBackend, changes: dict[str, Any], message: str) -> None:
    good = {
        "qkv": zeros(2, 8 * 16),
        "positions": zeros(2, dtype=np.int32),
        "cos": zeros(10, 8),
        "sin": zeros(10, 8),
        "num_heads": 4,
        "slots": np.array([0, -1], np.int64),
        "store": empty_store(HEADS, 5, 8, "bfloat16", fill=0),
    }
    backend.rotary_write(**good)
    with pytest.raises(ValueError, match=message):
        backend.rotary_write(**{**good, **changes})


def test_linear_names_what_is_wrong(backend: CpuBackend) -> None:
    weight = backend.pack_linear(np.ones((5, 6), np.float32), "int8")
    with pytest.raises(ValueError, match=r"x must have 6 in dimension 1 \(the weight's inputs\), got float32 \[2, 7\]"):
        backend.linear(zeros(2, 7), weight, zeros(2, 5))
    with pytest.raises(ValueError, match=r"out must have 2 in dimension 0 \(the rows of x\)"):
        backend.linear(zeros(2, 6), weight, zeros(3, 5))
    frozen = zeros(2, 5)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="out must be a writable numpy array"):
        backend.linear(zeros(2, 6), weight, frozen)
    with pytest.raises(ValueError, match="weight format 'int4' is not one of float32, int8"):
        backend.pack_linear(np.ones((5, 6), np.float32), "int4")
    with pytest.raises(ValueError, match="weight has NaN or infinity in row 3"):
        backend.pack_linear(np.array([[1], [2], [3], [np.inf]], np.float32), "int8")
    with pytest.raises(ValueError, match="weight is empty"):
        backend.pack_linear(zeros(0, 6), "float32")


def test_the_other_operations_name_what_is_wrong(backend: CpuBackend) -> None:
    store = empty_store(HEADS, 5, 8, "float32", fill=0)
    with pytest.raises(ValueError, match=r"weight must have 8 in dimension 0 \(the columns of x\)"):
        backend.rms_norm(zeros(2, 8), zeros(7), 1e-5, zeros(2, 8))
    with pytest.raises(ValueError, match=r"gate_up must have 8 in dimension 1 \(twice the columns of out\)"):
        backend.silu_mul(zeros(2, 7), zeros(2, 4))
    with pytest.raises(ValueError, match=r"pairs\[1\] is 5, outside 0..4"):
        backend.copy_blocks(store, np.array([[0, 1], [2, 5]], np.int32))
    with pytest.raises(ValueError, match=r"tokens\[1\] is 9, outside 0..8"):
        backend.log_probs(zeros(2, 9), np.array([0, 9], np.int32), 1)
    with pytest.raises(ValueError, match="k is 10, more than the 9 columns of logits"):
        backend.log_probs(zeros(2, 9), np.array([0, 8], np.int32), 10)
    ones = [np.ones(1, dtype) for dtype in (np.float32, np.int32, np.float32, np.float32, *[np.uint64] * 3)]
    with pytest.raises(ValueError, match=r"temperature\[0\] is -1.0+, not 0 or more"):
        backend.sample(zeros(1, 9), SampleParams(-ones[0], *ones[1:]))
    with pytest.raises(ValueError, match=r"top_k must have 2 in dimension 0"):
        backend.sample(zeros(2, 9), SampleParams(np.ones(2, np.float32), *ones[1:]))


def test_a_store_in_pairs_is_refused_where_nothing_multiplies_pairs(isa: str) -> None:
    if cpu(isa, 1).pairs:
        pytest.skip(f"{isa} multiplies pairs")
    arguments = attention_arguments(store=empty_store(HEADS, 5, 8, PAIRS, fill=0))
    with pytest.raises(ValueError, match=f"isa '{isa}' attends to no store in pairs"):
        cpu(isa, 1).attention(**arguments)


def test_backends_name_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"isa 'sse' is not one of auto, (avx512_bf16, avx512, avx2, )?portable"):
        CpuBackend(isa="sse")
    with pytest.raises(ValueError, match="threads must be from 1 to 1024, not 0"):
        CpuBackend(threads=0)
    monkeypatch.setenv("PAGEINN_ISA", "portable")
    assert CpuBackend(threads=1).isa == "portable"


def test_several_python_threads_may_share_a_backend(isa: str) -> None:
    """Large products let go of the interpreter lock and so meet in the pool; small ones run between them."""
    backend = cpu(isa, 3)
    weight = normal(np.random.default_rng(0), 256, 512)
    packed = {name: backend.pack_linear(weight, name) for name in ("float32", "int8")}
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for rows in (1, 64, 3, 40):
            for name, each in packed.items():
                x = normal(rng, rows, 512)
                out, alone = np.empty((rows, 256), np.float32), np.empty((1, 256), np.float32)
                backend.linear(x, each, out)
                cpu(isa, 1).linear(x[-1:], each, alone)
                if not same_bits(out[-1:], alone):
                    wrong.append(f"{seed} {rows} {name}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_pools_come_and_go(isa: str) -> None:
    """A pool must be destroyed cleanly whether its workers spin or sleep, and after work or none."""
    x, weight = np.ones((8, 256), np.float32), np.ones((512, 256), np.float32)
    out = np.empty((8, 512), np.float32)
    for threads in (1, 2, 5):
        for _ in range(20):
            backend = CpuBackend(threads=threads, isa=isa)
            backend.linear(x, backend.pack_linear(weight, "int8"), out)
            assert (out == 256).all()
            del backend
            CpuBackend(threads=threads, isa=isa)
