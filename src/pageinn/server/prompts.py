"""From what a client asks to what the engine is told: checked tokens and sampling parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pageinn.engine.messages import SamplingParams
from pageinn.memory.retention import Retain
from pageinn.memory.scopes import Scope
from pageinn.server.cache_control import CacheUse, marked, tokens_before, without_control
from pageinn.server.errors import ApiError, short
from pageinn.server.forced import BEGINNING
from pageinn.server.protocol import ChatRequest, Message, Prompt, SamplingRequest
from pageinn.server.served import Served
from pageinn.server.tenants import Tenant
from pageinn.server.tools import Tool, check_template, template_message, template_tools
from pageinn.text.template import TemplateError

#: What OpenAI's completions answer when max_tokens is not given.
DEFAULT_COMPLETION_TOKENS = 16


def check_model(served: Served, name: str | None) -> None:
    """Raises ApiError 404 unless `name` is one the model is served under, or None."""
    if name is not None and name not in served.names:
        names = ", ".join(f"'{each}'" for each in served.names)
        message = f"the model {short(name)} does not exist; this server serves {names}"
        raise ApiError(404, message, param="model", code="model_not_found")


def scope_of(tenant: Tenant, request: SamplingRequest) -> Scope:
    """Whose cache a request reads and writes: its tenant's, or inside that its salt's."""
    return Scope(tenant.name, request.cache_salt)


def cache_use(served: Served, tenant: Tenant, request: SamplingRequest, prompt: tuple[int, ...]) -> CacheUse:
    """What a request does with the cache. Where its tenant or its route has no part in reuse, nothing."""
    if not tenant.share:
        return CacheUse(read=False, write=False, retain=())
    retain = _breakpoints(served, request, prompt) if isinstance(request, ChatRequest) else []
    if request.cache_control is not None:
        retain.append(Retain(len(prompt), request.cache_control.seconds))
    return CacheUse(request.reads_cache, not request.skip_writing_prefix_cache, tuple(retain))


def _breakpoints(served: Served, request: ChatRequest, prompt: tuple[int, ...]) -> list[Retain]:
    """Each breakpoint's prefix. The template may write what it likes around a message: the prefix ends where a second
    rendering, with a mark after the breakpoint's text, begins to differ."""
    turns, tools = _turns(request.messages), request.tools or ()
    points = request.breakpoints
    text = _render(served, turns, tools, add_generation_prompt=True) if points else ""
    found = []
    for point in points:
        other = _render(served, marked(turns, point), tools, add_generation_prompt=True)
        found.append(Retain(tokens_before(served.tokenizer, text, other, prompt), point.seconds))
    return found


def completion_tokens(served: Served, prompts: list[Prompt]) -> list[tuple[int, ...]]:
    """Token ids of each prompt. Raises ApiError for one that is empty, too long or not of this vocabulary."""
    return [_tokens(served, prompt, "prompt", add_special=True) for prompt in prompts]


def chat_tokens(served: Served, request: ChatRequest, add_generation_prompt: bool = True) -> tuple[int, ...]:
    """Token ids of a conversation. Raises ApiError like `chat_text`, or if they are too many."""
    text = chat_text(served, request.messages, request.tools or (), add_generation_prompt)
    return _tokens(served, text + BEGINNING if request.must_call else text, "messages", add_special=False)


def chat_text(
    served: Served, messages: Sequence[Message], tools: Sequence[Tool], add_generation_prompt: bool = True
) -> str:
    """A conversation as a prompt. Raises ApiError if there is no template or it refuses the conversation."""
    return _render(served, _turns(messages), tools, add_generation_prompt)


def _turns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    turns = [template_message(message.model_dump(exclude_none=True)) for message in messages]
    return [{**turn, "content": without_control(turn["content"])} for turn in turns]


def _render(served: Served, turns: list[dict[str, Any]], tools: Sequence[Tool], add_generation_prompt: bool) -> str:
    if served.template is None:
        message = f"the model '{served.model_name}' brings no chat template; use /v1/completions"
        raise ApiError(400, message, param="messages", code="no_chat_template")
    check_template(served.template, served.model_name, turns, tools)
    try:
        schemas = template_tools(tools, served.canonical_tools)
        return served.template.render(turns, add_generation_prompt, schemas)
    except TemplateError as error:
        raise ApiError(400, str(error), param="messages", code="invalid_messages") from error


def _tokens(served: Served, prompt: Prompt, param: str, add_special: bool) -> tuple[int, ...]:
    if isinstance(prompt, str):
        least = len(prompt) // served.tokenizer.max_token_bytes
        if least > served.max_model_len:
            raise _too_long(served, f"at least {least}", param)
        tokens = served.tokenizer.encode(prompt, add_special=add_special)
    else:
        tokens = prompt
        check_ids(served, tokens, param)
    if not tokens:
        raise ApiError(400, "the prompt is empty", param=param, code="empty_prompt")
    if len(tokens) >= served.max_model_len:
        raise _too_long(served, str(len(tokens)), param)
    return tuple(tokens)


def check_ids(served: Served, tokens: list[int], param: str) -> None:
    """Raises ApiError 400 for an id that is not of this vocabulary."""
    if tokens and (min(tokens) < 0 or max(tokens) >= served.vocab_size):
        wrong = next(token for token in tokens if not 0 <= token < served.vocab_size)
        message = f"token id {short(wrong)} is out of range: this model's ids go from 0 to {served.vocab_size - 1}"
        raise ApiError(400, message, param=param, code="invalid_token_id")


def _too_long(served: Served, length: str, param: str) -> ApiError:
    message = (
        f"the prompt has {length} tokens; this server's context is {served.max_model_len} tokens, "
        "of which at least one must be left for the answer"
    )
    return ApiError(400, message, param=param, code="context_length_exceeded")


def answer_length(served: Served, longest_prompt: int, asked: int | None, default: int | None) -> int:
    """max_tokens for the engine: what was asked for if it fits, else `default` or the rest of the context.

    Raises ApiError if what was asked for does not fit behind the prompt.
    """
    room = served.max_model_len - longest_prompt
    if asked is None:
        return room if default is None else min(room, default)
    if asked > room:
        message = (
            f"max_tokens is {short(asked)}, but this server's context is {served.max_model_len} tokens and "
            f"the prompt has {longest_prompt}: at most {room} fit"
        )
        raise ApiError(400, message, param="max_tokens", code="context_length_exceeded")
    return asked


def sampling_params(
    request: SamplingRequest, max_tokens: int, logprobs: int | None, prompt_logprobs: int | None
) -> SamplingParams:
    """How the engine is to choose tokens. top_k -1 is off, as in vLLM."""
    return SamplingParams(
        max_tokens=max_tokens,
        n=request.n,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=max(request.top_k, 0),
        min_p=request.min_p,
        seed=request.seed,
        stop=request.stops,
        ignore_eos=request.ignore_eos,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=tuple(sorted((int(token), bias) for token, bias in (request.logit_bias or {}).items())),
        stop_token_ids=request.stop_token_ids,
        min_tokens=request.min_tokens,
        json_schema=request.answer_schema,
    )
