"""A conversation to a prompt, by the chat template a model brings, as transformers renders it.

The template is code from a model file, so it runs in jinja2's sandbox, and what it may build up is bounded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Environment, Template
from jinja2 import TemplateError as JinjaError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Const, Getattr, Name, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pageinn.text.data import TokenizerData

#: The longest prompt a template may render and the longest string it may multiply up, in characters.
MAX_RENDERED = 32 * 1024 * 1024


class TemplateError(ValueError):
    """The chat template is broken, or refuses the conversation; one line says why."""


class Written(dict[str, Any]):
    """An object that `tojson` writes as it was written before, so that an answer sent back is the prompt it was."""

    def __init__(self, value: Mapping[str, Any], text: str) -> None:
        super().__init__(value)
        self.text = text


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox with powers and multiplication bounded too; of itself it only bounds `range`."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise JinjaError("powers are not allowed in a chat template")
        for repeated, times in ((left, right), (right, left)):
            if isinstance(repeated, str | bytes | list | tuple) and isinstance(times, int):
                _check_length(len(repeated) * times)
        return super().call_binop(context, operator, left, right)


class _GenerationTag(Extension):
    """{% generation %} marks the assistant's words for training; for a prompt it is its content."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template. Raises TemplateError if `source` is not valid.

    takes_tools, takes_tool_calls: whether it says anything of tools, and of an assistant's calls of them.
    """

    def __init__(self, source: str, special: Mapping[str, str] | None = None) -> None:
        """Special: the names templates know the tokenizer's own tokens by (bos_token, eos_token, ...)."""
        self._special = dict(special or {})
        try:
            environment = _environment()
            self._template: Template = environment.from_string(source)
            parsed = environment.parse(source)
        except JinjaError as error:
            raise TemplateError(f"the model's chat template is not valid: {_one_line(error)}") from error
        self.takes_tools = any(name.name == "tools" and name.ctx == "load" for name in parsed.find_all(Name))
        self.takes_tool_calls = any(node.attr == "tool_calls" for node in parsed.find_all(Getattr)) or any(
            node.value == "tool_calls" for node in parsed.find_all(Const)
        )

    @classmethod
    def of(cls, data: TokenizerData) -> ChatTemplate | None:
        """The template in a model file, or None if it brings none."""
        if data.chat_template is None:
            return None
        ids = {"bos_token": data.bos_id, "eos_token": data.eos_id, "pad_token": data.pad_id}
        return cls(data.chat_template, {name: data.tokens[i] for name, i in ids.items() if i is not None})

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for a conversation. Content may be text or a list of text parts, which are joined.

        variables: what else the template is told, such as enable_thinking; they win over what it knows by itself.

        Raises TemplateError if a part is not text, or the template fails, refuses or runs past its bounds.
        """
        values = {
            **self._special,
            "messages": [_flattened(message, i) for i, message in enumerate(messages)],
            "add_generation_prompt": add_generation_prompt,
            "tools": list(tools) or None,
            "documents": None,
            **(variables or {}),
        }
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(values):
                length += len(piece)
                _check_length(length)
                pieces.append(piece)
        except (
            JinjaError,
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
            RecursionError,
        ) as error:
            # What a template's own expressions can raise: it does not fit this conversation.
            raise TemplateError(f"the chat template failed: {_one_line(error)}") from error
        return "".join(pieces)


def _flattened(message: Mapping[str, Any], place: int) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return dict(message)
    for part in content:
        if part.get("type") != "text":
            kind = part.get("type")
            raise TemplateError(f"messages[{place}].content: part type {kind!r} is not supported; 'text' is")
    return {**message, "content": "".join(part["text"] for part in content)}


def _environment() -> Environment:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models saw it in training: jinja2's own filter would escape HTML."""
    if isinstance(value, Written):
        return value.text
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise JinjaError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _check_length(length: int) -> None:
    if length > MAX_RENDERED:
        raise JinjaError(f"it renders more than {MAX_RENDERED} characters")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
