"""OpenAI's request bodies: chat, completions and responses, bare, in Batch lines, or beside their answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pageinn.traffic.envelope import BODIES, Place, opened, record_of
from pageinn.traffic.fields import Row, first, is_ids, objects_of, short, tokens_of
from pageinn.traffic.record import Chat, Prompt, Record, Text
from pageinn.traffic.report import BadRowError


def claims(row: Row) -> bool:
    """Whether a row holds such a body."""
    if "messages" in row or "prompt" in row:
        return True
    if isinstance(row.get("input"), list) and "model" in row:
        return True
    inner = first(row, BODIES)
    if isinstance(inner, str):
        return inner.lstrip().startswith("{") and any(key in inner for key in ('"messages"', '"prompt"'))
    return isinstance(inner, dict) and (claims(inner) or "body" in inner)


def is_batch(row: Row) -> bool:
    """Whether it is a line of the Batch API."""
    return "custom_id" in row and "body" in row


def records(row: Row, place: Place) -> Iterator[Record]:
    """One record a prompt: a completion may bring several. Raises BadRowError."""
    envelope = opened(row)
    output = _output(envelope.answer)
    for prompt in prompts(envelope.body):
        yield record_of(place, envelope, prompt, output)


def prompts(body: Row) -> list[Prompt]:
    """The prompts of a body. Raises BadRowError if it has none."""
    if "messages" in body:
        return [chat(body)]
    if "prompt" in body:
        if isinstance(body["prompt"], str) and isinstance(body.get("system"), str) and not body.get("raw"):
            # Ollama's generate: the template puts the two together.
            said = {"system": body["system"], "user": body["prompt"]}
            return [Chat([{"role": role, "content": text} for role, text in said.items() if text], [], {})]
        return _completion(body["prompt"])
    if "input" in body:
        return [_responses(body)]
    raise BadRowError("neither 'messages' nor 'prompt' is there")


def chat(body: Row) -> Chat:
    """A chat body's conversation. Raises BadRowError if its messages are not messages."""
    messages = objects_of(body["messages"], "messages")
    if not messages:
        raise BadRowError("'messages' is empty")
    for place, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise BadRowError(f"messages[{place}] has no role")
    return Chat(messages, objects_of(body.get("tools"), "tools"), template_kwargs(body))


def template_kwargs(body: Row) -> dict[str, Any]:
    """What the body tells the chat template beside messages and tools (vLLM's extension)."""
    told = body.get("chat_template_kwargs") or {}
    if not isinstance(told, dict):
        raise BadRowError(f"'chat_template_kwargs' is {short(told)}, not an object")
    return told


def _completion(prompt: Any) -> list[Prompt]:
    if isinstance(prompt, str):
        return [Text(prompt)]
    if is_ids(prompt) and prompt:
        return [tokens_of(prompt, "prompt")]
    if isinstance(prompt, list) and prompt:
        return [one for each in prompt for one in _completion(each)]
    if isinstance(prompt, dict) and is_ids(prompt.get("prompt_token_ids")):
        return [tokens_of(prompt["prompt_token_ids"], "prompt_token_ids")]
    raise BadRowError(f"'prompt' is {short(prompt)}, neither text nor token ids")


def _responses(body: Row) -> Chat:
    """A body of the Responses API: instructions, then items."""
    messages: list[Row] = []
    if isinstance(body.get("instructions"), str):
        messages.append({"role": "system", "content": body["instructions"]})
    given = body["input"]
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    else:
        messages += [_item(item) for item in objects_of(given, "input")]
    if not messages:
        raise BadRowError("'input' is empty")
    tools = [{"type": "function", "function": tool} for tool in objects_of(body.get("tools"), "tools")]
    return Chat(messages, tools, {})


def _item(item: Row) -> Row:
    kind = item.get("type", "message")
    if kind == "function_call":
        call = {"id": item.get("call_id", ""), "type": "function", "function": item}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id", ""), "content": str(item.get("output", ""))}
    content = item.get("content", "")
    if isinstance(content, list):
        content = [{**part, "type": "text"} if "text" in part else part for part in objects_of(content, "content")]
    return {"role": str(item.get("role", "user")), "content": content}


def _output(answer: Row) -> str | None:
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    message = choices[0].get("message")
    text = message.get("content") if isinstance(message, dict) else choices[0].get("text")
    return text if isinstance(text, str) else None
