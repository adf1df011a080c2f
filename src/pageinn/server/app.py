"""The HTTP application: one route for each thing a client can ask."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from pageinn import __version__
from pageinn.engine.messages import EngineDeadError, GenerationRequest
from pageinn.server.access import Access, AccessControl, tenant_of
from pageinn.server.answers import answer
from pageinn.server.body import DEFAULT_LIMIT, read_request
from pageinn.server.cache_control import CacheUse
from pageinn.server.chat import ChatShape
from pageinn.server.completions import CompletionShape
from pageinn.server.dashboard.feed import Feed
from pageinn.server.dashboard.routes import add_dashboard
from pageinn.server.echo import check_prompt_fields, prompt_logprobs_of
from pageinn.server.errors import ApiError, ClientGone, from_engine, internal
from pageinn.server.generation import Run
from pageinn.server.metrics import registry_of
from pageinn.server.misses import add_misses, recorder_of
from pageinn.server.openapi import body_schema, use_schemas
from pageinn.server.pins import add_pins
from pageinn.server.prompts import (
    DEFAULT_COMPLETION_TOKENS,
    answer_length,
    cache_use,
    chat_tokens,
    check_model,
    completion_tokens,
    sampling_params,
    scope_of,
)
from pageinn.server.protocol import ChatRequest, CompletionRequest, SamplingRequest
from pageinn.server.public import add_public
from pageinn.server.readiness import Phase, add_ready
from pageinn.server.request_ids import RequestIds, id_header
from pageinn.server.served import Served
from pageinn.server.tokens import DetokenizeRequest, TokenizeRequest, add_tokens
from pageinn.server.tool_stream import ToolChatShape


def create_app(served: Served, body_limit: int = DEFAULT_LIMIT, access: Access | None = None) -> FastAPI:
    """The application. When it shuts down, it drains the engine. body_limit: the largest body, in bytes."""

    recorder = recorder_of(served)
    served = replace(served, misses=recorder)
    feed = Feed(served)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with feed.recording():
            app.state.phase = Phase.READY
            yield
        app.state.phase = Phase.DRAINING
        await served.client.drain()
        recorder.close()

    app = FastAPI(title="pageinn", version=__version__, lifespan=lifespan, redirect_slashes=False)
    app.state.phase = Phase.STARTING
    _add_generation(app, served, body_limit)
    _add_operations(app, served)
    add_public(app, served, body_limit)
    add_pins(app, served, body_limit, access.keyring if access else None)
    add_misses(app, recorder, served.show_prompt_text)
    add_tokens(app, served, body_limit)
    add_ready(app, served)
    add_dashboard(app, feed)
    _add_error_handlers(app)
    app.add_middleware(AccessControl, access=access or Access())
    app.add_middleware(RequestIds)
    use_schemas(app, CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest)
    return app


def _add_generation(app: FastAPI, served: Served, body_limit: int) -> None:
    @app.post("/v1/completions", openapi_extra=body_schema(CompletionRequest))
    async def completions(http: Request) -> Response:
        """Continue a prompt, or each of several."""
        request = await read_request(http, CompletionRequest, body_limit)
        check_model(served, request.model)
        check_prompt_fields(request)
        prompts = await asyncio.to_thread(completion_tokens, served, request.prompt)
        length = answer_length(served, max(map(len, prompts)), request.max_tokens, default=DEFAULT_COMPLETION_TOKENS)
        uses = [cache_use(served, tenant_of(http), request, prompt) for prompt in prompts]
        run = _run(http, "cmpl", request, prompts, uses, length, request.logprobs, prompt_logprobs_of(request))
        return await answer(http, served, run, CompletionShape(served.tokenizer, request, prompts))

    @app.post("/v1/chat/completions", openapi_extra=body_schema(ChatRequest))
    async def chat(http: Request) -> Response:
        """Answer the last turn of a conversation."""
        request = await read_request(http, ChatRequest, body_limit)
        check_model(served, request.model)
        prompt = await asyncio.to_thread(chat_tokens, served, request)
        asked = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
        length = answer_length(served, len(prompt), asked, default=None)
        use = await asyncio.to_thread(cache_use, served, tenant_of(http), request, prompt)
        logprobs = (request.top_logprobs or 0) if request.logprobs else None
        run = _run(http, "chatcmpl", request, [prompt], [use], length, logprobs)
        try:
            return await answer(http, served, run, _chat_shape(served, request))
        except ApiError as error:
            if request.must_call and error.param == "response_format":
                error.param = "tools"  # the schema that cannot be followed is theirs
            raise


def _chat_shape(served: Served, request: ChatRequest) -> ChatShape:
    if request.calls_tools:
        return ToolChatShape(served.tokenizer, request.logprobs, request.must_call)
    return ChatShape(served.tokenizer, request.logprobs)


def _run(
    http: Request,
    prefix: str,
    request: SamplingRequest,
    prompts: list[tuple[int, ...]],
    uses: list[CacheUse],
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> Run:
    name = f"{prefix}-{uuid.uuid4().hex}"
    names = [name] if len(prompts) == 1 else [f"{name}-{i}" for i in range(len(prompts))]
    sampling = sampling_params(request, max_tokens, logprobs, prompt_logprobs)
    scope = scope_of(tenant_of(http), request)
    return Run(
        id=name,
        requests=[
            GenerationRequest(
                each, prompt, sampling, scope, use.read, use.write, use.retain, queue_timeout=request.queue_timeout
            )
            for each, prompt, use in zip(names, prompts, uses, strict=True)
        ],
        n=request.n,
        stream=request.stream,
        include_usage=request.stream_options is not None and request.stream_options.include_usage,
    )


def _add_operations(app: FastAPI, served: Served) -> None:
    registry = registry_of(served)
    about = {"object": "model", "created": served.created, "owned_by": "pageinn"}
    cards = {name: {"id": name, **about, "max_model_len": served.max_model_len} for name in served.names}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model served, under each of its names."""
        return {"object": "list", "data": list(cards.values())}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """The model of this name."""
        check_model(served, name)
        return cards[name]

    @app.get("/health")
    async def health() -> Response:
        """200 while the engine runs."""
        if not served.client.alive:
            raise ApiError(503, "the engine has stopped", kind="server_error", code="engine_dead")
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters and gauges in Prometheus' text form."""
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> dict[str, int]:
        """Drop all kept blocks; says how many that freed and how many running requests still hold."""
        report = await served.client.reset_prefix_cache()
        if served.misses is not None:
            served.misses.reset()
        return {"blocks_freed": report.freed, "blocks_in_use": report.in_use}


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> Response:
        # What is left of a body that was too large would be read as the next request.
        headers = {"connection": "close"} if error.status == 413 else {}
        if error.retry_after is not None:
            headers["retry-after"] = str(error.retry_after)
        return JSONResponse(error.body(), error.status, headers)

    @app.exception_handler(EngineDeadError)
    async def engine_dead(_: Request, error: EngineDeadError) -> Response:
        answered = from_engine(error)
        return JSONResponse(answered.body(), answered.status)

    @app.exception_handler(HTTPException)
    async def no_route(http: Request, error: HTTPException) -> Response:
        answered = ApiError(error.status_code, f"{http.method} {http.url.path}: {error.detail}", code="no_such_route")
        return JSONResponse(answered.body(), error.status_code, error.headers)

    @app.exception_handler(ClientGone)
    async def client_gone(_: Request, __: ClientGone) -> Response:
        return Response(status_code=499)  # nginx's number for this; nobody reads it

    @app.exception_handler(Exception)
    async def unexpected(http: Request, _: Exception) -> Response:
        # Starlette raises the exception again after this answer; uvicorn logs it and closes the connection, which
        # a client that keeps connections must know before it sends its next request.
        answered = internal()
        headers = {"connection": "close", **id_header(http.scope)}
        return JSONResponse(answered.body(), answered.status, headers)
