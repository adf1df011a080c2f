"""How text is cut before byte-pair merging, by the name a GGUF gives under `tokenizer.ggml.pre`.

The names are llama.cpp's; the cuts are those of the tokenizer.json files the models were published with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tokenizers import Regex, normalizers, pre_tokenizers


class TokenizerError(ValueError):
    """The model file's tokenizer is missing something, contradicts itself, or is of a kind not supported."""


class Pretokenizer(NamedTuple):
    """What precedes the merges: an optional normaliser, the cut, and whether whole words skip the merges."""

    cut: pre_tokenizers.PreTokenizer
    normalizer: normalizers.Normalizer | None = None
    ignore_merges: bool = False


_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: Qwen 2 cuts as Llama 3 does, but takes digits one by one.
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def _gpt2() -> Pretokenizer:
    return Pretokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))


def _smollm() -> Pretokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return Pretokenizer(pre_tokenizers.Sequence([digits, _gpt2().cut]))


def _by_regex(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _llama3() -> Pretokenizer:
    return Pretokenizer(_by_regex(_LLAMA3), ignore_merges=True)


def _qwen2() -> Pretokenizer:
    return Pretokenizer(_by_regex(_QWEN2), normalizer=normalizers.NFC())


_BY_NAME: dict[str, Callable[[], Pretokenizer]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": _llama3,
    "qwen2": _qwen2,
}

#: The names that are supported.
KNOWN = tuple(sorted(_BY_NAME))


def pretokenizer(name: str) -> Pretokenizer:
    """The pre-tokenizer of this name. Raises TokenizerError for a name that is not known."""
    if name not in _BY_NAME:
        raise TokenizerError(f"pre-tokenizer {name!r} is not supported; supported are {', '.join(KNOWN)}")
    return _BY_NAME[name]()
