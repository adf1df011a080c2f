"""An answer that must be a call: what it is held to, and the words it begins with.

The prompt ends with the opening tag, so that the model goes on as it was trained to; what follows is held to one JSON
object, the call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pageinn.server.tools import NamedChoice, Tool, ToolChoice
from pageinn.text.tool_calls import OPEN

#: What the prompt ends with.
BEGINNING = f"{OPEN}\n"

#: Where a schema holds schemas by names that anybody may choose, and where it holds plain values.
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VALUES = ("const", "enum", "default", "examples")


def call_schema(tools: Sequence[Tool], choice: ToolChoice) -> str | None:
    """The JSON schema of a call of the tool chosen, or of any; None where no call is asked for.

    Raises ValueError for a tool whose parameters are not an object's.
    """
    if choice in ("none", "auto"):
        return None
    if isinstance(choice, NamedChoice):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
    if len(tools) == 1:
        return json.dumps(_call(tools[0], "#"), ensure_ascii=False)
    return json.dumps({"anyOf": [_call(tool, f"#/anyOf/{i}") for i, tool in enumerate(tools)]}, ensure_ascii=False)


def _call(tool: Tool, place: str) -> dict[str, Any]:
    parameters = tool.function.parameters
    if parameters is None:
        parameters = {"properties": {}, "additionalProperties": False}
    if parameters.get("type", "object") != "object":
        raise ValueError(f"the parameters of '{tool.function.name}' must be an object's schema to be followed")
    arguments = {"type": "object", **_moved(parameters, f"{place}/properties/arguments")}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.function.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """A schema as a part of another: references to its root follow it to its place there."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _moved_member(key, value, place) for key, value in schema.items()}


def _moved_member(key: str, value: Any, place: str) -> Any:
    if key in _VALUES:
        return value
    if key in _BY_NAME and isinstance(value, dict):
        return {name: _moved(inner, place) for name, inner in value.items()}
    if key == "$ref" and isinstance(value, str) and value.startswith("#"):
        return place + value.removeprefix("#")
    return _moved(value, place)
