"""SentencePiece's byte-pair encoding from a GGUF vocabulary with scores (Kudo and Richardson 2018, arXiv:1808.06226).

SentencePiece merges, over and over, the neighbours whose joint piece has the best score; characters in no piece
become byte tokens. A list of merges ranked by the score of what they make does the same, and is how
transformers converts Llama's vocabulary, so the tokenizers library's BPE runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from tokenizers import Tokenizer as BaseTokenizer
from tokenizers import models, normalizers

from pageinn.text.data import TokenizerData
from pageinn.text.pretokenizers import TokenizerError
from pageinn.text.vocabulary import SPACE, Built, Kind, add_tokens, piece_bytes


def build_sentencepiece(data: TokenizerData) -> Built:
    """The tokenizer of a vocabulary that GGUF calls "llama".

    A space prefix goes before each run of text between control tokens, as in llama.cpp. Raises TokenizerError
    where the vocabulary has no scores.
    """
    if len(data.scores) != len(data.tokens):
        raise TokenizerError(f"the tokenizer has {len(data.tokens)} tokens but {len(data.scores)} scores")
    kinds = zip(data.tokens, data.token_types, strict=True)
    unknown = next((text for text, kind in kinds if kind == Kind.UNKNOWN), None)
    base = BaseTokenizer(
        models.BPE(
            vocab={text: i for i, text in enumerate(data.tokens)},
            merges=ranked_merges(data.tokens, data.scores, data.token_types),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    if data.add_space_prefix:
        spaces.insert(0, normalizers.Prepend(SPACE))
    base.normalizer = normalizers.Sequence(spaces)
    add_tokens(base, data)
    token_bytes = [piece_bytes(text, kind) for text, kind in zip(data.tokens, data.token_types, strict=True)]
    return Built(base, token_bytes, starts_with_space=data.add_space_prefix)


def ranked_merges(tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int]) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, the best score first; of equal ones, the longer left half."""
    pieces = {text for text, kind in zip(tokens, kinds, strict=True) if kind == Kind.NORMAL}
    found = [
        (-score, -cut, text[:cut], text[cut:])
        for text, score in zip(tokens, scores, strict=True)
        if text in pieces
        for cut in range(1, len(text))
        if text[:cut] in pieces and text[cut:] in pieces
    ]
    # The sort is stable: pieces of the same score stay in the order of their ids.
    found.sort(key=itemgetter(0, 1))
    return [(left, right) for _, _, left, right in found]
