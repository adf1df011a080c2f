"""Text to token ids and back, from nothing but what a GGUF says of its tokenizer.

Byte-level byte-pair encoding (Sennrich et al. 2016, in GPT-2's variant): every byte has a printable stand-in,
so that any text can be encoded and every token stands for exact bytes.
"""

from __future__ import annotations

from enum import IntEnum

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as BaseTokenizer

from pageinn.text.data import TokenizerData
from pageinn.text.pretokenizers import TokenizerError, pretokenizer

__all__ = ["Tokenizer", "TokenizerError"]

#: Control tokens that end an assistant's turn or a document, whatever a file names as its one end token.
_END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
)


class _Kind(IntEnum):
    """The token types of GGUF that matter here."""

    NORMAL = 1
    CONTROL = 3
    USER_DEFINED = 4


def _byte_of_stand_in() -> dict[str, int]:
    """GPT-2's stand-ins, inverted: a printable Latin-1 byte stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}


class Tokenizer:
    """The tokenizer of one model.

    token_bytes: each id's exact bytes; b"" for control tokens, which never show in an answer.
    eos_ids: the ids that end an answer.
    max_token_bytes: no token stands for more bytes of text than this.
    Raises TokenizerError when the file's tokenizer is of a kind not supported or contradicts itself.
    """

    def __init__(self, data: TokenizerData) -> None:
        if data.model != "gpt2":
            raise TokenizerError(
                f"tokenizer model {data.model!r} is not supported; supported is 'gpt2' (byte-level BPE)"
            )
        if not data.token_types:
            data = data._replace(token_types=[_Kind.NORMAL] * len(data.tokens))
        _check(data)
        self.vocab_size = len(data.tokens)
        self.bos_id = data.bos_id
        self.eos_id = data.eos_id
        self._texts = data.tokens
        self._prefix = [data.bos_id] if data.add_bos and data.bos_id is not None else []
        self._base = _build(data)
        self.token_bytes = _token_bytes(data)
        self.max_token_bytes = max(len(text.encode()) for text in data.tokens)
        self.eos_ids = _end_ids(data)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of `text`; control tokens written out in it are recognised, as transformers does.

        add_special: put the begin token in front where the model's file asks for it.
        """
        ids: list[int] = self._base.encode(text, add_special_tokens=False).ids
        return self._prefix + ids if add_special else ids

    def decode(self, ids: list[int]) -> str:
        """The text of these ids; bytes that are not UTF-8 become U+FFFD, control tokens vanish."""
        return b"".join(self.token_bytes[i] for i in ids).decode(errors="replace")

    def token_text(self, token: int) -> str:
        """One token as shown to a person: control tokens by name, incomplete characters as U+FFFD."""
        exact = self.token_bytes[token]
        return exact.decode(errors="replace") if exact else self._texts[token]


def _check(data: TokenizerData) -> None:
    if len(data.token_types) != len(data.tokens):
        raise TokenizerError(f"the tokenizer has {len(data.tokens)} tokens but {len(data.token_types)} token types")
    if len(set(data.tokens)) != len(data.tokens):
        raise TokenizerError("the tokenizer's vocabulary holds the same token twice")
    for name, token in (("begin", data.bos_id), ("end", data.eos_id)):
        if token is not None and not 0 <= token < len(data.tokens):
            raise TokenizerError(f"the tokenizer's {name} token {token} is outside its {len(data.tokens)} tokens")


def _build(data: TokenizerData) -> BaseTokenizer:
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
    added = [
        AddedToken(text, normalized=False, special=kind == _Kind.CONTROL)
        for text, kind in zip(data.tokens, data.token_types, strict=True)
        if kind in (_Kind.CONTROL, _Kind.USER_DEFINED)
    ]
    base.add_tokens(added)
    return base


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _token_bytes(data: TokenizerData) -> list[bytes]:
    stand_ins = _byte_of_stand_in()

    def exact(text: str, kind: int) -> bytes:
        if kind == _Kind.USER_DEFINED:
            return text.encode()
        if kind != _Kind.NORMAL:
            return b""
        try:
            return bytes([stand_ins[char] for char in text])
        except KeyError:
            return text.encode()

    return [exact(text, kind) for text, kind in zip(data.tokens, data.token_types, strict=True)]


def _end_ids(data: TokenizerData) -> frozenset[int]:
    kinds = zip(data.tokens, data.token_types, strict=True)
    ends = {i for i, (text, kind) in enumerate(kinds) if kind == _Kind.CONTROL and text in _END_OF_TURN}
    if data.eos_id is not None:
        ends.add(data.eos_id)
    return frozenset(ends)
