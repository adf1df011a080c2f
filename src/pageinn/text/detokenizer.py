"""Token ids to streamed text: half characters wait, and no part of a stop string is ever let out.

Whatever the pieces in which tokens arrive, the text let out is the same, and equals the plain computation:
decode everything, find the first stop string to be completed, cut before it.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import NamedTuple

from pageinn.text.tokenizer import Tokenizer


class Piece(NamedTuple):
    """Text that is now safe to show, and whether a stop string has ended the answer."""

    text: str
    stopped: bool


class _StopAutomaton:
    """How much of one stop string the text so far ends with (Knuth, Morris, Pratt 1977)."""

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._fallback = _fallbacks(stop)
        self.matched = 0

    def feed(self, char: str) -> bool:
        """Take one more character; says whether the stop string is now complete."""
        if self.matched == len(self._stop):
            self.matched = self._fallback[-1]
        while self.matched and self._stop[self.matched] != char:
            self.matched = self._fallback[self.matched - 1]
        if self._stop[self.matched] == char:
            self.matched += 1
        return self.matched == len(self._stop)


def _fallbacks(stop: str) -> list[int]:
    """For each prefix of `stop`: the length of its longest proper prefix that is also its suffix."""
    lengths = [0] * len(stop)
    length = 0
    for i in range(1, len(stop)):
        while length and stop[i] != stop[length]:
            length = lengths[length - 1]
        if stop[i] == stop[length]:
            length += 1
        lengths[i] = length
    return lengths


class Detokenizer:
    """The text of one choice, token by token.

    stop: strings that end the answer and never show, none of them empty. Of two that are complete at the same
    character, the longer one counts.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Iterable[str] = ()) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._automata = [_StopAutomaton(text) for text in stop]
        self._held = ""
        self._stopped = False

    def push(self, tokens: Iterable[int], may_stop: bool = True) -> Piece:
        """Take new tokens; returns the text that is now certain. After a stop nothing more comes out.

        may_stop: whether a stop string that these tokens complete ends the answer, or is text like any other.
        """
        return self._scan(self._decoder.decode(b"".join(self._token_bytes[token] for token in tokens)), may_stop)

    def finish(self) -> str:
        """The answer has ended: returns what was held back. An incomplete character becomes U+FFFD."""
        last = self._scan(self._decoder.decode(b"", final=True), True).text
        held, self._held = self._held, ""
        return last + held

    def _scan(self, text: str, may_stop: bool) -> Piece:
        if self._stopped:
            return Piece("", True)
        if not self._automata:
            return Piece(text, False)
        for i, char in enumerate(text):
            complete = [automaton.matched for automaton in self._automata if automaton.feed(char)]
            if complete and may_stop:
                self._stopped = True
                shown = self._held + text[: i + 1]
                self._held = ""
                return Piece(shown[: len(shown) - max(complete)], True)
        known = self._held + text
        certain = len(known) - max(automaton.matched for automaton in self._automata)
        self._held = known[certain:]
        return Piece(known[:certain], False)
