"""`pageinn drift` as a user runs it, on a tiny model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pageinn.cli import drift as command
from pageinn.cli.main import main
from pageinn.drift.forced import Chunk, Contender, compare
from pageinn.kernels.backend import I32

LENGTH = 1100


def run(tiny_path: Path, tmp_path: Path, *flags: str) -> int:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"messages": [{"role": "user", "content": "the rain in the"}]}\nnot json\n')
    base = ["drift", str(tiny_path), "--quantization", "none", "--max-model-len", str(LENGTH), "--threads", "2"]
    return main([*base, "--prompts", str(prompts), "--answer-tokens", "8", *flags])


def test_tables_fit_a_terminal_and_say_what_is_what(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = "float32,float16,bfloat16,fp8,fp8_e5m2,int8"
    assert run(tiny_path, tmp_path, "--dtypes", every, "--plot", str(tmp_path / "out.png")) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[:2] == [
        "tiny, float32 weights, against a cache in float32",
        f"{LENGTH - 1:,} positions of a text of up to {LENGTH:,} tokens",
    ]
    assert "float32   identical" in lines
    assert "fp8_e4m3  no drift seen" in lines
    assert any(line.startswith("fp8_e4m3") and "2.000x" in line for line in lines)
    assert any(line.startswith("int8 ") and "1.778x" in line for line in lines)
    assert "pageinn: left out: prompt 2" in captured.err
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_json_has_every_figure(tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiny_path, tmp_path, "--dtypes", "fp8", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["reference"] == "float32"
    assert not report["interrupted"]
    row = report["dtypes"][0]
    assert row["dtype"] == "fp8_e4m3"
    assert sum(each["positions"] for each in row["buckets"]) == row["positions"] == LENGTH - 1
    total = sum(each["kl"] * each["positions"] for each in row["buckets"])
    assert row["kl"] == pytest.approx(total / row["positions"])
    assert row["trend"]["low"] < row["trend"]["per_doubling"] < row["trend"]["high"]
    assert row["verdict"] == {"kind": "no drift seen", "position": None, "words": "no drift seen"}
    assert len(row["answers"]) == 1


def test_fail_on_ends_with_a_status_of_its_own(tiny_path: Path, tmp_path: Path) -> None:
    assert run(tiny_path, tmp_path, "--dtypes", "bfloat16", "--fail-on", "drift") == 0
    # A later flag of the same name wins: too short to tell is not good enough.
    assert run(tiny_path, tmp_path, "--dtypes", "bfloat16", "--fail-on", "drift", "--max-model-len", "200") == 3
    assert run(tiny_path, tmp_path, "--dtypes", "bfloat16", "--max-model-len", "200") == 0


def test_a_run_cut_short_reports_what_there_is(
    tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cut(*given: Contender | Sequence[Contender] | Sequence[I32] | int) -> Iterator[Chunk]:
        for number, chunk in enumerate(compare(*given)):  # type: ignore[arg-type]  # handed on as they are
            if number == 2:
                raise KeyboardInterrupt
            yield chunk

    monkeypatch.setattr(command, "compare", cut)
    assert run(tiny_path, tmp_path, "--dtypes", "fp8,int8") == 130
    out = capsys.readouterr().out
    assert "256 positions" in out
    assert "cut short" in out
    assert "Greedy answers" not in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dtypes", "int2"], "--kv-cache-dtype int2 is not supported by the cpu backend"),
        (["--max-model-len", "4096"], "--max-model-len is 4096, and the model goes to 2048; ask for less"),
        (["--corpus", "nowhere.txt"], "--corpus nowhere.txt: No such file or directory; name a plain text file"),
        (["--prompts", "nowhere.jsonl"], "--prompts nowhere.jsonl"),
    ],
)
def test_bad_input_gets_one_line(
    tiny_path: Path, tmp_path: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tiny_path, tmp_path, *flags) == 1
    errors = capsys.readouterr().err.splitlines()
    assert errors[-1].startswith(f"pageinn: {message}")
