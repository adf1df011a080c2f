"""How bodies are read: types are strict, nothing is coerced, a field that is not known is refused by its name."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator


class Strict(BaseModel):
    """An object of a body; null means "not given"."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    #: Fields of OpenAI's that are not supported, and the values that ask for nothing; any other is refused.
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_the_empty(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if not cls._says_nothing(name, value)}

    @classmethod
    def _says_nothing(cls, name: str, value: Any) -> bool:
        if name in cls.model_fields:
            return value is None
        return any(type(value) is type(other) and value == other for other in cls.neutral.get(name, ()))
