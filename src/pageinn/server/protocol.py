"""What a client may ask, after OpenAI's API and vLLM's additions to it.

Types are strict, nothing is coerced, a field that is not here is refused by its name, null means "not given".
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from pageinn.server.errors import short
from pageinn.server.strict import Strict
from pageinn.server.structured import ResponseFormat

MAX_CHOICES = 128
MAX_PROMPTS = 2048
MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
MAX_LOGPROBS = 20
MAX_STOP_TOKENS = 1024
MAX_BIASES = 1024

Prompt = str | list[int]


class StreamOptions(Strict):
    """What a stream carries besides the answer."""

    include_usage: bool = False


class SamplingRequest(Strict):
    """What completions and chat have in common."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "best_of": (1, None),
        "echo": (False, None),
        "suffix": (None,),
        "tool_choice": ("none", None),
        "tools": ([], None),
    }

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Annotated[tuple[str, ...], Field(json_schema_extra={"anyOf": [{"type": "string"}]})] = ()
    stop_token_ids: Annotated[tuple[int, ...], Field(strict=False, max_length=MAX_STOP_TOKENS)] = ()
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0)] = 0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_BIASES)] | None = (
        None
    )
    response_format: ResponseFormat | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    # Without effect here, accepted because clients send them.
    user: Any = None
    metadata: Any = None
    store: Any = None
    cache_prompt: Any = None
    service_tier: Any = None
    safety_identifier: Any = None

    @field_validator("stop", mode="before")
    @classmethod
    def _stop_strings(cls, value: Any) -> tuple[str, ...]:
        stops = [value] if isinstance(value, str) else value
        if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
            raise ValueError("must be a string or a list of strings")
        if len(stops) > MAX_STOPS:
            raise ValueError(f"at most {MAX_STOPS} stop strings are supported, {len(stops)} given")
        if not all(1 <= len(stop) <= MAX_STOP_LENGTH for stop in stops):
            raise ValueError(f"a stop string must have 1 to {MAX_STOP_LENGTH} characters")
        return tuple(stops)

    @field_validator("stop_token_ids", mode="before")
    @classmethod
    def _stop_tokens(cls, value: Any) -> Any:
        if not isinstance(value, list) or not all(type(token) is int for token in value):
            raise ValueError("must be a list of token ids")
        return value

    @field_validator("logit_bias", mode="after")
    @classmethod
    def _token_ids(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for name in value or ():
            if not (len(name) < 10 and name.isascii() and name.isdecimal() and name == str(int(name))):
                raise ValueError(f"{short(name)} is no token id")
        return value

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> SamplingRequest:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only for stream: true")
        return self


class CompletionRequest(SamplingRequest):
    """POST /v1/completions. `prompt` becomes a list of prompts, each text or token ids."""

    prompt: Annotated[Any, Field(json_schema_extra={"description": "text, token ids, or a list of either"})]
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @field_validator("prompt", mode="after")
    @classmethod
    def _prompts(cls, value: Any) -> list[Prompt]:
        if isinstance(value, str) or _is_ids(value):
            return [value]
        if not isinstance(value, list) or not value:
            raise ValueError("must be text, token ids, or a list of either, and not empty")
        if not (all(isinstance(prompt, str) for prompt in value) or all(_is_ids(prompt) for prompt in value)):
            raise ValueError("must be text, token ids, or a list of either, and not empty")
        if len(value) > MAX_PROMPTS:
            raise ValueError(f"at most {MAX_PROMPTS} prompts are supported, {len(value)} given")
        return value


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


class TextPart(Strict):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class Message(Strict):
    """One turn of a conversation."""

    #: What clients send back of an answer's message that had none of these.
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "annotations": ([], None),
        "audio": (None,),
        "function_call": (None,),
        "refusal": (None,),
        "tool_calls": ([], None),
    }

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[Any, Field(json_schema_extra={"description": "text, or a list of text parts"})]
    name: str | None = None

    @field_validator("content", mode="after")
    @classmethod
    def _text(cls, value: Any) -> Any:
        if isinstance(value, str):
            return value
        if not isinstance(value, list) or not value:
            raise ValueError("must be text or a list of text parts")
        for part in value:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind != "text":
                raise ValueError(f"content part of type {kind!r} is not supported; 'text' is")
        return [TextPart.model_validate(part).model_dump() for part in value]


class ChatRequest(SamplingRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @model_validator(mode="after")
    def _fields_agree(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens are given and differ")
        return self
