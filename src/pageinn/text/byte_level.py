"""Byte-level byte-pair encoding from a GGUF (Sennrich et al. 2016, in GPT-2's variant).

Every byte has a printable stand-in, so that any text can be encoded and every token stands for exact bytes.
"""

from __future__ import annotations

from tokenizers import Tokenizer as BaseTokenizer
from tokenizers import models

from pageinn.text.data import TokenizerData
from pageinn.text.pretokenizers import TokenizerError, pretokenizer
from pageinn.text.vocabulary import Built, add_tokens, byte_level_bytes


def build_byte_level(data: TokenizerData) -> Built:
    """The tokenizer of a vocabulary that GGUF calls "gpt2".

    Raises TokenizerError for an unknown pre-tokenizer, and for merges outside the vocabulary.
    """
    pre = pretokenizer(data.pre)
    vocab = {text: i for i, text in enumerate(data.tokens)}
    merges = [_pair(merge) for merge in data.merges]
    try:
        bpe = models.BPE(vocab=vocab, merges=merges, ignore_merges=pre.ignore_merges)
    except Exception as error:  # the library raises bare Exception for a merge outside the vocabulary
        raise TokenizerError(f"the tokenizer's merges do not fit its vocabulary: {error}") from error
    base = BaseTokenizer(bpe)
    base.pre_tokenizer = pre.cut
    if pre.normalizer is not None:
        base.normalizer = pre.normalizer
    add_tokens(base, data)
    token_bytes = [byte_level_bytes(text, kind) for text, kind in zip(data.tokens, data.token_types, strict=True)]
    return Built(base, token_bytes, starts_with_space=False)


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right
