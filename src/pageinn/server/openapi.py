"""The request bodies on the OpenAPI page: they are read under a limit, so FastAPI cannot see their types."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_REF = "#/components/schemas/{model}"


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """What a route says of its body."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def use_schemas(app: FastAPI, *models: type[BaseModel]) -> None:
    """Put the models' schemas on the page."""
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    page = app.openapi()
    page.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
