"""The timing audit: its interval by hand, servers of known leaks over real HTTP, and the real server with keys."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from keyed_server import keyed_server
from tiny import write_tiny_llama

from pageinn.audit import client
from pageinn.audit.client import Seen
from pageinn.audit.interval import wilson
from pageinn.audit.report import BLIND, CALM, LEAK, as_text, report
from pageinn.audit.timing import Trial
from pageinn.audit.words import WORDS, prompt
from pageinn.cli import main

#: What a first token takes on the stub, in its own seconds: of a prompt that was seen before, and of another one; and
#: by how much that varies.
WARM, COLD, VARIES = 0.001, 0.02, 0.005


def test_the_interval_is_wilsons() -> None:
    """By hand for 8 of 10, z = 1.96: (0.8 + 0.19208 ± 1.96 sqrt(0.016 + 0.009604)) / 1.38416: 0.490 to 0.943."""
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    # None of n: z² / (n + z²) is the upper end, and 0 the lower.
    assert wilson(0, 10) == pytest.approx((0.0, 3.8415 / 13.8415), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((1 - 3.8415 / 13.8415, 1.0), abs=1e-4)
    with pytest.raises(ValueError, match="3 of 2"):
        wilson(3, 2)


def test_400_pairs_are_enough_for_five_points_and_180_of_them_still_are_a_coins() -> None:
    """The default: half-width 1.96 sqrt(0.25 / 400 + 3.8416 / 640000) / 1.0096 = 4.88 points."""
    assert wilson(200, 400).half_width == pytest.approx(0.0488, abs=1e-4)
    assert [right for right in range(401) if 0.5 in wilson(right, 400)] == list(range(181, 220))


def test_prompts_are_fresh_and_as_long() -> None:
    rng = Random(1)
    texts = [prompt(32, rng) for _ in range(2000)]
    assert {len(text) for text in texts} == {32 * 5 - 1}
    assert len({text[: 16 * 5] for text in texts}) == len(texts)
    assert len(set(WORDS)) == len(WORDS) == 64


def trials(right: int, of: int, cached: int = 0) -> list[Trial]:
    fast, slow = Seen(0.01, 100, cached), Seen(0.05, 100, 0)
    return [Trial(fast, slow)] * right + [Trial(slow, fast)] * (of - right)


def test_a_verdict_is_a_leak_calm_or_blind() -> None:
    sure = trials(100, 100)
    assert report("u", "m", {"across": trials(219, 400), "within": sure}).code == CALM
    assert report("u", "m", {"across": trials(220, 400), "within": sure}).code == LEAK
    # Guesses that are wrong too often tell as much.
    assert report("u", "m", {"across": trials(180, 400), "within": sure}).code == LEAK
    assert report("u", "m", {"across": trials(200, 400), "within": trials(50, 100)}).code == BLIND
    noisy = report("u", "m", {"across": trials(10, 20), "within": trials(80, 100)})
    assert noisy.code == CALM
    assert "That is few" in noisy.verdict
    assert "interval is wide" in noisy.verdict


def test_a_count_of_cached_tokens_that_tells_is_a_leak_whatever_the_clock_says() -> None:
    """Half the prompt must be told: a first word in common with an earlier prompt is nobody's secret."""
    even = [Trial(Seen(0.01, 100, 96), Seen(0.02, 100, 2)), Trial(Seen(0.02, 100, 2), Seen(0.01, 100, 1))] * 10
    found = report("u", "m", {"across": even, "within": trials(100, 100)})
    assert [one.told for one in found.figures] == [10, 0]
    assert found.code == LEAK
    assert "cached_tokens gives it away in 10 of them" in found.verdict


def test_the_page_fits_in_80_columns() -> None:
    found = report("http://127.0.0.1:8000", "m", {arm: trials(7, 10) for arm in ("across", "within", "public")})
    assert max(map(len, as_text(found).splitlines())) <= 80


class Stub:
    """An OpenAI-compatible server that remembers prompts by the fields of `keyed` and answers those soon.

    Its clock is the audit's, and moves by what its answers take: what else the machine does has no part in it.
    busy: how many requests are turned away first.
    """

    def __init__(self, keyed: tuple[str, ...], busy: int = 0) -> None:
        self.keyed = keyed
        self.busy = busy
        self.url = ""
        self.now = 0.0
        self._seen: set[tuple[str, ...]] = set()
        self._varies = Random(1)

    def answer(self, key: str, body: dict[str, str]) -> None:
        """Take the time to the first token."""
        by = {"key": key, "salt": body.get("cache_salt", "")}
        name = (body["prompt"], *(by[field] for field in self.keyed))
        self.now += (WARM if name in self._seen else COLD) + self._varies.random() * VARIES
        self._seen.add(name)


@contextmanager
def stub(*keyed: str, busy: int = 0) -> Iterator[Stub]:
    state = Stub(keyed, busy)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body go out in pieces that must not wait for each other.
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._send(200, b'{"data": [{"id": "stub"}]}')

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if state.busy:
                state.busy -= 1
                self._send(429, b'{"error": {"message": "full"}}', ("retry-after", "0"))
                return
            state.answer(self.headers.get("authorization", ""), body)
            # No usage: not every server counts.
            event = json.dumps({"choices": [{"index": 0, "text": "a"}]})
            self._send(200, f": a comment\n\ndata: {event}\n\ndata: [DONE]\n\n".encode())

        def _send(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
            self.send_response(status)
            for name, value in (("content-length", str(len(body))), *headers):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "time", SimpleNamespace(perf_counter=lambda: state.now))
            yield state
    finally:
        server.shutdown()
        server.server_close()


