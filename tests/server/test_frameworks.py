"""What people build on: a framework's OpenAI-compatible class gets an answer from a live server."""

from __future__ import annotations

from typing import Any

import pytest

WEATHER = {
    "name": "weather",
    "description": "The weather of a place.",
    "parameters": {"type": "object", "properties": {"at": {"enum": [1, 2]}}, "required": ["at"]},
}


def test_langchain(server) -> None:
    from langchain_openai import ChatOpenAI

    model = server.http.get("/v1/models").json()["data"][0]["id"]
    chat = ChatOpenAI(base_url=f"{server.url}/v1", api_key="none", model=model, temperature=0, max_tokens=8)
    answer = chat.invoke([("system", "Be brief."), ("user", "Name a colour.")])
    assert answer.content
    assert answer.usage_metadata["output_tokens"] <= 8
    assert "".join(chunk.content for chunk in chat.stream("Name a colour."))


def test_langchain_calls_tools(start_server, qwen_path) -> None:
    from langchain_openai import ChatOpenAI

    made = start_server(str(qwen_path), "--kv-cache-memory-bytes", "8MiB", "--threads", "1")
    chat = ChatOpenAI(base_url=f"{made.url}/v1", api_key="none", model="tiny-qwen", max_tokens=300, seed=1)
    parameters = {**WEATHER["parameters"], "additionalProperties": False}
    tools: list[dict[str, Any]] = [{"type": "function", "function": {**WEATHER, "parameters": parameters}}]
    (call,) = chat.bind_tools(tools, tool_choice="weather").invoke("How is it?").tool_calls
    assert call["name"] == "weather"
    assert call["args"]["at"] in (1, 2)
    assert made.stop() == 0


def test_llama_index(server) -> None:
    """Not among the tests' dependencies: docs/dependencies.md says why."""
    like = pytest.importorskip("llama_index.llms.openai_like")
    model = server.http.get("/v1/models").json()["data"][0]["id"]
    llm = like.OpenAILike(
        model=model, api_base=f"{server.url}/v1", api_key="none", is_chat_model=True, max_tokens=8, temperature=0
    )
    assert llm.complete("Name a colour.").text
