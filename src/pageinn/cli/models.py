"""`pageinn models`: what is supported, and whether a given model would load."""

from __future__ import annotations

import textwrap
from argparse import Namespace
from collections.abc import Iterable

from pageinn.cli.sizes import show_size
from pageinn.kernels.cpu import CpuBackend
from pageinn.model.checkpoint import Checkpoint
from pageinn.model.config import FAMILIES, ROPE_SCALINGS, ModelConfig, ModelError
from pageinn.model.gguf_file import supported_types
from pageinn.model.hf_config import ARCHITECTURES
from pageinn.model.safetensors_file import DTYPES
from pageinn.model.sources import open_for_check
from pageinn.model.weights import WEIGHT_FORMATS, check_tensors
from pageinn.text.pretokenizers import KNOWN
from pageinn.text.template import ChatTemplate, TemplateError
from pageinn.text.tokenizer import Tokenizer, TokenizerError

WIDTH, LABEL = 80, 17


def models_command(args: Namespace) -> int:
    """Say what is supported, or judge one model; returns the exit code: 1 for a model that would not load."""
    if args.model is None:
        print(_supported())
        return 0
    try:
        print(_judged(args.model))
    except (ModelError, TokenizerError, TemplateError) as error:
        # Errors of the text room do not know the file that they speak of.
        named = str(error) if isinstance(error, ModelError) else f"{args.model}: {error}"
        print(textwrap.fill(f"would not load: {named}", WIDTH, break_long_words=False, break_on_hyphens=False))
        return 1
    return 0


def _supported() -> str:
    rows = [
        ("architectures", ", ".join(FAMILIES)),
        ("", f"in a config.json: {', '.join(ARCHITECTURES)}"),
        ("rotary scaling", ", ".join(("none", *ROPE_SCALINGS))),
        ("sliding window", "where --max-model-len does not exceed it"),
        ("models", "a GGUF file (version 2 or 3)"),
        ("", "a folder with config.json, safetensors and tokenizer.json"),
        ("", "the name of such a folder on the Hugging Face hub, owner/name"),
        ("tensors", f"GGUF: {', '.join(supported_types())}"),
        ("", f"safetensors: {', '.join(DTYPES)}"),
        ("tokenizers", f"GGUF: gpt2 (byte-level BPE, cut as {', '.join(KNOWN)}), llama (SentencePiece's BPE)"),
        ("", "tokenizer.json: BPE and Unigram, with ByteLevel, ByteFallback or Metaspace decoders"),
        ("weights", f"--quantization {', '.join(WEIGHT_FORMATS)} (none is float32)"),
        ("KV cache", f"--kv-cache-dtype {', '.join(sorted(CpuBackend.store_dtypes))}"),
    ]
    return _table(rows)


def _judged(model: str) -> str:
    """What a model is. Raises ModelError, TokenizerError or TemplateError if it would not load."""
    checkpoint = open_for_check(model)
    if checkpoint.tensors:
        check_tensors(checkpoint)
    tokenizer = Tokenizer(checkpoint.tokenizer)
    template = ChatTemplate.of(checkpoint.tokenizer)
    config = checkpoint.config
    rows = [
        ("served as", checkpoint.served_name),
        ("architecture", _shape(config)),
        ("rotary", f"base {config.rope_theta:g}, scaling {config.rope_scaling}"),
        ("context", _context(config)),
        ("vocabulary", f"{tokenizer.vocab_size} tokens, {len(tokenizer.eos_ids)} of them end an answer"),
        ("chat template", "none: only plain completions" if template is None else "yes"),
        ("weights", _weights(checkpoint)),
    ]
    return f"{model} would load\n{_table(rows)}"


def _shape(config: ModelConfig) -> str:
    return (
        f"{config.architecture}, {config.num_layers} layers of {config.hidden_size}, {config.num_heads} query and "
        f"{config.num_kv_heads} key-value heads of {config.head_dim}"
    )


def _context(config: ModelConfig) -> str:
    window = config.sliding_window
    if window is None or window >= config.context_length:
        return f"{config.context_length} tokens"
    way_out = f"serve it with --max-model-len {window} or less"
    return f"{config.context_length} tokens in a sliding window of {window}: {way_out}"


def _weights(checkpoint: Checkpoint) -> str:
    if not checkpoint.tensors:
        return "not looked at: they are not in the hub's cache yet"
    size = show_size(sum(tensor.nbytes for tensor in checkpoint.tensors.values()))
    return f"{len(checkpoint.tensors)} tensors, {size}; their values are checked while loading"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    """Labels and texts in two columns; a row without a label continues the one before."""
    lines = []
    for label, text in rows:
        head = label.ljust(LABEL)
        lines += textwrap.wrap(
            text,
            WIDTH,
            initial_indent=head,
            subsequent_indent=" " * LABEL,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)
