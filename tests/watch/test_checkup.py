"""The seven questions, on real exposition text, a real server and a real log."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from endpoints import METRICS, serving

from pageinn.cli import main
from pageinn.watch.checkup import Answer, Heard, checkup
from pageinn.watch.engines import sample_of
from pageinn.watch.exposition import parse
from pageinn.watch.sample import Sample

VLLM = (METRICS / "vllm_datadog_fixture_metrics.prom").read_text()
SGLANG = (METRICS / "sglang_docs_metrics.prom").read_text()
LOG = Path(__file__).parents[1] / "data" / "miniswe" / "inputs.jsonl"
QUESTIONS = ["users", "repeats", "keeping", "variable", "fp8", "preemption", "tenants"]


def of(text: str, **changes: object) -> Sample:
    return replace(sample_of(parse(text), 7.0), **changes)  # type: ignore[arg-type]


def ask(sample: Sample, log: Heard | None = None, keys: bool | None = None) -> dict[str, Answer]:
    found = checkup([sample, replace(sample, time=sample.time + 5)], log, keys)
    assert [answer.key for answer in found] == QUESTIONS
    return {answer.key: answer for answer in found}


def test_vllm() -> None:
    """By hand: 7,281 blocks of 16 are 116,496 tokens; one request of 5 + 7; 64 of 117 found, with caching off."""
    got = ask(of(VLLM))
    assert {key: answer.answer for key, answer in got.items()} == {
        "users": "yes",
        "repeats": "no",
        "keeping": "no",
        "variable": "not known",
        "fp8": "no",
        "preemption": "yes",
        "tenants": "no",
    }
    assert got["users"].figure.startswith("9,708 at a mean of 12 tokens, in 116,496 tokens of cache")
    assert got["keeping"].figure == "hit rate 54.7 % since the start"
    assert got["fp8"].figure.startswith("cache in auto (the model's own)")


def test_sglang() -> None:
    """123,859 tokens are 28 %; (8,128,902 + 7,557,572) / 11,228 tokens a request; many wait with room in the cache."""
    got = ask(of(SGLANG))
    assert got["users"].figure.startswith("316 at a mean of 1,397 tokens, in 442,354 tokens of cache; 162 are running")
    assert got["keeping"].answer == "yes"
    assert "by the engine's own gauge" in got["keeping"].figure
    assert got["variable"].answer == "not known"
    assert "0.8 % of prompts of 724 tokens would fit a yes" in got["variable"].figure
    assert got["fp8"].answer == "not known"
    assert "something else limits it" in got["fp8"].next
    assert (got["preemption"].answer, got["tenants"].answer) == ("not known", "no")


PAGEINN = Sample(
    "pageinn",
    7.0,
    queries=1000.0,
    hits=850.0,
    prompt_tokens=1000.0,
    generated=200.0,
    requests=10.0,
    preemptions=2.0,
    usage=0.9,
    running=4.0,
    waiting=2.0,
    facts={"num_blocks": "150", "block_size": "16", "cache_dtype": "bfloat16", "prefix_cache": "keep"},
)


def test_pageinn_under_pressure_is_told_what_fp8_would_bring() -> None:
    got = ask(PAGEINN, keys=True)
    assert got["users"].figure.startswith("20 at a mean of 120 tokens")
    assert (got["keeping"].answer, got["tenants"].answer) == ("yes", "yes")
    assert "20 users would become about 40" in got["fp8"].next


@pytest.mark.parametrize(("keys", "answer"), [(True, "yes"), (False, "no"), (None, "not known")])
def test_pageinn_is_keyed_if_it_asks_for_keys(keys: bool | None, answer: str) -> None:
    assert ask(PAGEINN, keys=keys)["tenants"].answer == answer


@pytest.mark.parametrize(("dtype", "answer"), [("fp8_e4m3", "yes"), ("int8", "yes"), ("float16", "no")])
def test_the_caches_dtype(dtype: str, answer: str) -> None:
    sample = replace(PAGEINN, facts={**PAGEINN.facts, "cache_dtype": dtype})
    assert ask(sample)["fp8"].answer == answer


@pytest.mark.parametrize(("mode", "answer"), [("keep", "yes"), ("live", "no"), ("off", "no")])
def test_keeping(mode: str, answer: str) -> None:
    sample = replace(PAGEINN, facts={**PAGEINN.facts, "prefix_cache": mode})
    assert ask(sample)["keeping"].answer == answer


def test_an_idle_server_has_no_rate() -> None:
    """Field case F7."""
    got = ask(Sample("pageinn", 7.0, queries=0.0, hits=0.0, requests=0.0, facts=PAGEINN.facts))
    assert got["keeping"].figure == "no queries yet: no rate"
    assert got["users"].answer == "not known"
    assert got["repeats"].figure == "nothing is known yet"


def test_a_log_answers_what_metrics_cannot() -> None:
    faulty = Heard(200, 0.92, ("clock, to the second in the system prompt, 180 requests",), 0.95)
    got = ask(replace(PAGEINN, hits=120.0), faulty)
    assert got["repeats"].answer == "yes"
    assert got["repeats"].figure.startswith("92.0 % of the prompt tokens of 200 logged requests")
    assert "the rest is lost" in got["repeats"].next
    assert got["variable"].answer == "yes"
    assert "clock, to the second" in got["variable"].figure
    clean = ask(PAGEINN, Heard(200, 0.9, (), None))
    assert clean["repeats"].next == "nothing: the server finds what there is"
    assert clean["variable"].answer == "no"
    lengths = ask(PAGEINN, Heard(200, None, None, None))
    assert (lengths["repeats"].answer, lengths["variable"].answer) == ("not known", "not known")


def test_llama_server_says_little_and_is_asked_no_more() -> None:
    got = ask(Sample("llamacpp", 7.0, computed=5.0, generated=5.0))
    assert got["keeping"].figure == "llama-server does not count hits"
    assert (got["preemption"].answer, got["tenants"].answer) == ("no", "no")


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["checkup", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_with_a_real_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """6,905 of 14,553 tokens of the mini-swe slice repeat; with a clock put at each prompt's head, that is named."""
    with serving(VLLM) as endpoint:
        plain = (endpoint.url, "--interval", "0.1", "--json", "--log", str(LOG))
        code, out, _ = run(capsys, *plain)
        got = {answer["key"]: answer for answer in json.loads(out)["answers"]}
        assert code == 0
        assert got["repeats"]["figure"].startswith("47.4 % of the prompt tokens of 8 logged requests")
        assert got["variable"]["answer"] == "no"
        rows = [json.loads(line) for line in LOG.read_text().splitlines()]
        faulty = tmp_path / "faulty.jsonl"
        with faulty.open("w") as file:
            for at, row in enumerate(rows):
                clock = f"Current time: 2026-03-04 10:0{at}:1{at}\n"
                file.write(json.dumps({**row, "input": clock + row["input"]}) + "\n")
        code, out, _ = run(capsys, *plain[:-1], str(faulty))
        got = {answer["key"]: answer for answer in json.loads(out)["answers"]}
    assert got["variable"]["answer"] == "yes"
    assert "clock" in got["variable"]["figure"]


def test_the_commands_text_is_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    for text in (VLLM, SGLANG):
        with serving(text) as endpoint:
            code, out, _ = run(capsys, endpoint.url, "--interval", "0.1")
        assert code == 0
        assert max(map(len, out.splitlines())) <= 80
        assert [line[0] for line in out.splitlines() if line[:1].isdigit()] == list("1234567")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (lambda url: ("http://127.0.0.1:1",), "cannot reach http://127.0.0.1:1/metrics"),
        (lambda url: (url, "--log", "/nowhere.jsonl"), "/nowhere.jsonl"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    capsys: pytest.CaptureFixture[str], args: Callable[[str], tuple[str, ...]], said: str
) -> None:
    with serving(VLLM) as endpoint:
        code, out, err = run(capsys, *args(endpoint.url))
    assert (code, out) == (1, "")
    assert said in err
    assert err.count("\n") == 1
