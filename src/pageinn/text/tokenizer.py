"""Text to token ids and back, from nothing but what a model's files say of its tokenizer."""

from __future__ import annotations

from collections.abc import Callable

from pageinn.text.byte_level import build_byte_level
from pageinn.text.data import TokenizerData
from pageinn.text.pretokenizers import TokenizerError
from pageinn.text.sentencepiece import build_sentencepiece
from pageinn.text.tokenizer_json import FAMILY, build_json
from pageinn.text.vocabulary import Built, Kind

__all__ = ["Tokenizer", "TokenizerError"]

_FAMILIES: dict[str, Callable[[TokenizerData], Built]] = {
    "gpt2": build_byte_level,
    "llama": build_sentencepiece,
    FAMILY: build_json,
}
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


class Tokenizer:
    """The tokenizer of one model.

    token_bytes: each id's exact bytes; b"" for control tokens, which never show in an answer.
    eos_ids: the ids that end an answer.
    max_token_bytes: no token stands for more bytes of text than this.
    Raises TokenizerError when the file's tokenizer is of a kind not supported or contradicts itself.
    """

    def __init__(self, data: TokenizerData) -> None:
        build = _FAMILIES.get(data.model)
        if build is None:
            raise TokenizerError(
                f"tokenizer model {data.model!r} is not supported; supported are 'gpt2' (byte-level BPE) and "
                "'llama' (SentencePiece's BPE)"
            )
        if not data.token_types:
            data = data._replace(token_types=[Kind.NORMAL] * len(data.tokens))
        _check(data)
        self.vocab_size = len(data.tokens)
        self.bos_id = data.bos_id
        self.eos_id = data.eos_id
        self._texts = data.tokens
        self._prefix = [data.bos_id] if data.add_bos and data.bos_id is not None else []
        self._adds_its_own = data.add_bos is None
        self._base, self.token_bytes, self._starts_with_space = build(data)
        self.max_token_bytes = max(len(text.encode()) for text in data.tokens)
        self.eos_ids = _end_ids(data)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of `text`; control tokens written out in it are recognised, as transformers does.

        add_special: put the begin token in front where the model's files ask for it.
        """
        ids: list[int] = self._base.encode(text, add_special_tokens=add_special and self._adds_its_own).ids
        return self._prefix + ids if add_special else ids

    def decode(self, ids: list[int], show_control: bool = False) -> str:
        """The text of these ids; bytes that are not UTF-8 become U+FFFD, control tokens vanish or show their names.

        A space that encoding put before the text is taken off again: an answer, which continues a prompt, keeps
        the space it starts with, so it is decoded by joining `token_bytes`.
        """
        exact = b"".join(self.token_bytes[i] or (self._texts[i].encode() if show_control else b"") for i in ids)
        return exact.removeprefix(b" " if self._starts_with_space else b"").decode(errors="replace")

    def token_text(self, token: int) -> str:
        """One token as shown to a person: control tokens by name, incomplete characters as U+FFFD."""
        exact = self.token_bytes[token]
        return exact.decode(errors="replace") if exact else self._texts[token]


def _check(data: TokenizerData) -> None:
    if len(data.token_types) != len(data.tokens):
        raise TokenizerError(f"the tokenizer has {len(data.tokens)} tokens but {len(data.token_types)} token types")
    if len(set(data.tokens)) != len(data.tokens):
        raise TokenizerError("the tokenizer's vocabulary holds the same token twice")
    ends = [("end", token) for token in sorted(data.eos_ids)]
    for name, token in [("begin", data.bos_id), ("end", data.eos_id), ("padding", data.pad_id), *ends]:
        if token is not None and not 0 <= token < len(data.tokens):
            raise TokenizerError(f"the tokenizer's {name} token {token} is outside its {len(data.tokens)} tokens")


def _end_ids(data: TokenizerData) -> frozenset[int]:
    kinds = zip(data.tokens, data.token_types, strict=True)
    ends = {i for i, (text, kind) in enumerate(kinds) if kind == Kind.CONTROL and text in _END_OF_TURN}
    ends |= data.eos_ids
    if data.eos_id is not None:
        ends.add(data.eos_id)
    return frozenset(ends)
