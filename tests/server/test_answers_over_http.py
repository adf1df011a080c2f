"""Completions and chat from the real model, through HTTP and the official client."""

from __future__ import annotations

import json

import openai
import pytest

STORY = "Once upon a time, in a small village by the sea, there lived"


def texts(server, **fields: object) -> dict[int, str]:
    """The streamed text of each choice."""
    joined: dict[int, str] = {}
    body = {"prompt": STORY, "temperature": 0, "stream": True, **fields}
    with server.http.stream("POST", "/v1/completions", json=body) as got:
        for line in got.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    joined[choice["index"]] = joined.get(choice["index"], "") + choice["text"]
    return joined


def test_streamed_text_equals_plain_text_and_stop_strings_never_show(server) -> None:
    """Field case G3: stop strings inside a token, over two tokens and over many."""
    whole = server.complete(STORY, max_tokens=40, ignore_eos=True, logprobs=0)["choices"][0]
    plain = whole["text"]
    assert texts(server, max_tokens=40, ignore_eos=True) == {0: plain}
    edge = whole["logprobs"]["text_offset"][20]
    for stop in (plain[edge - 2 : edge + 2], plain[edge - 1 : edge + 9], plain[edge + 1 : edge + 3]):
        expected = plain[: plain.index(stop)]
        stopped = server.complete(STORY, max_tokens=40, ignore_eos=True, stop=[stop, "never here"])
        assert stopped["choices"][0]["text"] == expected
        assert stopped["choices"][0]["finish_reason"] == "stop"
        assert texts(server, max_tokens=40, ignore_eos=True, stop=stop) == {0: expected}


@pytest.fixture
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def test_streaming_usage_comes_once_with_cached_tokens(client: openai.OpenAI, model: str) -> None:
    """Field case G4. A repeat computes the last prompt token only."""
    for repeat in (False, True):
        chunks = list(
            client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": "Tell me at length about the sea and the ships on it."}],
                max_tokens=8,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
        assert usages == [chunks[-1].usage]
        assert chunks[-1].choices == []
        cached = usages[0].prompt_tokens_details.cached_tokens
        assert not repeat or cached == usages[0].prompt_tokens - 1


def test_two_choices_streamed_are_each_finished_once(client: openai.OpenAI, model: str) -> None:
    """Field case G5."""
    stream = client.completions.create(model=model, prompt=STORY, n=2, max_tokens=12, seed=1, stream=True)
    joined, ends = {0: "", 1: ""}, []
    for chunk in stream:
        for choice in chunk.choices:
            assert choice.index not in ends
            joined[choice.index] += choice.text
            if choice.finish_reason:
                ends.append(choice.index)
    assert sorted(ends) == [0, 1]
    plain = client.completions.create(model=model, prompt=STORY, n=2, max_tokens=12, seed=1)
    assert joined == {choice.index: choice.text for choice in plain.choices}
    assert joined[0] != joined[1]


def test_the_end_token_does_not_show_and_ends_with_stop(client: openai.OpenAI, model: str) -> None:
    got = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Say hi."}], temperature=0, logprobs=True
    )
    choice = got.choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.role == "assistant"
    assert "<|" not in choice.message.content
    exact = b"".join(bytes(entry.bytes or []) for entry in choice.logprobs.content)
    assert exact.decode() == choice.message.content


def test_text_parts_are_one_text(client: openai.OpenAI, model: str) -> None:
    whole = [{"role": "user", "content": "Name a colour."}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "Name "}, {"type": "text", "text": "a colour."}]}]
    answers = [
        client.chat.completions.create(model=model, messages=messages, temperature=0, max_completion_tokens=6)
        for messages in (whole, parts)
    ]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content
    assert answers[0].usage.prompt_tokens == answers[1].usage.prompt_tokens


def test_chat_log_probabilities(client: openai.OpenAI, model: str) -> None:
    got = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Name a colour."}],
        temperature=0,
        max_tokens=5,
        logprobs=True,
        top_logprobs=3,
    )
    for entry in got.choices[0].logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token
        assert entry.top_logprobs[0].logprob == entry.logprob
        assert 0 >= entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob


def test_completion_log_probabilities(server) -> None:
    got = server.complete(STORY, max_tokens=10, logprobs=2, ignore_eos=True)
    choice = got["choices"][0]
    lists = choice["logprobs"]
    assert got["usage"]["completion_tokens"] == 10
    assert [len(values) for values in lists.values()] == [10] * 4
    assert "".join(lists["tokens"]) == choice["text"]
    for token, offset in zip(lists["tokens"], lists["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)
    for token, logprob, top in zip(lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True):
        assert top[token] == logprob == max(top.values())
        assert len(top) == 2


def test_prompts_as_text_as_ids_and_in_lists_are_answered_alike(server, tokenizer) -> None:
    other = "The three primary colours are"
    alone = [server.complete(prompt, max_tokens=8)["choices"][0]["text"] for prompt in (STORY, other)]
    ids = [tokenizer.encode(prompt) for prompt in (STORY, other)]
    for prompts in ([STORY, other], ids):
        got = server.complete(prompts, max_tokens=8)
        assert [choice["text"] for choice in got["choices"]] == alone
        assert got["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert server.complete(ids[1], max_tokens=8)["choices"][0]["text"] == alone[1]


def test_a_seed_repeats_a_sampled_answer(server) -> None:
    fields = {"temperature": 1, "top_p": 0.9, "top_k": 50, "min_p": 0.01, "max_tokens": 12}
    first, again, other = (server.complete(STORY, seed=seed, **fields)["choices"] for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_lengths(server) -> None:
    by_default = server.complete(STORY, ignore_eos=True)
    assert by_default["usage"]["completion_tokens"] == 16
    assert by_default["choices"][0]["finish_reason"] == "length"
    assert server.complete(STORY, max_tokens=1)["usage"]["completion_tokens"] == 1


def test_model_pages(server, client: openai.OpenAI, model: str) -> None:
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")
    assert server.http.get("/health").status_code == 200
