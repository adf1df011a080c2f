"""What form an answer is to have: OpenAI's response_format, as the JSON schema that the engine holds it to."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pageinn.server.strict import Strict

#: Any JSON object.
_OBJECT = '{"type": "object"}'


class JsonSchema(Strict):
    """A schema. It is always followed; `strict`, `name` and `description` are accepted and change nothing."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    description: str | None = None
    # `schema` is a method's name in pydantic.
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(Strict):
    """Any text, any JSON object, or JSON that matches a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_where_it_belongs(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema belongs to type 'json_schema', and to it alone")
        return self


def schema_text(form: ResponseFormat | None) -> str | None:
    """The schema as JSON, its properties in the client's order; None for any text."""
    if form is None or form.type == "text":
        return None
    return _OBJECT if form.json_schema is None else json.dumps(form.json_schema.schema_, ensure_ascii=False)
