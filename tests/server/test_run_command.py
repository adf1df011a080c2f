"""`pageinn run`: every request answered once, in order, whatever ends the run on the way."""

from __future__ import annotations

import fcntl
import json
import random
import re
import signal
import subprocess
import sys
import time
from argparse import Namespace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tiny import write_tiny_llama

from pageinn.cli import run_batch
from pageinn.cli.batch_files import Answers, BatchError, read_ids
from pageinn.cli.batch_rows import answer_row, request_of

RUN = [sys.executable, "-m", "pageinn.cli", "run"]
ROWS = 80
SYSTEM = "Answer as the keeper of a lighthouse, who has seen all ships and all weathers. "


def request(name: str, url: str, body: object, method: str = "POST") -> dict[str, Any]:
    return {"custom_id": name, "method": method, "url": url, "body": body}


def a_request(i: int) -> dict[str, Any]:
    """Shared prefixes, sampling with and without a seed, several choices, and every kind of error."""
    if i % 20 == 7:
        return request(f"row-{i}", "/v1/completions", {"prompt": "a", "max_tokens": 0})
    if i % 20 == 13:
        return request(f"row-{i}", "/v1/embeddings", {"input": "a"})
    if i % 2:
        body = {"prompt": f"{SYSTEM}Ship {i % 5}:", "max_tokens": 20 + i % 30, "n": 1 + i % 3, "ignore_eos": True}
        return request(f"row-{i}", "/v1/completions", body)
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Ship {i}?"}]
    body = {"messages": messages, "max_tokens": 40, "temperature": i % 4 / 2, "logprobs": i % 6 == 0}
    return request(f"row-{i}", "/v1/chat/completions", body if i % 3 else {**body, "seed": i})


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("run") / "tiny.gguf", seed=3)


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("run") / "requests.jsonl", [a_request(i) for i in range(ROWS)])


