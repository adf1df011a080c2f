"""Answers that match a JSON schema: which tokens may come next, from llguidance.

llguidance (github.com/guidance-ai/llguidance) parses the answer so far with derivatives of regular expressions below
an Earley parser, and walks the vocabulary's trie for the mask. It needs neither torch nor a tokenizer of its own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pageinn.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


#: The longest schema, in bytes. llguidance follows references by recursion: this bounds how deep.
MAX_SCHEMA_BYTES = 1 << 16
#: Enough for the deepest recursion that a schema of that size asks for (8 MiB, the usual size, is not).
_STACK_BYTES = 1 << 28
#: Compiled schemas kept.
_KEPT = 32
#: Between two parts of an answer. Bounded: a model may like white space so much that it never goes on.
_WHITESPACE = r"[\x20\x0A\x0D\x09]{0,16}"
#: Of about 2 KiB each. Answers to the same compiled schema share them.
_MAX_LEXER_STATES = 10_000
_SHOWN = 200


class GrammarError(ValueError):
    """A schema that cannot be followed; one line that says why."""


class Grammars:
    """Compiles schemas for one vocabulary, each once while it is among the last few. Any thread may call it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        # One thread compiles, on a stack that a hostile schema does not overflow; it is started when first needed.
        self._compiler = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pageinn-grammar")
        self._vocabulary: LLTokenizer | None = None

    def check(self, schema: str) -> None:
        """Compile a JSON schema, so that `start` does not have to. Raises GrammarError. May take a second."""
        self._matcher(schema)

    def start(self, schema: str) -> JsonAnswer:
        """An answer that has yet to begin. Raises GrammarError."""
        return JsonAnswer(schema, self)

    def matcher(self, schema: str, anew: bool = False) -> LLMatcher:
        """A matcher at an answer's beginning, which is the caller's. anew: compile again. Raises GrammarError."""
        return self._matcher(schema, anew).deep_copy()

    def _matcher(self, schema: str, anew: bool = False) -> LLMatcher:
        with self._lock:
            known = None if anew else self._compiled.get(schema)
            if known is not None:
                self._compiled.move_to_end(schema)
                return known
            compiling = self._submit(schema)
        made = compiling.result()
        with self._lock:
            self._compiled[schema] = made
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        return made

    def _submit(self, schema: str) -> Future[LLMatcher]:
        before = threading.stack_size(_STACK_BYTES)
        try:
            return self._compiler.submit(self._compile, schema)
        finally:
            threading.stack_size(before)

    def _compile(self, schema: str) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        size = len(schema.encode())
        if size > MAX_SCHEMA_BYTES:
            raise GrammarError(f"the schema has {size} bytes; at most {MAX_SCHEMA_BYTES} are supported")
        if not self.tokenizer.eos_ids:
            raise GrammarError("the model's tokenizer names no end token, with which an answer could end")
        if self._vocabulary is None:
            self._vocabulary = _vocabulary(self.tokenizer)
        limits = LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
        try:
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": _WHITESPACE})
        except ValueError as error:
            raise GrammarError(_line(str(error))) from error
        matcher = LLMatcher(self._vocabulary, grammar, log_level=0, limits=limits)
        if not matcher.is_error():
            # A schema without any instance shows only here.
            matcher.compute_bitmask()
        if matcher.is_error():
            raise GrammarError(_line(matcher.get_error()))
        return matcher


class JsonAnswer:
    """Where one answer stands in its schema.

    error: why it cannot go on, or None. The answer then ends at its next token and is not one.
    """

    def __init__(self, schema: str, grammars: Grammars) -> None:
        self._schema = schema
        self._grammars = grammars
        self._matcher = grammars.matcher(schema)
        self._tokens: list[int] = []
        self.error: str | None = None

    def allowed(self) -> NDArray[np.bool_]:
        """Which tokens may come next, bool [vocabulary]: a complete answer can only end."""
        bits = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            self._start_over()
            bits = self._matcher.compute_bitmask()
        size, eos_ids = len(self._grammars.tokenizer.token_bytes), self._grammars.tokenizer.eos_ids
        allowed = np.unpackbits(np.frombuffer(bits, np.uint8), count=size, bitorder="little").view(np.bool_)
        if self._matcher.is_error() or not allowed.any():
            self._fail(self._matcher.get_error() or "no token continues the answer")
            allowed = np.isin(np.arange(size), list(eos_ids))
        return allowed

    def push(self, token: int) -> None:
        """Take the next token."""
        self._tokens.append(token)
        if self.error is None and not self._matcher.consume_token(token):
            self._start_over()
            if self._matcher.is_error():
                self._fail(self._matcher.get_error())

    def _start_over(self) -> None:
        """Follow the answer with states of its own: what others had left may have been too little for it."""
        self._matcher = self._grammars.matcher(self._schema, anew=True)
        self._matcher.consume_tokens(self._tokens)

    def _fail(self, reason: str) -> None:
        self.error = f"the answer cannot be held to its schema any longer: {_line(reason)}"


def _vocabulary(tokenizer: Tokenizer) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(_Source(tokenizer)), eos_token=sorted(tokenizer.eos_ids))


class _Source:
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokens = list(tokenizer.token_bytes)
        self.special_token_ids = [token for token, exact in enumerate(self.tokens) if not exact]
        self.eos_token_id = min(tokenizer.eos_ids)
        self.bos_token_id = tokenizer.bos_id
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        given = text.decode(errors="replace") if isinstance(text, bytes) else text
        return self._tokenizer.encode(given, add_special=False)


def _line(message: str) -> str:
    """An error of llguidance's, which may be a drawing of many lines, in one."""
    joined = " ".join(message.split())
    return joined if len(joined) <= _SHOWN else joined[:_SHOWN] + "…"
