"""`pageinn measure` on real slices, against few lines that know nothing of trees."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pageinn.cli import main
from pageinn.model.gguf_file import GGUFFile
from pageinn.text.tokenizer import Tokenizer

DATA = Path(__file__).parents[1] / "data"
MOONCAKE = DATA / "mooncake" / "conversation_200.jsonl"
AGENTS = [DATA / "claude_code" / "trace_0026.json", DATA / "claude_code" / "trace_0277.json"]
MINISWE = DATA / "miniswe" / "inputs.jsonl"


def measured(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    assert main(["measure", "--json", *map(str, words)]) == 0
    return json.loads(capsys.readouterr().out)


def rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_mooncake(capsys: pytest.CaptureFixture[str]) -> None:
    """An id that was there before is a hit, up to the first that was not; the last block has what is left."""
    seen: set[int] = set()
    tokens = repeated = aligned = 0
    for row in rows(MOONCAKE):
        hits = next((n for n, each in enumerate(row["hash_ids"]) if each not in seen), len(row["hash_ids"]))
        tokens += row["input_length"]
        repeated += min(512 * hits, row["input_length"])
        aligned += 512 * min(hits, row["input_length"] // 512)
        seen |= set(row["hash_ids"])
    found = measured(capsys, MOONCAKE)
    assert found["reuse"]["by_token"]["tokens"] == tokens
    assert found["reuse"]["by_token"]["repeated"] == repeated
    assert found["reuse"]["aligned"]["repeated"] == aligned
    assert found["log"]["block_size"] == 512


def test_mooncake_curve(capsys: pytest.CaptureFixture[str]) -> None:
    """Least recently used, full blocks only, a list."""
    sizes = [250, 500, 1000]
    found = measured(capsys, MOONCAKE, "--cache-tokens", ",".join(str(512 * size) for size in sizes))
    assert [point["blocks"] for point in found["curve"]["points"]] == sizes
    for point in found["curve"]["points"]:
        recent: list[int] = []
        hits = 0
        for row in rows(MOONCAKE):
            path = row["hash_ids"][: row["input_length"] // 512]
            hits += next((n for n, each in enumerate(path) if each not in recent), len(path))
            recent = (path + [each for each in recent if each not in path])[: point["blocks"]]
        assert point["lru"] == 512 * hits


def test_sizes_in_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """Qwen3-0.6B: 28 layers, 8 heads of 128, keys and values of 2 bytes: 114,688 bytes a token."""
    found = measured(capsys, MOONCAKE, "--kv-model", "Qwen/Qwen3-0.6B", "--cache-memory", "50GiB,100GiB")
    assert [point["blocks"] for point in found["curve"]["points"]] == [
        (size << 30) // (28 * 2 * 8 * 128 * 2) // 512 for size in (50, 100)
    ]
    assert found["curve"]["points"][0]["bytes"] == pytest.approx(50 << 30, rel=0.01)
    assert main(["measure", str(MOONCAKE), "--cache-memory", "50GiB"]) == 2
    assert "--kv-model" in capsys.readouterr().err


def test_the_last_half_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """What a cache finds once it is warm: the same run, counted from the middle on."""
    found = measured(capsys, MOONCAKE, "--cache-tokens", str(512 * 500))
    recent: list[int] = []
    hits = tokens = 0
    for number, row in enumerate(rows(MOONCAKE)):
        path = row["hash_ids"][: row["input_length"] // 512]
        if number >= 100:
            hits += 512 * next((n for n, each in enumerate(path) if each not in recent), len(path))
            tokens += row["input_length"]
        recent = (path + [each for each in recent if each not in path])[:500]
    assert found["curve"]["points"][0]["lru_warm_share"] == hits / tokens


def requests_of(session: dict[str, Any], start: float = 0.0) -> Iterator[tuple[float, dict[str, Any]]]:
    for row in session["requests"]:
        if "requests" in row:
            yield from requests_of(row, start + row["t"])
        else:
            yield start + row["t"], row


@pytest.mark.parametrize("by_model", [True, False])
def test_coding_agents_with_sub_agents(capsys: pytest.CaptureFixture[str], by_model: bool) -> None:
    """Ids are a session's own; a model reuses only what the same model computed."""
    tokens = repeated = 0
    for path in AGENTS:
        seen: set[tuple[str, int]] = set()
        for _, row in sorted(requests_of(json.loads(path.read_text())), key=lambda each: each[0]):
            ids = [(row["model"] if by_model else "", each) for each in row["hash_ids"]]
            hits = next((n for n, each in enumerate(ids) if each not in seen), len(ids))
            tokens += row["in"]
            repeated += 64 * hits
            seen |= set(ids)
    found = measured(capsys, *AGENTS)
    assert found["reuse"]["by_token"]["tokens"] == tokens
    if by_model:
        assert found["reuse"]["by_token"]["repeated"] == repeated
        assert found["reuse"]["aligned"]["repeated"] == repeated
    assert found["reuse"]["across"]["model" if by_model else "all"]["repeated"] == repeated


