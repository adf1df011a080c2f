"""response_format over HTTP: JSON objects and schemas, whole and streamed, and what is refused."""

from __future__ import annotations

import json
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest

ASKED = [{"role": "user", "content": "Describe a colour of your choice as JSON."}]
COLOUR = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "warm": {"type": "boolean"},
        "rgb": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}, "maxItems": 3},
    },
    "required": ["name", "warm", "rgb"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOUR, "strict": True}}


@pytest.fixture
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def test_every_choice_matches_its_schema(client: openai.OpenAI, model: str) -> None:
    got = client.chat.completions.create(
        model=model, messages=ASKED, response_format=FORMAT, n=4, max_tokens=300, seed=1, logprobs=True
    )
    for choice in got.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), COLOUR)
        assert list(json.loads(choice.message.content)) == ["name", "warm", "rgb"]


def test_a_streamed_answer_is_the_plain_one(client: openai.OpenAI, model: str) -> None:
    fields = {"model": model, "messages": ASKED, "response_format": FORMAT, "max_tokens": 300, "seed": 2}
    plain = client.chat.completions.create(**fields).choices[0]
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**fields, stream=True)]
    text = "".join(choice.delta.content or "" for choice in chunks)
    assert text == plain.message.content
    assert chunks[-1].finish_reason == plain.finish_reason == "stop"
    jsonschema.validate(json.loads(text), COLOUR)


class Colour(pydantic.BaseModel):
    warm: bool
    shade: Literal["light", "dark"]


def test_the_official_client_parses_into_its_own_types(client: openai.OpenAI, model: str) -> None:
    got = client.chat.completions.parse(model=model, messages=ASKED, response_format=Colour, max_tokens=200, seed=3)
    assert isinstance(got.choices[0].message.parsed, Colour)


def test_any_object(client: openai.OpenAI, model: str) -> None:
    """An object of any form may be long: it is cut off, or it parses."""
    got = client.chat.completions.create(
        model=model, messages=ASKED, response_format={"type": "json_object"}, max_tokens=150, temperature=0
    ).choices[0]
    assert got.message.content.startswith("{")
    if got.finish_reason == "stop":
        assert isinstance(json.loads(got.message.content), dict)
    else:
        assert got.finish_reason == "length"


def test_completions_and_text(server) -> None:
    got = server.complete("A colour as JSON:", response_format=FORMAT, max_tokens=300)["choices"][0]
    jsonschema.validate(json.loads(got["text"]), COLOUR)
    cut = server.complete("A colour as JSON:", response_format=FORMAT, max_tokens=3)["choices"][0]
    assert cut["finish_reason"] == "length"
    assert got["text"].startswith(cut["text"])
    plain = server.complete("A colour as JSON:", max_tokens=8)
    assert (
        server.complete("A colour as JSON:", max_tokens=8, response_format={"type": "text"})["choices"]
        == (plain["choices"])
    )


def with_schema(schema: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("form", "param", "reason"),
    [
        ({"type": "xml"}, "response_format.type", "not 'xml'"),
        ({"type": "json_schema"}, "response_format", "json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, "response_format.json_schema.schema", "missing"),
        (with_schema(3), "response_format.json_schema.schema", "dictionary"),
        (with_schema({"type": "colour"}), "response_format", "Invalid type: colour"),
        (with_schema({"type": "string", "pattern": "("}), "response_format", "regex parse error"),
        (with_schema({"description": "x" * 70_000}), "response_format", "bytes"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    server, form: dict[str, Any], param: str, reason: str, stream: bool
) -> None:
    got = server.http.post(
        "/v1/chat/completions", json={"messages": ASKED, "response_format": form, "stream": stream, "max_tokens": 5}
    )
    assert got.status_code == 400
    assert got.json()["error"]["param"] == param
    assert reason in got.json()["error"]["message"]


def test_ignore_eos_and_a_schema_contradict_each_other(server) -> None:
    body = {"prompt": "A colour:", "response_format": FORMAT, "ignore_eos": True}
    got = server.http.post("/v1/completions", json=body)
    assert got.status_code == 400
    assert got.json()["error"]["param"] == "ignore_eos"
