"""`pageinn watch` over HTTP: cron's exit codes, the webhook, the history file, the screen."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from endpoints import METRICS, serving, vllm_text

from pageinn.cli import main
from pageinn.watch.history import load, save
from pageinn.watch.sample import Sample
from pageinn.watch.view import screen

VLLM = (METRICS / "vllm_datadog_fixture_metrics.prom").read_text()
SGLANG = (METRICS / "sglang_docs_metrics.prom").read_text()


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["watch", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(("text", "engine"), [(VLLM, "vllm"), (SGLANG, "sglang")])
def test_once_is_calm_on_real_text(capsys: pytest.CaptureFixture[str], text: str, engine: str) -> None:
    with serving(text) as endpoint:
        code, out, err = run(capsys, endpoint.url, "--once", "--json", "--interval", "0.1")
    got = json.loads(out)
    assert (code, err) == (0, "")
    assert set(got) == {"url", "engine", "time", "window_seconds", "window", "sample", "alarms"}
    assert (got["engine"], got["alarms"]) == (engine, [])


def test_once_with_a_history_raises_the_drop_and_tells_the_webhook(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "history.jsonl"
    with serving(vllm_text(queries=500_000, hits=400_000, requests=5000)) as endpoint:
        url = endpoint.url + "/metrics"
        now = time.time()
        # 85 % until two minutes ago, 12 % since; the scrape goes on from there.
        old, queries, hits = [], 0.0, 0.0
        for at in range(40):
            queries, hits = queries + 10_000, hits + (8500 if at < 36 else 1200)
            old.append(Sample("vllm", now - 30 * (40 - at), queries=queries, hits=hits, requests=100.0 * at))
        save(path, url, old)
        endpoint.text = vllm_text(queries + 10_000, hits + 1200, requests=4000)
        args = (endpoint.url, "--once", "--json", "--history", str(path), "--webhook", endpoint.url + "/hook")
        code, out, _ = run(capsys, *args)
        assert code == 3
        (alarm,) = json.loads(out)["alarms"]
        assert alarm["key"] == "hit_rate"
        assert alarm["line"].startswith("hit rate 12 %, 85 % before")
        (posted,) = endpoint.posted
        assert posted["url"] == url
        assert [one["alarm"] for one in posted["raised"]] == ["hit_rate"]  # type: ignore[attr-defined]
    assert len(load(path, url, time.time())) == 41


def test_once_without_json_is_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(VLLM) as endpoint:
        code, out, _ = run(capsys, endpoint.url, "--once", "--interval", "0.1")
    assert code == 0
    assert out.startswith("vLLM at http://127.0.0.1")
    assert "no alarm" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("<html>", 200, "not Prometheus' text format"),
        ("up 1\n", 200, "of no engine that is known"),
        ("", 401, "wants a key; give it in the variable PAGEINN_API_KEY"),
        ("", 404, "SGLang serves it with --enable-metrics"),
        ("", 500, "answers 500"),
    ],
)
def test_what_cannot_be_watched(capsys: pytest.CaptureFixture[str], text: str, status: int, said: str) -> None:
    with serving(text, status) as endpoint:
        code, out, err = run(capsys, endpoint.url, "--once")
        assert (code, out) == (1, "")
        assert said in err
        assert endpoint.url in err
        assert err.count("\n") == 1


def test_nobody_there_and_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "http://127.0.0.1:1", "--once")
    assert (code, "cannot reach http://127.0.0.1:1/metrics" in err) == (1, True)
    assert run(capsys)[0] == 2
    with pytest.raises(SystemExit, match="2"):
        main(["watch", "x", "--interval", "0"])


def test_the_key_is_taken_from_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEINN_API_KEY", "s3cret")
    with serving(VLLM) as endpoint:
        run(capsys, endpoint.url, "--once", "--interval", "0.1")
        assert set(endpoint.keys) == {"Bearer s3cret"}


def test_a_webhook_that_fails_does_not_end_the_watch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with serving(vllm_text(1000, 500, requests=10, preemptions=50)) as endpoint:
        url = endpoint.url + "/metrics"
        save(tmp_path / "h", url, [Sample("vllm", time.time() - 60, preemptions=0.0, requests=0.0)])
        hook = "http://127.0.0.1:1/hook"
        code, _, err = run(capsys, endpoint.url, "--once", "--history", str(tmp_path / "h"), "--webhook", hook)
    assert code == 3
    assert err.startswith("pageinn: the webhook cannot be reached")


def test_a_history_with_broken_lines_and_other_servers(tmp_path: Path) -> None:
    path = tmp_path / "h"
    now = time.time()
    save(path, "http://a/metrics", [Sample("vllm", now - 5, queries=1.0)])
    save(path, "http://b/metrics", [Sample("sglang", now - 4), Sample("sglang", now - 9000)])
    path.write_text("half a li\n[]\n" + path.read_text() + '{"url": "http://b/metrics", "engine": 3}\n')
    assert load(path, "http://a/metrics", now) == [Sample("vllm", now - 5, queries=1.0)]
    assert load(path, "http://b/metrics", now) == [Sample("sglang", now - 4)]
    assert load(tmp_path / "none", "http://a/metrics", now) == []


def test_a_history_that_cannot_be_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(VLLM) as endpoint:
        code, _, err = run(capsys, endpoint.url, "--once", "--interval", "0.1", "--history", "/nowhere/h")
    assert (code, err) == (1, "pageinn: /nowhere/h: No such file or directory\n")


def test_live_without_a_terminal_prints_alarms_alone() -> None:
    with serving(vllm_text(1000, 500, requests=10)) as endpoint:
        command = [sys.executable, "-m", "pageinn.cli", "watch", endpoint.url, "--interval", "0.2"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            # The second look begins when the first is over.
            while len(endpoint.keys) < 2:
                assert process.poll() is None
                time.sleep(0.01)
            endpoint.text = vllm_text(2000, 1000, requests=20, preemptions=9)
            line = process.stdout.readline()
            assert " ALARM preemptions: 9 preemptions in " in line
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 130


def test_live_in_a_terminal_draws_over_itself() -> None:
    parent, child = pty.openpty()
    with serving(VLLM) as endpoint:
        command = [sys.executable, "-m", "pageinn.cli", "watch", endpoint.url, "--interval", "0.2"]
        process = subprocess.Popen(command, stdout=child, stderr=child)
        seen = ""
        deadline = time.monotonic() + 60
        try:
            while seen.count("vLLM at") < 3 and time.monotonic() < deadline:
                if select.select([parent], [], [], 0.5)[0]:
                    seen += os.read(parent, 65536).decode()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
    assert seen.count("vLLM at") >= 3
    assert seen.count("\x1b[2J") == 1
    assert "no alarm" in seen


def test_the_screen_keeps_a_servers_labels_from_the_terminal() -> None:
    samples = [Sample("vllm", at, queries=10.0 * at, hits=5.0 * at, usage=0.5) for at in range(200)]
    text = screen(samples, {}, "http://x/\x1b[31m" + "y" * 100)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "hit rate      50.0 % in the last 60 s" in text


def test_the_screen_says_what_an_engine_does_not() -> None:
    text = screen(
        [Sample("llamacpp", at, computed=1.0 * at, running=1.0, waiting=0.0) for at in (0, 5)], {}, "u", "gone"
    )
    assert "not counted by this engine" in text
    assert "not said by this engine" in text
    assert "the latest scrape failed: gone" in text
