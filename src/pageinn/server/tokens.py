"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, ClassVar

from fastapi import FastAPI, Request
from pydantic import Field, model_validator

from pageinn.server.body import read_request
from pageinn.server.openapi import body_schema
from pageinn.server.prompts import chat_text, check_ids, check_model
from pageinn.server.protocol import Message
from pageinn.server.served import Served
from pageinn.server.strict import Strict
from pageinn.server.tools import Tool


class TokenizeRequest(Strict):
    """Text, or a conversation as the chat template renders it."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {"continue_final_message": (False, None)}

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool | None = None
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_two(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        if self.tools and self.messages is None:
            raise ValueError("tools go with messages")
        return self


class DetokenizeRequest(Strict):
    """Token ids."""

    model: str | None = None
    tokens: list[int]


def add_tokens(app: FastAPI, served: Served, body_limit: int) -> None:
    """Add the routes."""

    @app.post("/tokenize", openapi_extra=body_schema(TokenizeRequest))
    async def tokenize(http: Request) -> dict[str, Any]:
        """Token ids of a prompt or a conversation, also of one too long to be answered."""
        request = await read_request(http, TokenizeRequest, body_limit)
        check_model(served, request.model)
        tokens = await asyncio.to_thread(_encode, served, request)
        texts = [served.tokenizer.token_text(token) for token in tokens] if request.return_token_strs else None
        return {"count": len(tokens), "max_model_len": served.max_model_len, "tokens": tokens, "token_strs": texts}

    @app.post("/detokenize", openapi_extra=body_schema(DetokenizeRequest))
    async def detokenize(http: Request) -> dict[str, str]:
        """The text of token ids, control tokens by name."""
        request = await read_request(http, DetokenizeRequest, body_limit)
        check_model(served, request.model)
        check_ids(served, request.tokens, "tokens")
        return {"prompt": served.tokenizer.decode(request.tokens, show_control=True)}


def _encode(served: Served, request: TokenizeRequest) -> list[int]:
    if request.messages is None:
        text, by_default = request.prompt or "", True
    else:
        text = chat_text(served, request.messages, request.tools or (), request.add_generation_prompt)
        by_default = False
    add_special = by_default if request.add_special_tokens is None else request.add_special_tokens
    return served.tokenizer.encode(text, add_special=add_special)