def audit(capsys: pytest.CaptureFixture[str], url: str, *flags: str, pairs: int = 20) -> tuple[int, dict[str, object]]:
    code = main(["audit", "timing", url, "--pairs", str(pairs), "--tokens", "64", "--json", *flags])
    found = json.loads(capsys.readouterr().out)
    return code, {**found, "by_arm": {arm.pop("arm"): arm for arm in found["arms"]}}


def test_a_server_with_one_cache_for_all_keys_leaks(capsys: pytest.CaptureFixture[str]) -> None:
    """As vLLM and SGLang without salts."""
    with stub() as server:
        code, found = audit(capsys, server.url, "--key-a", "a", "--key-b", "b")
    assert code == LEAK
    assert found["leak"] is True
    assert found["by_arm"]["across"]["low"] > 0.5  # type: ignore[index]
    assert found["tokens"] == 0


@pytest.mark.parametrize("field", ["key", "salt"])
def test_a_server_that_keeps_callers_apart_is_told_from_one_that_does_not(
    capsys: pytest.CaptureFixture[str], field: str
) -> None:
    """Of 25 pairs a coin gets all or none right once in 17 million runs."""
    with stub(field, busy=3) as server:
        _, found = audit(capsys, server.url, f"--{field}-a", "a", f"--{field}-b", "b", pairs=25)
    by_arm = found["by_arm"]
    assert 0 < by_arm["across"]["right"] < by_arm["across"]["pairs"] == 25  # type: ignore[index]
    assert by_arm["within"]["right"] == by_arm["within"]["pairs"] == 10  # type: ignore[index]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The real server with a model whose prefill of 800 tokens takes some seven times as long as its answer of one.

    Its memory holds all that these tests send, some 200 prompts of 50 blocks of 32 KiB: what was evicted between A's
    request and B's would not be told by the count.
    """
    folder = tmp_path_factory.mktemp("audit")
    model = write_tiny_llama(folder / "tiny.gguf", layers=4, hidden=256, heads=4, ff=1024)
    with keyed_server(folder, model, "--kv-cache-memory-bytes", "384MiB") as url:
        yield url


KEYS = ("--key-a", "sk-alice", "--key-b", "sk-bob", "--key-admin", "sk-operations", "--tokens", "800")


def test_tenants_of_a_real_server_learn_nothing_of_each_other_and_all_of_what_is_public(
    served: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """C2: nothing is cached for B, neither by the clock nor by the count; for A itself and what is public, all is.

    Of 25 pairs a coin gets all or none right once in 17 million runs.
    """
    _, found = audit(capsys, served, *KEYS, pairs=25)
    across, within, public = (found["by_arm"][arm] for arm in ("across", "within", "public"))  # type: ignore[index]
    assert 0 < across["right"] < 25
    assert across["told_by_cached_tokens"] == 0
    for arm in (within, public):
        assert arm["told_by_cached_tokens"] == arm["pairs"] == 10
        assert arm["right"] >= 8


def test_two_callers_with_one_key_leak(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = audit(capsys, served, "--key-a", "sk-alice", "--key-b", "sk-alice", "--tokens", "800", pairs=12)
    assert code == LEAK
    assert found["by_arm"]["across"]["told_by_cached_tokens"] == 12  # type: ignore[index]
    assert found["by_arm"]["across"]["low"] > 0.5  # type: ignore[index]


def test_a_salt_keeps_two_users_of_one_key_apart(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ("--key-a", "sk-alice", "--key-b", "sk-alice", "--salt-a", "one", "--salt-b", "two", "--tokens", "400")
    _, found = audit(capsys, served, *keys, pairs=8)
    assert found["by_arm"]["across"]["told_by_cached_tokens"] == 0  # type: ignore[index]
    assert found["by_arm"]["within"]["told_by_cached_tokens"] == 8  # type: ignore[index]


def test_what_cannot_be_audited_is_one_line(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad key, a tenant where an admin is needed, a prompt beyond the context, and nobody there; never code 1."""
    wrong = {
        ("--key-a", "sk-nobody"): "answers 401",
        ("--key-a", "sk-alice", "--key-b", "sk-bob", "--key-admin", "sk-bob"): "answers 403",
        ("--key-a", "sk-alice", "--key-b", "sk-bob", "--tokens", "100000"): "answers 400",
    }
    for flags, line in wrong.items():
        assert main(["audit", "timing", served, "--tokens", "64", *flags]) == 2
        assert line in capsys.readouterr().err
    assert main(["audit", "timing", "http://127.0.0.1:9"]) == 2
    assert capsys.readouterr().err.startswith("pageinn: cannot reach http://127.0.0.1:9")


def test_keys_come_from_the_environment(
    served: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEINN_KEY_A", "sk-alice")
    monkeypatch.setenv("PAGEINN_KEY_B", "sk-nobody")
    assert main(["audit", "timing", served, "--tokens", "64"]) == 2
    assert "answers 401" in capsys.readouterr().err


def test_a_length_is_found_that_shows_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    """The stub is four times slower for any fresh prompt: the shortest length does."""
    with stub("key") as server:
        assert main(["audit", "timing", server.url, "--key-a", "a", "--key-b", "b", "--pairs", "6"]) in (CALM, LEAK)
    assert "the server does not count tokens" in capsys.readouterr().out


def test_a_server_that_keeps_nothing_shows_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the cache off the method is blind, by the count; a coin decides what the clock says of three pairs."""
    model = write_tiny_llama(tmp_path / "tiny.gguf")
    with keyed_server(tmp_path, model, "--prefix-cache", "off") as url:
        code, found = audit(capsys, url, "--key-a", "sk-alice", "--key-b", "sk-bob", pairs=3)
    assert code == BLIND
    assert found["conclusive"] is False
    assert found["leak"] is False
