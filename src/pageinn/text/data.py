"""What a model file says about its tokenizer: plain values, so that text needs nothing of the model."""

from __future__ import annotations

from typing import NamedTuple


class TokenizerData(NamedTuple):
    """The `tokenizer.*` metadata of a GGUF.

    model: the family ("gpt2" is byte-level BPE). pre: the name of the pre-tokenizer's rules.
    tokens: the text of each id, in the family's own spelling. token_types: one per token in GGUF's numbers
    (1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte); empty if the file has none.
    merges: pairs joined by a space, best first. add_bos: a prompt starts with bos_id. chat_template: Jinja.
    """

    model: str
    pre: str
    tokens: list[str]
    token_types: list[int]
    merges: list[str]
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    add_bos: bool
    add_space_prefix: bool
    chat_template: str | None
