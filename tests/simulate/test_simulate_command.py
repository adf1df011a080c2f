"""`pageinn simulate` on a small trace: what is printed is what the simulation says, 80 columns wide."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pageinn.cli import main
from pageinn.simulate.sweep import nearest


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three requests of four blocks of 512; the second repeats three of the first's, the third comes much later."""
    rows = [
        {"timestamp": 0, "input_length": 2048, "output_length": 10, "hash_ids": [0, 1, 2, 3]},
        {"timestamp": 60_000, "input_length": 2048, "output_length": 20, "hash_ids": [0, 1, 2, 9]},
        {"timestamp": 900_000, "input_length": 2048, "output_length": 10, "hash_ids": [0, 1, 2, 3]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    assert main(["simulate", *map(str, args)]) == 0
    return capsys.readouterr().out


def test_figures_are_those_of_the_trace(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 6,144 prompt tokens, 1,536 are found the second time, and all but the last token the third: 3,583."""
    told = json.loads(run(capsys, trace, "--json"))
    (row,) = told["rows"]
    assert row["hit_rate"] == pytest.approx((1536 + 2047) / 6144)
    assert (row["served"], row["refused"], row["preemptions"]) == (3, 0, 0)
    assert row["throughput"] == pytest.approx(40 / row["seconds"])


def test_engines_differ_by_their_rules(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM stops before the last token's block; OpenAI and Anthropic have forgotten by the third request.

    OpenAI reuses 1,024 + 4 x 128 = 1,536 of the second; Anthropic nothing, as it begins with no whole earlier prompt.
    The second request takes over the first's slot in llama.cpp, so that the third finds 1,536 too.
    """
    told = json.loads(run(capsys, trace, "--json", "--engine", "vllm,sglang,llama.cpp,openai,anthropic"))
    found = {row["settings"]["engine"]: row["hit_rate"] * 6144 for row in told["rows"]}
    expected = {
        "vllm": 1536 + 2032,
        "sglang": 1536 + 2047,
        "llama.cpp": 1536 + 1536,
        "openai": 1536,
        "anthropic": 0,
    }
    assert found == pytest.approx(expected)


def test_breakpoints_of_a_log_say_what_anthropic_keeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three questions behind one system prompt of some 2,000 words: it is kept where it is marked, and only there."""
    system = {"type": "text", "text": "word " * 2000}
    marked = {**system, "cache_control": {"type": "ephemeral"}}
    rates = {}
    for name, head in (("marked", marked), ("unmarked", system)):
        path = tmp_path / name
        bodies = [{"model": "c", "system": [head], "messages": [{"role": "user", "content": ask}]} for ask in "abc"]
        path.write_text("".join(json.dumps(each) + "\n" for each in bodies))
        rates[name] = json.loads(run(capsys, path, "--json", "--engine", "anthropic"))["rows"][0]["hit_rate"]
    assert rates["marked"] == pytest.approx(2 / 3, abs=0.01)
    assert rates["unmarked"] == 0.0


def test_all_combinations_are_tried_and_fit_80_columns(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(
        capsys,
        trace,
        *("--kv-cache-memory-bytes", "1GiB,2GiB,20GiB", "--block-size", "16,32", "--replicas", "1,2"),
        *("--routing", "session,prefix", "--processes", "2", "--engine", "pageinn,openai"),
    )
    assert max(map(len, text.splitlines())) <= 80
    # 3 caches x 2 block sizes x (1 replica, or 2 with either routing), and a rule.
    assert "#19" in text
    assert "#20" not in text


def test_without_requests_there_is_nothing_to_simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "[2025-07-01 10:00:00] Prefill batch. #new-seq: 1, #new-token: 10, #cached-token: 5, token usage: 0.0\n"
    path = tmp_path / "sglang.log"
    path.write_text(line)
    assert main(["simulate", str(path)]) == 1
    assert capsys.readouterr().err == (
        f"pageinn: {path}: no request that could be simulated; it has rates of an engine, not its requests\n"
    )


def test_what_is_not_known_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lengths claim no reuse, and one engine stands for all models of the log. An empty prompt breaks no rule."""
    path = tmp_path / "lengths.csv"
    path.write_text("time,model,prompt_tokens,output_tokens\n0,a,5000,1\n9,b,5000,1\n10,b,0,1\n")
    told = json.loads(run(capsys, path, "--json", "--engine", "pageinn,llama.cpp,openai,anthropic"))
    assert "note: 3 prompts known by their length only share nothing" in told["about"]
    assert "note: requests of 2 models are all served by one, which they share" in told["about"]
    assert [row["hit_rate"] for row in told["rows"]] == [0.0] * 4


def test_two_processes_say_what_one_says(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = (trace, "--json", "--kv-cache-memory-bytes", "1GiB,2GiB", "--prefix-cache", "off,keep")
    assert run(capsys, *args, "--processes", 1) == run(capsys, *args, "--processes", 2)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--card", "h1000"], "h1000"),
        (["--as", "nothing-1b"], "nothing-1b"),
        (["--kv-cache-memory-bytes", "1KiB"], "less than one block"),
        (["--as", "llama-3.1-70b", "--card", "t4"], "--tensor-parallel-size"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(
    trace: Path, capsys: pytest.CaptureFixture[str], args: list[str], said: str
) -> None:
    assert main(["simulate", str(trace), *args]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_quantiles_are_of_nearest_rank() -> None:
    """Of 1 to 100, 50, 95 and 99; of one value, that one."""
    ordered = [float(value) for value in range(1, 101)]
    assert [nearest(ordered, share) for share in (0.5, 0.95, 0.99)] == [50.0, 95.0, 99.0]
    assert nearest([7.0], 0.5) == 7.0


def test_the_page_says_what_the_tables_say(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is fetched, each setting has its bar, and names are escaped."""
    page = tmp_path / "report.html"
    run(capsys, trace, "--html", page, "--kv-cache-memory-bytes", "1GiB,20GiB", "--engine", "pageinn,openai")
    html = page.read_text()
    assert "58.3 %" in html  # (1,536 + 2,047) of 6,144
    assert html.count("<rect") == 3 + 2 + 2
    assert "http" not in html
    assert "<script" not in html
