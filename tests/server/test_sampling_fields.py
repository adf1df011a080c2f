"""The fields that steer sampling, through HTTP on the default model: each does what its name says, or is refused."""

from __future__ import annotations

import openai
import pytest

STORY = "Once upon a time, in a small village by the sea, there lived"


def test_penalties_and_biases_change_an_answer(server) -> None:
    plain = server.complete(STORY, max_tokens=40, ignore_eos=True)["choices"][0]["text"]
    for field in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
        text = server.complete(STORY, max_tokens=40, ignore_eos=True, **{field: 1.9})["choices"][0]["text"]
        assert text != plain, field
        assert server.complete(STORY, max_tokens=40, ignore_eos=True, **{field: 1.9})["choices"][0]["text"] == text
    neutral = {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1, "logit_bias": {}}
    assert server.complete(STORY, max_tokens=40, ignore_eos=True, **neutral)["choices"][0]["text"] == plain


def test_a_bias_decides(server, tokenizer, client: openai.OpenAI) -> None:
    (token,) = tokenizer.encode(" whale")
    assert server.complete(STORY, max_tokens=3, logit_bias={str(token): 100})["choices"][0]["text"] == " whale" * 3
    plain = server.complete(STORY, max_tokens=1)["choices"][0]["text"]
    (usual,) = tokenizer.encode(plain)
    assert server.complete(STORY, max_tokens=1, logit_bias={str(usual): -100})["choices"][0]["text"] != plain
    got = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "Name a colour."}],
        logit_bias={str(token): 100},
        presence_penalty=0.5,
        frequency_penalty=0.5,
        max_completion_tokens=2,
    )
    assert got.choices[0].message.content == " whale whale"


def test_stop_tokens_and_least_lengths(server, tokenizer) -> None:
    whole = server.complete(STORY, max_tokens=12, ignore_eos=True, logprobs=0)["choices"][0]
    fifth = whole["logprobs"]["tokens"][4]
    (token,) = tokenizer.encode(fifth)
    for ignore_eos in (False, True):
        got = server.complete(STORY, max_tokens=12, stop_token_ids=[token], ignore_eos=ignore_eos)
        assert got["choices"][0]["finish_reason"] == "stop"
        assert got["choices"][0]["text"] == whole["text"][: whole["text"].index(fifth)]
        assert got["usage"]["completion_tokens"] == whole["logprobs"]["tokens"].index(fifth) + 1
    held = server.complete(STORY, max_tokens=12, stop_token_ids=[token], min_tokens=12)
    assert held["usage"]["completion_tokens"] == 12
    assert fifth not in held["choices"][0]["text"]


def test_top_logprobs_come_most_likely_first(client: openai.OpenAI) -> None:
    """Also with a penalty: log-probabilities are those of the model, before anything is changed."""
    got = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "Name a colour."}],
        max_tokens=6,
        temperature=0,
        frequency_penalty=2,
        logprobs=True,
        top_logprobs=20,
    )
    for entry in got.choices[0].logprobs.content:
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert len({bytes(top.bytes or []) for top in entry.top_logprobs}) >= 19
        assert [top.logprob for top in entry.top_logprobs if top.token == entry.token] in ([], [entry.logprob])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": "1"}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"logit_bias": {"05": 1}}, "logit_bias"),
        ({"logit_bias": {"49152": 1}}, "logit_bias"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
        ({"stop_token_ids": [49152]}, "stop_token_ids"),
        ({"stop_token_ids": [1.0]}, "stop_token_ids"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
        ({"min_tokens": 17, "max_tokens": 16}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
    ],
)
def test_out_of_range_is_refused_by_name(server, fields: dict[str, object], param: str) -> None:
    got = server.http.post("/v1/completions", json={"prompt": STORY, **fields})
    assert got.status_code == 400
    assert got.json()["error"]["param"] == param
    assert param in got.json()["error"]["message"]
