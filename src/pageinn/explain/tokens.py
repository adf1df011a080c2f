"""From a prompt's text to packed tokens, each stretch of text encoded once however many prompts hold it."""

from __future__ import annotations

import re
from collections.abc import Callable

#: text, and whether the tokens a tokenizer puts in front of a text are wanted, to packed tokens.
Encode = Callable[[str, bool], bytes]

#: Stretches remembered before the memory is emptied.
_REMEMBERED = 1 << 19
#: Prompts on which encoding by stretches is checked.
_CHECKED = 8
#: Ends between a letter and a space before a letter, the first such place after each line's end. Byte-level tokenizers
#: cut there before they merge, so that the tokens of the stretches are the tokens of the whole.
_STRETCH = re.compile(r"(?s).+?\n[^\n]*?[A-Za-z](?= [A-Za-z])|.+")


class Tokens:
    """Encodes by stretches as long as that gave the tokens of the whole on the first texts; the whole, if not.

    A text's tokens are the same either way where the check holds, so tokens made before and after it compare.
    """

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._known: dict[str, bytes] = {}
        self._to_check = _CHECKED
        self.by_stretches = True

    def pack(self, text: str, special: bool = False) -> bytes:
        """Packed tokens. special: with those that the tokenizer puts in front."""
        if self._to_check and self.by_stretches:
            self._to_check -= 1
            whole = self._encode(text, special)
            self.by_stretches = self._joined(text, special) == whole
            return whole
        return self._joined(text, special) if self.by_stretches else self._encode(text, special)

    def _joined(self, text: str, special: bool) -> bytes:
        known = self._known
        if len(known) > _REMEMBERED:
            known.clear()
        stretches = _STRETCH.findall(text)
        found: list[bytes] = []
        if special and stretches:
            found.append(self._encode(stretches.pop(0), True))
        for stretch in stretches:
            packed = known.get(stretch)
            if packed is None:
                packed = known[stretch] = self._encode(stretch, False)
            found.append(packed)
        return b"".join(found)
