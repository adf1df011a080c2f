"""From a record's prompt to packed tokens: by the model's own template and tokenizer, or approximately without one."""

from __future__ import annotations

import json
import mmap
import re
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pageinn.memory.tokens import pack, unpack
from pageinn.model import hub
from pageinn.model.config import ModelError, naming
from pageinn.model.gguf_header import read_header
from pageinn.model.gguf_metadata import read_tokenizer
from pageinn.model.hf_tokenizer import read_hf_tokenizer, read_json
from pageinn.model.sources import open_for_check
from pageinn.text.data import TokenizerData
from pageinn.text.template import ChatTemplate, TemplateError, Written
from pageinn.text.tokenizer import Tokenizer
from pageinn.traffic.fields import short
from pageinn.traffic.json_rows import whole_text
from pageinn.traffic.record import Chat, Record, Text, Tokens
from pageinn.traffic.report import BadRowError

#: A word with the space before it, a run of digits, of other signs, or of white space; long ones are cut.
_PIECES = re.compile(r" ?[^\W\d_]{1,8}|\d{1,3}|_+| ?[^\w\s]{1,3}|\s{1,16}")


class Rendered(NamedTuple):
    """A prompt's packed tokens, and its answer's where the log has the text (else b"").

    The answer is encoded by itself, as the tokens that follow the prompt.
    """

    prompt: bytes
    answer: bytes


class Renderer:
    """Renders the prompts of one log. `assumed` says, once it has been used, what was assumed of them."""

    def __init__(self, data: TokenizerData | None, name: str = "") -> None:
        """Data: the model's tokenizer and template; None for the approximation."""
        self._tokenizer = Tokenizer(data) if data is not None else None
        self._template = ChatTemplate.of(data) if data is not None else None
        self._pieces: dict[str, int] = {}
        self._name = name
        self.assumed: dict[str, None] = {}

    def render(self, record: Record) -> Rendered | None:
        """The tokens of a record; None where the log has neither text nor tokens.

        Raises BadRowError if the template refuses the conversation.
        """
        prompt = record.prompt
        if isinstance(prompt, Tokens):
            packed = prompt.packed
        elif isinstance(prompt, Text | Chat):
            special = isinstance(prompt, Text)
            packed = self.encode(self.text(record), special)
        else:
            return None
        answer = self.encode(record.output, False) if record.output else b""
        if answer:
            self.assumed["an answer's tokens are those of its text encoded by itself"] = None
        return Rendered(packed, answer)

    def text(self, record: Record) -> str:
        """The prompt as the model reads it. Raises BadRowError if it is no text or the template refuses it."""
        prompt = record.prompt
        if isinstance(prompt, Text):
            self._assume_tokenizer()
            return prompt.text
        if not isinstance(prompt, Chat):
            raise BadRowError(f"a prompt known by its {type(prompt).__name__} has no text")
        self._assume_tokenizer()
        messages = [self._message(message) for message in prompt.messages]
        if self._template is None:
            if self._tokenizer is not None:
                self.assumed[f"{self._name} brings no chat template; each message is its role and content"] = None
            return plain_chat(messages, prompt.tools)
        if prompt.tools and not self._template.takes_tools:
            self.assumed[f"the chat template of {self._name} has no place for tools; they were left out"] = None
        variables = dict(prompt.template_kwargs)
        if record.time is not None:
            try:
                variables["strftime_now"] = datetime.fromtimestamp(record.time, UTC).strftime
            except (ValueError, OverflowError, OSError) as error:
                raise BadRowError(f"its time, {record.time:g} s, is no date that a template could show") from error
        try:
            return self._template.render(messages, tools=prompt.tools, variables=variables)
        except TemplateError as error:
            raise BadRowError(str(error)) from error

    def encode(self, text: str, special: bool) -> bytes:
        """Packed tokens of a text. special: with the begin token where the model asks for one."""
        if self._tokenizer is not None:
            # Text inside of text, as arguments of a call, may bring halves of surrogate pairs that reading did not see.
            return pack(self._tokenizer.encode(whole_text(text), add_special=special))
        known = self._pieces
        return pack([known.setdefault(piece, len(known)) for piece in _PIECES.findall(text)])

    def decode(self, packed: bytes) -> str | None:
        """The text of packed tokens, control tokens by their names; None without a model."""
        return self._tokenizer.decode(unpack(packed), show_control=True) if self._tokenizer is not None else None

    def _assume_tokenizer(self) -> None:
        if self._tokenizer is None:
            self.assumed[
                "without --model, prompts are cut into words and signs, about as many as a tokenizer's tokens; "
                "each message is its role and content, tools first"
            ] = None

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message for a template: parts that are no text become marks, arguments both text and object."""
        told = dict(message)
        content = message.get("content")
        if isinstance(content, list):
            told["content"] = [self._part(part) for part in content]
        elif content is not None and not isinstance(content, str):
            raise BadRowError(f"a message's content is {short(content)}, neither text nor parts")
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            told["tool_calls"] = [_call(call) for call in calls]
        return told

    def _part(self, part: Any) -> dict[str, Any]:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            return {"type": "text", "text": part["text"]}
        if not isinstance(part, Mapping):
            raise BadRowError(f"a part of a message is {short(part)}")
        self.assumed["images and other parts that are no text count as one short mark each"] = None
        content = json.dumps(part, sort_keys=True, default=str).encode()
        return {"type": "text", "text": f"<{part.get('type', 'part')} {zlib.crc32(content):08x}>"}


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    text = function["arguments"] or "{}"
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": Written(read, text)}} if isinstance(read, dict) else call


def plain_chat(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
    """A conversation without a template: the tools as JSON, then each message under its role."""
    lines = [json.dumps(tool, ensure_ascii=False) for tool in tools]
    for message in messages:
        content = message.get("content") or ""
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        calls = [json.dumps(call, ensure_ascii=False, default=str) for call in message.get("tool_calls") or []]
        lines.append("\n".join([f"<|{message['role']}|>", *([text] if text else []), *calls]))
    return "\n".join([*lines, "<|assistant|>\n"])


def open_renderer(model: str | Path | None) -> Renderer:
    """A renderer with the tokenizer and template of a GGUF, a folder with tokenizer.json, or a name on the hub.

    No weights are read, so the model may be one that pageinn cannot serve. None: the approximation.
    Raises ModelError, TokenizerError or TemplateError, one line that names the model.
    """
    if model is None:
        return Renderer(None)
    path = Path(model)
    if not path.exists() and hub.is_name(str(model)):
        return Renderer(open_for_check(model).tokenizer, str(model))
    with naming(path):
        data = _folder_data(path) if path.is_dir() else _gguf_data(path)
    return Renderer(data, str(model))


def _folder_data(folder: Path) -> TokenizerData:
    content = read_json(folder / "tokenizer.json", required=True)
    ids = [added["id"] for added in content.get("added_tokens") or [] if isinstance(added, dict) and "id" in added]
    vocabulary = content.get("model", {}).get("vocab", {})
    ids += vocabulary.values() if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
    if not all(type(each) is int for each in ids) or not ids:
        raise ModelError("tokenizer.json has no vocabulary")
    return read_hf_tokenizer(folder, {}, max(ids) + 1)


def _gguf_data(path: Path) -> TokenizerData:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            view = memoryview(mapped)
            try:
                return read_tokenizer(read_header(view).metadata)
            finally:
                view.release()
    except (OSError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"cannot read the model: {error}") from error
