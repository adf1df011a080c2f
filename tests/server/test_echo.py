"""echo and prompt_logprobs: what a completion says of its prompt, whole and streamed, cold and cached."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from pageinn.server.echo import Prompts
from pageinn.server.protocol import CompletionRequest

STORY = "Once upon a time, in a small village by the sea, there lived"
FISHER = "The fisherman's daughter—a naïve girl of 12—said:"


def streamed(server, **fields: object) -> dict[int, dict[str, Any]]:
    """The text and the lists of each choice, joined."""
    joined: dict[int, dict[str, Any]] = {}
    with server.http.stream("POST", "/v1/completions", json={"temperature": 0, "stream": True, **fields}) as got:
        for line in got.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    whole = joined.setdefault(choice["index"], {"text": "", "logprobs": {}})
                    whole["text"] += choice["text"]
                    for name, values in (choice["logprobs"] or {}).items():
                        whole["logprobs"].setdefault(name, []).extend(values)
    return joined


def test_the_prompt_comes_first(server, tokenizer) -> None:
    """Text prompts to the letter, token ids as the text they stand for; the answer is the one without echo."""
    plain = server.complete([STORY, FISHER], max_tokens=8, n=2, seed=1)["choices"]
    ids = [tokenizer.encode(prompt) for prompt in (STORY, FISHER)]
    for prompts in ([STORY, FISHER], ids):
        got = server.complete(prompts, max_tokens=8, n=2, seed=1, echo=True)
        assert [choice["text"] for choice in got["choices"]] == [
            prompt + choice["text"] for prompt, choice in zip([STORY, STORY, FISHER, FISHER], plain, strict=True)
        ]
        assert all(choice["logprobs"] is None for choice in got["choices"])


@pytest.mark.parametrize("prompt", [STORY, FISHER])
def test_lists_cover_prompt_and_answer(server, tokenizer, prompt: str) -> None:
    """Field case G2: full length, and equal when the prefix is cached, which it is not read from."""
    asked = {"max_tokens": 6, "echo": True, "logprobs": 2, "ignore_eos": True}
    bypassed = server.metric("prefix_cache_bypassed_total")
    first, again = (server.complete(prompt, **asked) for _ in range(2))
    assert first["choices"] == again["choices"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    ids = tokenizer.encode(prompt)
    assert server.metric("prefix_cache_bypassed_total") == bypassed + 2 * len(ids)
    choice = first["choices"][0]
    lists = choice["logprobs"]
    assert [len(values) for values in lists.values()] == [len(ids) + 6] * 4
    assert (lists["token_logprobs"][0], lists["top_logprobs"][0]) == (None, None)
    assert all(value < 0 for value in lists["token_logprobs"][1:])
    for token, value, top in zip(*(lists[n][1:] for n in ("tokens", "token_logprobs", "top_logprobs")), strict=True):
        assert top[token] == value
        assert 2 <= len(top) <= 3
    for token, offset in zip(lists["tokens"], lists["text_offset"], strict=True):
        assert token.startswith("bytes:") or choice["text"][offset:].startswith(token)
    alone = server.complete(prompt, max_tokens=6, logprobs=2, ignore_eos=True)["choices"][0]["logprobs"]
    for name in ("tokens", "token_logprobs", "top_logprobs"):
        assert lists[name][len(ids) :] == alone[name]


def test_a_stream_says_the_same(server) -> None:
    fields = {"prompt": [STORY, FISHER], "max_tokens": 6, "n": 2, "seed": 3, "echo": True, "logprobs": 1}
    plain = server.complete(fields["prompt"], **{k: v for k, v in fields.items() if k != "prompt"})
    joined = streamed(server, **fields)
    for choice in plain["choices"]:
        assert joined[choice["index"]] == {"text": choice["text"], "logprobs": choice["logprobs"]}
    bare = streamed(server, **{**fields, "logprobs": None})
    assert {i: each["text"] for i, each in bare.items()} == {i: each["text"] for i, each in joined.items()}


def test_a_prompt_alone_is_scored(client: openai.OpenAI) -> None:
    """What evaluation harnesses ask: nothing but the log-probabilities of a text."""
    model = client.models.list().data[0].id
    scored = client.completions.create(model=model, prompt=STORY, max_tokens=0, echo=True, logprobs=0)
    choice = scored.choices[0]
    assert (choice.text, choice.finish_reason) == (STORY, "length")
    assert len(choice.logprobs.tokens) == scored.usage.prompt_tokens
    assert scored.usage.completion_tokens == 0
    shuffled = "lived Once there upon sea, a the time, by in village a small"
    worse = client.completions.create(model=model, prompt=shuffled, max_tokens=0, echo=True, logprobs=0)
    assert sum(worse.choices[0].logprobs.token_logprobs[1:]) < sum(choice.logprobs.token_logprobs[1:])


def test_prompt_logprobs_as_vllm_has_them(server, tokenizer) -> None:
    got = server.complete(STORY, max_tokens=2, prompt_logprobs=3)["choices"][0]
    ids = tokenizer.encode(STORY)
    first, *rest = got["prompt_logprobs"]
    assert first is None
    assert got["logprobs"] is None
    assert not got["text"].startswith(STORY)
    for token, entries in zip(ids[1:], rest, strict=True):
        assert next(iter(entries)) == str(token)
        assert {1, 2, 3} <= {entry["rank"] for entry in entries.values()}
        assert entries[str(token)]["decoded_token"] == tokenizer.token_text(token)
        assert len(entries) == (3 if entries[str(token)]["rank"] <= 3 else 4)
    echoed = server.complete(STORY, max_tokens=0, echo=True, logprobs=1, prompt_logprobs=0)["choices"][0]
    values = [entry[str(token)]["logprob"] for token, entry in zip(ids[1:], rest, strict=True)]
    assert echoed["logprobs"]["token_logprobs"][1:] == values
    assert [len(entries) for entries in echoed["prompt_logprobs"][1:]] == [1] * (len(ids) - 1)
    assert "prompt_logprobs" not in server.complete(STORY, max_tokens=1)["choices"][0]


def test_control_tokens_take_room_where_they_are_written_out(tokenizer) -> None:
    for text in ("<|im_start|>user\nSay hi.<|im_end|>\n", "plain"):
        for prompt in (text, tokenizer.encode(text)):
            request = CompletionRequest.model_validate({"prompt": prompt, "echo": True})
            prompts = Prompts(tokenizer, request, [tuple(tokenizer.encode(text))])
            shown = prompts.text(0)
            assert shown == (text if isinstance(prompt, str) else tokenizer.decode(prompt))
            for token, offset in zip(tokenizer.encode(text), prompts.offsets(0), strict=True):
                written = shown[offset:].startswith(tokenizer.token_text(token))
                assert written or (not isinstance(prompt, str) and not tokenizer.token_bytes[token])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"echo": "yes"}, "echo"),
        ({"echo": True, "max_tokens": 0, "min_tokens": 1}, "min_tokens"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(server, fields: dict[str, object], param: str) -> None:
    got = server.http.post("/v1/completions", json={"prompt": STORY, **fields})
    assert got.status_code == 400
    assert got.json()["error"]["param"] == param
