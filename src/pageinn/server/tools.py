"""Tools in a chat request: what a client may say of them, and what the template is told."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, field_validator, model_validator

from pageinn.server.errors import ApiError
from pageinn.server.strict import Strict
from pageinn.text.canonical import canonical
from pageinn.text.template import ChatTemplate, TemplateError, Written

MAX_TOOLS = 1024

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]


class FunctionSchema(Strict):
    """A function the model may call. parameters: a JSON schema, which the model reads and nobody else."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {"strict": (False, None)}

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Strict):
    """One of a request's `tools`. `written` is what the client sent, in its order of keys."""

    type: Literal["function"]
    function: FunctionSchema
    _written: dict[str, Any] = PrivateAttr()

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, data: Any, handler: ModelWrapValidatorHandler[Tool]) -> Tool:
        tool = handler(data)
        tool._written = data
        return tool

    @property
    def written(self) -> dict[str, Any]:
        """The tool as the client wrote it."""
        return self._written


class ChosenFunction(Strict):
    """The name in a tool_choice."""

    name: Name


class NamedChoice(Strict):
    """tool_choice: call this function."""

    type: Literal["function"]
    function: ChosenFunction


ToolChoice = Literal["none", "auto", "required"] | NamedChoice


def tool_choice(value: Any) -> ToolChoice:
    """What a client wrote as tool_choice. Raises ValueError."""
    if value in ("none", "auto", "required"):
        return cast(ToolChoice, value)
    if not isinstance(value, dict):
        raise ValueError("must be 'none', 'auto', 'required' or a function by name")
    return NamedChoice.model_validate(value)


class CalledFunction(Strict):
    """What the assistant called, of the tools or not. arguments: a JSON object as text, or nothing."""

    name: Annotated[str, Field(min_length=1)]
    arguments: str

    @field_validator("arguments", mode="after")
    @classmethod
    def _object(cls, value: str) -> str:
        try:
            read = json.loads(value) if value else {}
        except (ValueError, RecursionError) as error:
            raise ValueError("must be a JSON object, written as text") from error
        if not isinstance(read, dict):
            raise ValueError("must be a JSON object, written as text")
        return value


class CalledTool(Strict):
    """A call in an assistant's message, as it was answered."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


def check_template(
    template: ChatTemplate, model_name: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]
) -> None:
    """Raises ApiError where the template would drop tools, or calls of them, without a word."""
    if tools and not template.takes_tools:
        message = f"the chat template of the model '{model_name}' has no place for tools"
        raise ApiError(400, message, param="tools", code="unsupported_parameter")
    if not template.takes_tool_calls and any("tool_calls" in message for message in messages):
        message = f"the chat template of the model '{model_name}' has no place for tool_calls"
        raise ApiError(400, message, param="messages", code="unsupported_parameter")


def template_tools(tools: Sequence[Tool], in_one_order: bool) -> list[dict[str, Any]]:
    """The tools for the template. in_one_order: with the keys of every object in one order. Raises TemplateError."""
    written = [tool.written for tool in tools]
    try:
        return [canonical(tool) for tool in written] if in_one_order else written
    except RecursionError as error:
        raise TemplateError("a tool's schema is nested too deeply") from error


def template_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message for the template: some write a call's arguments as text, some as an object; this is both."""
    calls = message.get("tool_calls")
    if calls is None:
        return message
    return {**message, "tool_calls": [{**call, "function": _function(call["function"])} for call in calls]}


def _function(function: dict[str, str]) -> dict[str, Any]:
    text = function["arguments"] or "{}"
    return {**function, "arguments": Written(json.loads(text), text)}
