"""`pageinn drift`: what a cache's dtype does to answers, and whether it grows with the context."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from pageinn.drift.calibrate import Extremes, scales_from
from pageinn.drift.forced import CHUNK, Chunk, Contender, compare, joined
from pageinn.drift.free import Answer, Parting, answers, blocks_for, calls_in, parting
from pageinn.drift.plot import draw
from pageinn.drift.prompts import read_rows, tokenised
from pageinn.drift.report import Found, Subject, as_json, as_text, fails, found
from pageinn.drift.texts import CorpusError, read_corpus, windows
from pageinn.drift.trend import Kind
from pageinn.engine.config import STORE_DTYPE_ALIASES, require_store_dtype
from pageinn.engine.default_model import default_model
from pageinn.kernels.backend import I32
from pageinn.kernels.cpu import CpuBackend
from pageinn.kernels.slots import STORE_DTYPES, Scales
from pageinn.model.checkpoint import Checkpoint
from pageinn.model.config import ModelError
from pageinn.model.decoder import Decoder
from pageinn.model.sources import open_checkpoint
from pageinn.scheduling.config import ConfigError
from pageinn.store.kv_store import HeadScales, KVStore, StoreTooLargeError, bytes_per_block
from pageinn.store.scales import Calibration, ScalesError, read_scales, write_scales
from pageinn.text.template import ChatTemplate, TemplateError
from pageinn.text.tokenizer import Tokenizer, TokenizerError

_ERRORS = (ConfigError, CorpusError, ModelError, ScalesError, StoreTooLargeError, TemplateError, TokenizerError)
_BLOCK = 16
_LONGEST = 8192
#: Status of a run whose verdict is as bad as --fail-on names.
FAILED = 3


def drift_command(args: Namespace) -> int:
    """Compare and print; returns the exit code: 130 when cut short, FAILED by --fail-on."""
    try:
        return _drift(args)
    except _ERRORS as error:
        print(f"pageinn: {error}", file=sys.stderr)
        return 1


class _Setup(NamedTuple):
    """What is compared, on what. scales: of fp8 caches."""

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    model: Decoder
    reference: str
    dtypes: list[str]
    texts: list[I32]
    prompts: list[list[int]]
    threads: int
    scales: HeadScales | None


def _drift(args: Namespace) -> int:
    setup = _set_up(args)
    if args.calibrate is not None:
        return _calibrate(setup, args.calibrate)
    chunks: list[Chunk] = []
    written: dict[str, list[Answer]] = {}
    interrupted = False
    try:
        _run_forced(setup, chunks)
        _run_free(setup, args.answer_tokens, written)
    except KeyboardInterrupt:
        interrupted = True
    if not chunks:
        print("pageinn: interrupted before anything was compared", file=sys.stderr)
        return 130
    subject, rows = _summary(setup, args, chunks, written, interrupted)
    print(json.dumps(as_json(subject, rows), indent=2) if args.json else as_text(subject, rows))
    if args.plot is not None:
        draw(subject, rows, args.plot)
    if interrupted:
        return 130
    return FAILED if fails(rows, None if args.fail_on is None else Kind(args.fail_on)) else 0


def _set_up(args: Namespace) -> _Setup:
    backend = CpuBackend(args.threads)
    names = [STORE_DTYPE_ALIASES.get(name, name) for name in [args.reference, *args.dtypes.split(",")]]
    for name in names:
        require_store_dtype(name, backend.store_dtypes, backend.name)
    checkpoint = open_checkpoint(args.model or default_model())
    tokenizer = Tokenizer(checkpoint.tokenizer)
    context = checkpoint.config.context_length
    if (args.max_model_len or 0) > context:
        raise ConfigError(f"--max-model-len is {args.max_model_len}, and the model goes to {context}; ask for less")
    length = args.max_model_len or min(context, _LONGEST)
    texts = windows(read_corpus(args.corpus), tokenizer.encode, length, args.texts)
    prompts: list[list[int]] = []
    if args.answer_tokens:
        template = ChatTemplate.of(checkpoint.tokenizer)
        found = tokenised(read_rows(args.prompts), template, tokenizer.encode, context - args.answer_tokens)
        for line in found.skipped:
            print(f"pageinn: left out: {line}", file=sys.stderr)
        prompts = found.tokens
    scales = _scales(args, checkpoint)
    with tqdm(desc="Loading", unit="B", unit_scale=True, leave=False, disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        model = Decoder.load(checkpoint, backend, args.quantization, progress, max_tokens=CHUNK)
    dtypes = list(dict.fromkeys(names[1:]))
    return _Setup(checkpoint, tokenizer, model, names[0], dtypes, texts, prompts, backend.threads, scales)


def _scales(args: Namespace, checkpoint: Checkpoint) -> HeadScales | None:
    if args.kv_cache_scales is None:
        return None
    shape = checkpoint.config
    calibration = read_scales(args.kv_cache_scales, checkpoint.fingerprint(), shape.num_layers, shape.num_kv_heads)
    print(f"pageinn: fp8 scales by head from {calibration.tokens:,} tokens", file=sys.stderr)
    return calibration.scales


def _calibrate(setup: _Setup, path: Path) -> int:
    blocks = -(-max(map(len, setup.texts)) // _BLOCK)
    extremes = Extremes(Contender("float32", setup.model, _store(setup, "float32", blocks)))
    with tqdm(desc="Reading", total=sum(map(len, setup.texts)), unit="token", leave=False, disable=None) as bar:
        for count in extremes.read(setup.texts):
            bar.update(count)
    scales = scales_from(extremes)
    write_scales(path, Calibration(scales, extremes.tokens, setup.checkpoint.fingerprint()))
    layers, heads = extremes.keys.shape
    print(
        f"scales of {layers} layers of {heads} heads from {extremes.tokens:,} tokens, in {path}\n"
        f"largest key {extremes.keys.max():.4g}, largest value {extremes.values.max():.4g}; fp8_e4m3 goes to 448"
    )
    return 0


def _run_forced(setup: _Setup, chunks: list[Chunk]) -> None:
    blocks = -(-max(map(len, setup.texts)) // _BLOCK)
    contenders = [Contender(dtype, setup.model, _store(setup, dtype, blocks)) for dtype in setup.dtypes]
    reference = Contender(setup.reference, setup.model, _store(setup, setup.reference, blocks))
    total = sum(len(text) - 1 for text in setup.texts)
    with tqdm(desc="Reading", total=total, unit="token", leave=False, disable=None) as bar:
        for chunk in compare(reference, contenders, setup.texts, setup.threads):
            chunks.append(chunk)
            bar.update(len(chunk.found[setup.dtypes[0]].kl))


def _run_free(setup: _Setup, longest: int, written: dict[str, list[Answer]]) -> None:
    """Answers by dtype, of those that came to an end."""
    if not setup.prompts:
        return
    names = list(dict.fromkeys([setup.reference, *setup.dtypes]))
    blocks = blocks_for(_BLOCK, setup.prompts, longest)
    with tqdm(desc="Answering", total=len(names) * longest, unit="step", leave=False, disable=None) as bar:
        for number, dtype in enumerate(names):
            contender = Contender(dtype, setup.model, _store(setup, dtype, blocks))
            for each in answers(contender, setup.prompts, longest, setup.tokenizer.eos_ids):
                done = each
                bar.update()
            written[dtype] = done
            bar.update((number + 1) * longest - bar.n)


def _store(setup: _Setup, dtype: str, blocks: int) -> KVStore:
    shape = setup.checkpoint.config
    return KVStore(
        layers=shape.num_layers,
        blocks=blocks,
        kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        block_size=_BLOCK,
        dtype=dtype,
        scales=setup.scales if STORE_DTYPES[dtype].scales is Scales.HEAD else None,
        pairs=setup.model.backend.pairs,
    )


def _summary(
    setup: _Setup, args: Namespace, chunks: list[Chunk], written: dict[str, list[Answer]], interrupted: bool
) -> tuple[Subject, list[Found]]:
    def decode(tokens: Sequence[int]) -> str:
        return setup.tokenizer.decode(list(tokens))

    def partings(dtype: str) -> list[Parting] | None:
        if dtype not in written:
            return None
        pairs = zip(written[setup.reference], written[dtype], strict=True)
        return [parting(ours, theirs, decode) for ours, theirs in pairs]

    shape = setup.checkpoint.config
    sizes = {
        dtype: bytes_per_block(shape.num_layers, shape.num_kv_heads, shape.head_dim, _BLOCK, dtype)
        for dtype in {"bfloat16", *setup.dtypes}
    }
    subject = Subject(
        model=setup.checkpoint.served_name,
        weights="int8" if args.quantization == "int8" else "float32",
        reference=setup.reference,
        texts=len({chunk.text for chunk in chunks}),
        longest=max(map(len, setup.texts)),
        answer_tokens=args.answer_tokens,
        calls=sum(calls_in(decode(each.tokens)) for each in written.get(setup.reference, [])),
        interrupted=interrupted,
    )
    rows = [
        found(dtype, sizes["bfloat16"] / sizes[dtype], joined(chunks, dtype), partings(dtype)) for dtype in setup.dtypes
    ]
    return subject, rows
