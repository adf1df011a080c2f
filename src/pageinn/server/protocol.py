"""What a client may ask, after OpenAI's API and vLLM's additions to it.

Types are strict, nothing is coerced, a field that is not here is refused by its name, null means "not given".
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from pageinn.server.cache_control import MAX_BREAKPOINTS, Breakpoint, CacheControl
from pageinn.server.errors import short
from pageinn.server.forced import call_schema
from pageinn.server.strict import Strict
from pageinn.server.structured import ResponseFormat, schema_text
from pageinn.server.tools import MAX_TOOLS, CalledTool, NamedChoice, Tool, ToolChoice, tool_choice
from pageinn.text.tool_calls import CLOSE

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
    cache_control: CacheControl | None = None
    skip_reading_prefix_cache: bool = False
    skip_writing_prefix_cache: bool = False
    cache_prompt: bool = True
    queue_timeout: Annotated[float, Field(gt=0, le=86400)] | None = None
    # Without effect here, accepted because clients send them.
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None

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

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings that end an answer."""
        return self.stop

    @property
    def reads_cache(self) -> bool:
        """Whether it may reuse what is known of its prompt. cache_prompt is llama.cpp's name."""
        return self.cache_prompt and not self.skip_reading_prefix_cache

    @property
    def answer_schema(self) -> str | None:
        """The JSON schema that the answer is held to."""
        return schema_text(self.response_format)

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
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool = False
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

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
    cache_control: CacheControl | None = None


class Message(Strict):
    """One turn of a conversation."""

    #: What clients send back of an answer's message that had none of these.
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "annotations": ([], None),
        "audio": (None,),
        "function_call": (None,),
        "refusal": (None,),
    }

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Any, Field(json_schema_extra={"description": "text, or a list of text parts"})]
    name: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _calls_need_no_words(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "tool_calls" not in data:
            return data
        if not data["tool_calls"]:
            return {name: value for name, value in data.items() if name != "tool_calls"}
        return data if data.get("content") is not None else {**data, "content": ""}

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
        return [TextPart.model_validate(part).model_dump(exclude_none=True) for part in value]

    @model_validator(mode="after")
    def _calls_have_roles(self) -> Message:
        if self.tool_calls is not None and self.role != "assistant":
            raise ValueError(f"tool_calls are the assistant's, not of role '{self.role}'")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id is needed by role 'tool', and by no other")
        return self


class ChatRequest(SamplingRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True

    @field_validator("tools", mode="after")
    @classmethod
    def _names_differ(cls, value: list[Tool] | None) -> list[Tool] | None:
        names: set[str] = set()
        for tool in value or ():
            if tool.function.name in names:
                raise ValueError(f"two tools have the name '{tool.function.name}'")
            names.add(tool.function.name)
        return value

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _choice(cls, value: Any) -> Any:
        return tool_choice(value)

    @property
    def breakpoints(self) -> list[Breakpoint]:
        """Where prefixes to keep for a time end."""
        return [
            Breakpoint(place, number, CacheControl.model_validate(part["cache_control"]).seconds)
            for place, message in enumerate(self.messages)
            if isinstance(message.content, list)
            for number, part in enumerate(message.content)
            if "cache_control" in part
        ]

    @property
    def calls_tools(self) -> bool:
        """Whether calls of tools are looked for in the answer."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def must_call(self) -> bool:
        """Whether the answer has to be a call."""
        return self.tool_choice not in ("none", "auto")

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings; without parallel calls, an answer ends with its first call."""
        one_call = self.calls_tools and not self.parallel_tool_calls and not self.must_call
        return (*self.stop, CLOSE) if one_call else self.stop

    @property
    def answer_schema(self) -> str | None:
        """The JSON schema that the answer is held to."""
        return call_schema(self.tools or (), self.tool_choice) if self.must_call else super().answer_schema

    @model_validator(mode="after")
    def _few_breakpoints(self) -> ChatRequest:
        count = len(self.breakpoints) + (self.cache_control is not None)
        if count > MAX_BREAKPOINTS:
            raise ValueError(f"at most {MAX_BREAKPOINTS} cache_control breakpoints are supported, {count} given")
        return self

    @model_validator(mode="after")
    def _tools_agree(self) -> ChatRequest:
        if self.must_call and not self.tools:
            raise ValueError("tool_choice asks for a call, and there are no tools")
        if isinstance(self.tool_choice, NamedChoice):
            name = self.tool_choice.function.name
            if all(tool.function.name != name for tool in self.tools or ()):
                raise ValueError(f"tool_choice names '{name}', which is none of the tools")
        if self.must_call:
            call_schema(self.tools or (), self.tool_choice)
        if self.calls_tools and super().answer_schema is not None:
            raise ValueError("response_format and tools cannot be followed both, unless tool_choice is 'none'")
        return self

    @model_validator(mode="after")
    def _fields_agree(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens are given and differ")
        return self