def test_coding_agents_live(capsys: pytest.CaptureFixture[str]) -> None:
    """Only what a request that still runs has. One session, whose durations are all in the trace."""
    path = AGENTS[1]
    requests = sorted(requests_of(json.loads(path.read_text())), key=lambda each: each[0])
    live = 0
    for number, (time, row) in enumerate(requests):
        running = [
            other
            for start, other in requests[:number]
            if start + other["api_time"] > time and other["model"] == row["model"]
        ]
        held = {each for other in running for each in other["hash_ids"]}
        live += 64 * next((n for n, each in enumerate(row["hash_ids"]) if each not in held), len(row["hash_ids"]))
    found = measured(capsys, path)
    assert found["reuse"]["by_token"]["live"] == live
    assert found["reuse"]["by_token"]["kept"] == found["reuse"]["by_token"]["repeated"] - live


def test_agent_prompts(capsys: pytest.CaptureFixture[str], smollm2_path: Path) -> None:
    """All pairs of prompts, by the model's own tokens; with answers kept, prompts and answers."""
    tokenizer = Tokenizer(GGUFFile(smollm2_path).tokenizer)
    prompts = [tokenizer.encode(row["input"]) for row in rows(MINISWE)]
    answers = [tokenizer.encode(row["output"], add_special=False) for row in rows(MINISWE)]
    for words, kept in (
        ([], prompts),
        (["--answers"], [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]),
    ):
        repeated = [
            max((common(prompt, earlier) for earlier in kept[:number]), default=0)
            for number, prompt in enumerate(prompts)
        ]
        found = measured(capsys, MINISWE, "--model", smollm2_path, *words)
        assert found["reuse"]["by_token"]["tokens"] == sum(map(len, prompts))
        assert found["reuse"]["by_token"]["repeated"] == sum(repeated)
        assert found["reuse"]["aligned"]["repeated"] == sum(16 * (known // 16) for known in repeated)


def common(a: list[int], b: list[int]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def log_of(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_tenants(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Two tenants with the same prompt share nothing, unless they are let; the framed pair of C4 stays apart."""
    ids = list(range(40))
    log = log_of(
        tmp_path / "log.jsonl", *({"tenant": tenant, "token_ids": ids} for tenant in ("org_1", "org_12", "org_1"))
    )
    found = measured(capsys, log)
    assert found["reuse"]["by_token"]["repeated"] == 40
    assert found["reuse"]["across"]["model"]["repeated"] == 80
    assert "public prefix" in found["verdict"]["says"][-1]
    assert {each["tenant"]: each["repeated"] for each in found["tenants"]} == {"org_1": 40, "org_12": 0}
    shared = measured(capsys, log, "--share-tenants")
    assert shared["reuse"]["by_token"]["repeated"] == 80
    assert "public prefix" not in shared["verdict"]["says"][-1]


def test_below_granularity(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """F4: prompts shorter than a block repeat, and no full block of them can be kept: said, not blamed."""
    log = log_of(tmp_path / "log.jsonl", *[{"token_ids": [1, 2, 3]}] * 5)
    found = measured(capsys, log)
    assert found["reuse"]["below_one_block"] == 5
    assert found["reuse"]["by_token"]["repeated"] == 12
    assert found["reuse"]["aligned"]["repeated"] == 0
    assert main(["measure", str(log)]) == 0
    assert "below granularity" in capsys.readouterr().out


def test_no_queries_no_rate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """F7: a log that knows lengths only has no rate, not one of 0 %."""
    (tmp_path / "azure.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:44.18,6,1\n"
    )
    found = measured(capsys, tmp_path / "azure.csv")
    assert "reuse" not in found
    assert found["log"]["length_only"] == {"requests": 2, "prompt_tokens": 380, "seconds": 2.5}
    assert "nothing of reuse can be claimed" in found["verdict"]["says"][0]


def test_what_providers_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Anthropic: read / (input + read + creation)."""
    found = measured(capsys, DATA / "anthropic_cache" / "test_prompt_cache.yaml")
    assert found["provider"]["share"] == 18131 / (2 * (4 + 18131))
    assert found["provider"]["written"] == 18131


def test_what_engines_logged(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(capsys, *sorted((DATA / "engine_logs").glob("*lines.txt")))
    sglang = next(each for each in found["engine"] if each["engine"] == "sglang")
    cached = 0 + 291 + 2753 + 897 + 523 + 632 + 1832 + 888 + 871 + 854
    assert sglang["weighted"] == cached / (cached + 2062 + 6 * 8192 + 3 * 2048)
    assert {(each["engine"], each["tier"]) for each in found["engine"]} == {
        ("sglang", ""),
        ("vllm", "gpu"),
        ("vllm", "cpu"),
    }


def test_a_llama_servers_counts(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(capsys, DATA / "engine_logs" / "llamacpp_lines.txt")
    assert found["provider"]["cached"] == 73355
    assert found["provider"]["share"] == 73355 / 73450


@pytest.mark.parametrize("path", [MOONCAKE, *AGENTS, MINISWE, *sorted((DATA / "engine_logs").glob("*lines.txt"))])
def test_the_terminal_has_80_columns(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    assert main(["measure", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "Verdict" in lines


def test_the_page_stands_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    measured(capsys, MOONCAKE, "--html", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 3
    assert not any(word in page for word in ("http:", "https:", "<script", "@import", "url("))


def test_rates_over_time(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each point is weighed by the tokens of its lines."""
    line = "[2024-11-29 10:28:{:02d} TP0] Prefill batch. #new-seq: 2, #new-token: {}, #cached-token: {}, token usage: 0"
    lines = [line.format(n % 60, 100, 300 if n >= 60 else 0) for n in range(120)]
    (tmp_path / "sglang.log").write_text("\n".join(lines))
    (engine,) = measured(capsys, tmp_path / "sglang.log", "--html", tmp_path / "r.html")["engine"]
    assert [point["rate"] for point in engine["series"]] == [0.0] * 30 + [0.75] * 30
    assert main(["measure", str(tmp_path / "sglang.log")]) == 0
    assert "what its engine counted is above" in " ".join(capsys.readouterr().out.split())
    assert engine["weighted"] == 60 * 300 / (60 * 100 + 60 * 400)
    assert (tmp_path / "r.html").read_text().count("<svg") == 1


def keys(value: Any) -> set[str]:
    if isinstance(value, list):
        return {key for each in value for key in keys(each)}
    if isinstance(value, dict):
        return {*value, *keys(list(value.values()))}
    return set()


def test_every_field_of_the_json_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "traffic.md").read_text().split("### `--json`")[1]
    documented = {name for word in docs.split("`")[1::2] for name in word.split(".")}
    for paths in (
        [MOONCAKE],
        AGENTS,
        [DATA / "anthropic_cache" / "test_prompt_cache.yaml"],
        [DATA / "engine_logs" / "sglang_lines.txt"],
    ):
        found = measured(capsys, *paths)
        found["log"]["formats"] = {}
        assert keys(found) <= documented


def test_text_of_prompts_is_in_no_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = log_of(tmp_path / "log.jsonl", *[{"prompt": "hunter2 " * 50, "output": "hunter3"}] * 3)
    assert main(["measure", str(log), "--json", "--html", str(tmp_path / "report.html")]) == 0
    assert "hunter" not in capsys.readouterr().out + (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("target", "word"), [("ttft", "first token"), ("capacity", "prefill serves"), ("latency", "total")]
)
def test_what_is_claimed(capsys: pytest.CaptureFixture[str], target: str, word: str) -> None:
    found = measured(capsys, MOONCAKE, "--target", target)
    assert found["verdict"]["target"] == target
    assert word in found["verdict"]["says"][1]


def test_a_prefill_gain_moves_long_answers_little(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Three quarters of the prompts repeat: a 4-fold prefill gain, and by hand 3.5 % of answers of 300 tokens."""
    rows = [{"time": n, "usage": {"completion_tokens": 300}, "token_ids": list(range(1500))} for n in range(3)]
    rows.append({"time": 3, "usage": {"completion_tokens": 300}, "token_ids": [9, *range(1499)]})
    rows += [{"time": 4 + n, "usage": {"completion_tokens": 300}, "token_ids": list(range(1500))} for n in range(4)]
    found = measured(capsys, log_of(tmp_path / "log.jsonl", *rows))
    # 8 prompts of 0.3 s; two are computed whole, of the others one token: 2 * 1500 + 6 of 12,000.
    assert found["gains"]["ttft"] == pytest.approx(12000 / 3006)
    assert found["gains"]["latency"] == pytest.approx((8 * 0.3 + 8 * 6) / (3006 / 5000 + 8 * 6))


def test_errors_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["measure", str(tmp_path / "missing.jsonl")]) == 1
    assert capsys.readouterr().err.startswith(f"pageinn: {tmp_path}/missing.jsonl: No such file")
    log = log_of(tmp_path / "log.jsonl", rows(MOONCAKE)[0], {"prompt": "a"})
    assert main(["measure", str(log)]) == 1
    assert "a text among block ids; measure them apart" in capsys.readouterr().err
    assert main(["measure", str(MINISWE), "--model", str(tmp_path / "no.gguf")]) == 1
    assert "no.gguf" in capsys.readouterr().err
    assert main(["measure", str(MOONCAKE), str(AGENTS[0])]) == 1
    assert "blocks of 64 tokens among blocks of 512" in capsys.readouterr().err


def test_an_id_of_more_than_64_bits_is_a_broken_row(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    good = rows(MOONCAKE)[0]
    found = measured(capsys, log_of(tmp_path / "log.jsonl", good, {**good, "hash_ids": [2**80] * 14}, good))
    assert (found["log"]["rows"], found["log"]["broken"]) == (2, 1)
    assert found["reuse"]["by_token"]["repeated"] == good["input_length"]


def test_a_size_below_the_largest_request_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(capsys, MOONCAKE, "--cache-tokens", "512")
    assert found["curve"]["points"] == []


def test_the_kernels_are_never_loaded(smollm2_path: Path) -> None:
    program = (
        "import sys; from pageinn.cli import main; "
        f"code = main(['measure', {str(MINISWE)!r}, '--model', {str(smollm2_path)!r}]); "
        "sys.exit(code or ('pageinn.kernels._cpu' in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
