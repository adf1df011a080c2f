"""How a log's prompts become text in parts, and tokens."""

from __future__ import annotations

from pageinn.explain.parts import Piece, pieces_of_chat, pieces_of_text
from pageinn.explain.tokens import Tokens
from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.traffic import BadRowError, Chat, Record, Renderer, Text
from pageinn.traffic import Tokens as TokenIds


class Rendering:
    """A renderer's text, named by the parts of prompts, and its tokens, each stretch of text encoded once."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._tokens = Tokens(renderer.encode)

    def pieces(self, record: Record) -> list[Piece] | None:
        """A request's prompt in its parts, or None if its text is not known or the template refuses it."""
        prompt = record.prompt
        try:
            if isinstance(prompt, Chat):
                return pieces_of_chat(prompt, self._renderer.text(record))
            if isinstance(prompt, Text):
                return pieces_of_text(self._renderer.text(record))
        except BadRowError:
            return None
        text = self._renderer.decode(prompt.packed) if isinstance(prompt, TokenIds) else None
        return None if text is None else pieces_of_text(text)

    def pack(self, text: str, record: Record) -> bytes:
        """Packed tokens of a text that takes the place of a request's prompt."""
        return self._tokens.pack(text, special=isinstance(record.prompt, Text))

    def count(self, text: str) -> int:
        """The tokens of a piece of text."""
        return len(self._tokens.pack(text)) // TOKEN_BYTES

    @property
    def assumed(self) -> list[str]:
        """What was assumed of the prompts, once some were rendered."""
        return list(self._renderer.assumed)
