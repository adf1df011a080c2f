"""What the tokenizer families have in common: token kinds, added tokens, and what building one yields."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

from tokenizers import AddedToken
from tokenizers import Tokenizer as BaseTokenizer

from pageinn.text.data import TokenizerData

#: How SentencePiece spells a space, and a byte that no piece stands for.
SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Kind(IntEnum):
    """The token types of GGUF."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Built(NamedTuple):
    """base encodes. token_bytes: each id's exact bytes, b"" where it never shows.

    starts_with_space: encoding puts a space before the text, which decoding a whole text takes off again.
    """

    base: BaseTokenizer
    token_bytes: list[bytes]
    starts_with_space: bool


def byte_level_bytes(text: str, kind: int) -> bytes:
    """The bytes of a token of a byte-level vocabulary."""
    if kind == Kind.USER_DEFINED:
        return text.encode()
    if kind != Kind.NORMAL:
        return b""
    try:
        return bytes([_STAND_INS[char] for char in text])
    except KeyError:
        return text.encode()


def piece_bytes(text: str, kind: int) -> bytes:
    """The bytes of a token of a SentencePiece vocabulary."""
    if kind == Kind.USER_DEFINED:
        return text.encode()
    if kind == Kind.NORMAL:
        return text.replace(SPACE, " ").encode()
    byte = byte_of(text) if kind == Kind.BYTE else None
    return b"" if byte is None else bytes([byte])


def byte_of(text: str) -> int | None:
    """The byte that a token like <0x0A> stands for, None if it is not of that form."""
    match = _BYTE.fullmatch(text)
    return int(match[1], 16) if match else None


def add_tokens(base: BaseTokenizer, data: TokenizerData) -> None:
    """Let control and user-defined tokens be recognised where they are written out."""
    base.add_tokens(
        [
            AddedToken(text, normalized=False, special=kind == Kind.CONTROL)
            for text, kind in zip(data.tokens, data.token_types, strict=True)
            if kind in (Kind.CONTROL, Kind.USER_DEFINED)
        ]
    )


def _byte_of_stand_in() -> dict[str, int]:
    """GPT-2's stand-ins, inverted: a printable Latin-1 byte stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}


_STAND_INS = _byte_of_stand_in()