def command(requests: Path, output: Path, model: Path) -> list[str]:
    flags = ["--model", str(model), "--kv-cache-memory-bytes", "1MiB", "--threads", "1", "--concurrency", "4"]
    return [*RUN, str(requests), "-o", str(output), *flags]


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(args, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def unbroken(requests: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The answers of a run that nothing disturbed."""
    output = tmp_path_factory.mktemp("run") / "unbroken.jsonl"
    result = run(*command(requests, output, model))
    assert result.returncode == 0, result.stderr
    summary = result.stderr.splitlines()[-1]
    assert summary.startswith(f"{ROWS} rows, 8 of them errors; ")
    cached = re.search(r"; (\d+) of \d+ prompt tokens cached$", summary)
    assert cached is not None, summary
    assert int(cached[1]) > 0, summary
    return output


def test_each_request_has_its_row_in_openais_form(unbroken: Path) -> None:
    rows = lines(unbroken)
    assert [row["custom_id"] for row in rows] == [f"row-{i}" for i in range(ROWS)]
    assert len({row["id"] for row in rows}) == ROWS
    for i, row in enumerate(rows):
        assert list(row) == ["id", "custom_id", "response", "error"]
        if i % 20 == 13:
            assert row["response"] is None
            assert "/v1/embeddings" in row["error"]["message"]
            continue
        assert row["error"] is None
        body = row["response"]["body"]
        if i % 20 == 7:
            assert row["response"]["status_code"] == 400
            assert body["error"]["param"] == "max_tokens"
            continue
        assert row["response"]["status_code"] == 200
        assert len(body["choices"]) == (1 + i % 3 if i % 2 else 1)
        assert body["usage"]["total_tokens"] > 0
        assert body["created"] == 0
    texts = [
        row["response"]["body"]["choices"][0]["text"] for row in rows[1:60:10] if row["response"]["status_code"] == 200
    ]
    assert len(set(texts)) == len(texts), "requests with the same prompt have seeds of their own"


def test_ten_kills_and_resumptions_give_the_unbroken_file(
    requests: Path, model: Path, unbroken: Path, tmp_path: Path
) -> None:
    """Killed by SIGKILL at ten random moments: byte for byte the file of a run that was not."""
    output = tmp_path / "answers.jsonl"
    whole = unbroken.read_bytes()
    dice = random.Random(20)
    grown = sorted(dice.randrange(len(whole) * 3 // 4) for _ in range(10))
    ends = []
    for size in grown:
        process = subprocess.Popen(command(requests, output, model), stderr=subprocess.DEVNULL)
        while process.poll() is None and (not output.exists() or output.stat().st_size < size):
            time.sleep(0.001)
        time.sleep(dice.random() * 0.1)
        process.kill()
        ends.append(process.wait())
        assert whole.startswith(output.read_bytes()), "nothing lost, doubled or changed so far"
    assert ends.count(-signal.SIGKILL) >= 5, "most were killed, and did not just end"
    result = run(*command(requests, output, model))
    assert result.returncode == 0, result.stderr
    assert output.read_bytes() == whole


@pytest.mark.parametrize("cut", [1, 700, -1])
def test_a_half_written_line_is_repaired(requests: Path, model: Path, unbroken: Path, tmp_path: Path, cut: int) -> None:
    output = tmp_path / "answers.jsonl"
    output.write_bytes(unbroken.read_bytes()[:cut])
    assert run(*command(requests, output, model)).returncode == 0
    assert output.read_bytes() == unbroken.read_bytes()


def test_a_complete_file_needs_no_model(requests: Path, unbroken: Path) -> None:
    before = unbroken.read_bytes()
    result = run(*command(requests, unbroken, Path("no-such-model.gguf")))
    assert result.returncode == 0
    assert result.stderr == f"{unbroken} has all {ROWS} answers\n"
    assert unbroken.read_bytes() == before


def test_through_a_server_the_answers_are_the_same_as_in_process(server, tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 6}
    asked = write(tmp_path / "r.jsonl", [request(f"c{i}", "/v1/chat/completions", body) for i in range(3)])
    for output, flags in (("url.jsonl", ["--url", server.url]), ("own.jsonl", ["--kv-cache-memory-bytes", "32MiB"])):
        result = run(*RUN, str(asked), "-o", str(tmp_path / output), *flags)
        assert result.returncode == 0, result.stderr
    assert (tmp_path / "url.jsonl").read_bytes() == (tmp_path / "own.jsonl").read_bytes()


def test_a_server_that_is_gone_writes_no_rows(requests: Path, tmp_path: Path) -> None:
    output = tmp_path / "answers.jsonl"
    result = run(*RUN, str(requests), "-o", str(output), "--url", "http://127.0.0.1:9")
    assert result.returncode == 1
    assert "cannot reach http://127.0.0.1:9" in result.stderr
    assert output.read_bytes() == b""


class Flaky(BaseHTTPRequestHandler):
    """A server that answers 503 as often as it is told to, and then well."""

    refusals = 0

    def do_GET(self) -> None:
        self._send(200, {"data": [{"id": "flaky"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if Flaky.refusals:
            Flaky.refusals -= 1
            self._send(503, {"error": {"message": "not now"}})
        else:
            self._send(200, {"id": "cmpl-1", "created": 1, "model": "flaky", "choices": []})

    def _send(self, status: int, body: object) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_that_is_overloaded_is_asked_again_and_then_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_batch, "_PAUSES", (0.01,) * 4)
    asked = write(tmp_path / "r.jsonl", [request(f"r{i}", "/v1/completions", {"prompt": "a"}) for i in range(3)])
    output = tmp_path / "a.jsonl"
    with ThreadingHTTPServer(("127.0.0.1", 0), Flaky) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        args = Namespace(requests=asked, output=output, url=url, concurrency=1)
        Flaky.refusals = 1000
        assert run_batch.run_command(args) == 1
        assert "answers 503: not now; what is answered is kept" in capsys.readouterr().err
        assert output.read_bytes() == b""
        Flaky.refusals = 3
        assert run_batch.run_command(args) == 0
        assert [row["response"]["status_code"] for row in lines(output)] == [200] * 3
        server.shutdown()


GOOD = json.dumps(request("a", "/v1/completions", {"prompt": "a"}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{GOOD}\n\n{GOOD}\n", "line 3: custom_id 'a' is that of line 1 too"),
        (f"{GOOD}\n{{}}\n", "line 2: no custom_id"),
        (f'{GOOD}\n{{"custom_id": 3}}\n', "line 2: no custom_id"),
        (f'{GOOD}\n{{"custom_id": ""}}\n', "line 2: no custom_id"),
        (f"{GOOD}\n[1]\n", "line 2: no custom_id"),
        (f"{GOOD}\n{GOOD[:20]}\n", "line 2: not JSON"),
        ('{"custom_id": "\\ud800"}\n', "line 1: custom_id holds half"),
    ],
)
def test_bad_files_of_requests_are_refused_before_anything_is_loaded(tmp_path: Path, text: str, words: str) -> None:
    asked, output = tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    asked.write_text(text)
    result = run(*command(asked, output, Path("no-such-model.gguf")))
    assert result.returncode == 1
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert not output.exists()


def test_files_of_answers_that_are_anothers(requests: Path, unbroken: Path, tmp_path: Path) -> None:
    ids = read_ids(requests)
    first = unbroken.read_bytes().splitlines(keepends=True)
    for content, words in (
        (first[1], "line 1: an answer to 'row-1', and the request there is 'row-0'"),
        (first[0] + first[2], "line 2: an answer to 'row-2', and the request there is 'row-1'"),
        (b'{"custom_id": "row-0"}\n', "line 1: not an answer"),
        (b"\n" + first[0], "line 1: not an answer"),
    ):
        path = tmp_path / "answers.jsonl"
        path.write_bytes(content)
        with pytest.raises(BatchError, match=words):
            Answers(path, ids)
        assert path.read_bytes() == content
    with pytest.raises(BatchError, match="there is no request for it"):
        Answers(unbroken, ids[:-1])
    result = run(*RUN, str(requests), "-o", str(requests))
    assert result.returncode == 1
    assert "holds the requests" in result.stderr


def test_another_model_does_not_continue(requests: Path, unbroken: Path, tmp_path: Path) -> None:
    output = tmp_path / "answers.jsonl"
    output.write_bytes(b"".join(unbroken.read_bytes().splitlines(keepends=True)[:3]))
    other = write_tiny_llama(tmp_path / "other.gguf", seed=4)
    result = run(*command(requests, output, other))
    assert result.returncode == 1
    assert "was begun with the model tiny, and this is other" in result.stderr
    assert len(lines(output)) == 3


def test_two_runs_do_not_write_one_file(requests: Path, tmp_path: Path) -> None:
    output = tmp_path / "answers.jsonl"
    with output.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        result = run(*RUN, str(requests), "-o", str(output))
    assert result.returncode == 1
    assert "another run is writing" in result.stderr


def test_what_differs_between_runs_is_not_in_a_row() -> None:
    asked = request_of(request("x", "/v1/chat/completions", {"messages": [], "seed": None}))
    assert asked.body["seed"] == request_of(request("x", "/v1/chat/completions", {})).body["seed"]
    assert 0 <= asked.body["seed"] < 2**63
    assert request_of(request("x", "/v1/completions", {"seed": 5})).body == {"seed": 5}

    def row(run: int) -> dict[str, Any]:
        calls = [{"id": f"call_{run}", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": run}}
        choices = [{"index": 0, "message": message}]
        body = {"id": f"chatcmpl-{run}", "created": run, "model": "m", "choices": choices, "usage": usage}
        return answer_row(asked, 200, body)

    assert row(1) == row(2)
    assert row(1)["response"]["body"]["choices"][0]["message"]["tool_calls"][0]["id"].startswith("call_")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"method": "GET"}, 'method is "GET"'),
        ({"method": None}, "method is null"),
        ({"url": "/v1/embeddings"}, "supported are /v1/chat/completions, /v1/completions"),
        ({"url": ["x" * 99]}, "url is"),
        ({"body": "text"}, "body is not an object"),
        ({"body": {"stream": True}}, "body.stream is set"),
    ],
)
def test_requests_that_cannot_be_sent(changed: dict[str, Any], words: str) -> None:
    wrong = request_of({**request("a", "/v1/completions", {"prompt": "a"}), **changed}).wrong
    assert wrong is not None
    assert words in wrong
    assert len(wrong) < 140
