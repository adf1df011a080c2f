"""One request of a batch and its row in the file of answers, which is a function of the request and the model alone.

Ids come from custom_id, `created` is 0, a request without a seed gets one from its custom_id, and what the cache did
(usage's prompt_tokens_details) is left out: the same request gives the same bytes, in whichever run it is answered.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, NamedTuple

URLS = {"/v1/chat/completions": "chatcmpl", "/v1/completions": "cmpl"}
#: Seeds are signed 64-bit numbers, of which these are the ones from 0 on.
_SEED_BITS = 63


class Request(NamedTuple):
    """A row's request. `wrong` says why it cannot be sent."""

    custom_id: str
    url: str
    body: dict[str, Any]
    wrong: str | None


def request_of(data: dict[str, Any]) -> Request:
    """A line of the file of requests, its seed set."""
    name, url, body = data["custom_id"], data.get("url"), data.get("body")
    wrong = None
    if data.get("method") != "POST":
        wrong = f"method is {_shown(data.get('method'))}; only 'POST' is supported"
    elif not isinstance(url, str) or url not in URLS:
        wrong = f"url is {_shown(url)}; supported are {', '.join(URLS)}"
    elif not isinstance(body, dict):
        wrong = "body is not an object"
    elif body.get("stream"):
        wrong = "body.stream is set; a batch has no streams"
    if wrong is not None or not isinstance(body, dict):
        return Request(name, "", {}, wrong)
    if body.get("seed") is None:
        body = {**body, "seed": int(_digest(f"seed {name}"), 16) >> (256 - _SEED_BITS)}
    return Request(name, str(url), body, None)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def answer_row(request: Request, status: int, body: Any) -> dict[str, Any]:
    """The row of what a server has answered, in the form of OpenAI's batches."""
    digest = _digest(request.custom_id)[:32]
    response = {"status_code": status, "request_id": f"req_{digest}", "body": _settled(request, body, digest)}
    return {"id": f"batch_req_{digest}", "custom_id": request.custom_id, "response": response, "error": None}


def error_row(request: Request, code: str, message: str) -> dict[str, Any]:
    """The row of a request that got no answer."""
    digest = _digest(request.custom_id)[:32]
    error = {"code": code, "message": message}
    return {"id": f"batch_req_{digest}", "custom_id": request.custom_id, "response": None, "error": error}


def _settled(request: Request, body: Any, digest: str) -> Any:
    """An answer without what differs from one run to the next."""
    if not isinstance(body, dict) or "choices" not in body:
        return body
    settled = {**body, "id": f"{URLS[request.url]}-{digest}", "created": 0}
    if isinstance(body.get("usage"), dict):
        settled["usage"] = {name: value for name, value in body["usage"].items() if name != "prompt_tokens_details"}
    settled["choices"] = [_with_call_ids(choice, digest) for choice in body["choices"]]
    return settled


def _with_call_ids(choice: dict[str, Any], digest: str) -> dict[str, Any]:
    message = choice.get("message") or {}
    calls = message.get("tool_calls")
    if not calls:
        return choice
    named = [{**call, "id": f"call_{digest}_{choice['index']}_{i}"} for i, call in enumerate(calls)]
    return {**choice, "message": {**message, "tool_calls": named}}
