"""What a model's files say about its tokenizer: plain values, so that text needs nothing of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class TokenizerData(NamedTuple):
    """The `tokenizer.*` metadata of a GGUF, or what a folder's tokenizer.json and its companions say.

    model: the family: "gpt2" is byte-level BPE, "llama" is SentencePiece's BPE, "tokenizer.json" is what the file
    itself says. pre: the name of the pre-tokenizer's rules ("gpt2" only).
    tokens: the text of each id, in the family's own spelling. token_types: one per token in GGUF's numbers
    (1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte); empty if the file has none.
    merges: pairs joined by a space, best first ("gpt2"). scores: one per token, the best piece has the largest
    ("llama"). add_bos: a prompt starts with bos_id; None: what the tokenizer.json puts around it.
    add_space_prefix: text is encoded as if a space stood before it. chat_template: Jinja. eos_ids: further ids
    that end an answer. json: the text of tokenizer.json, None in other families.
    """

    model: str
    pre: str
    tokens: list[str]
    token_types: list[int]
    merges: list[str]
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    add_bos: bool | None
    add_space_prefix: bool
    chat_template: str | None
    scores: Sequence[float] = ()
    eos_ids: frozenset[int] = frozenset()
    json: str | None = None
