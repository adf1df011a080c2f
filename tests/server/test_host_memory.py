"""`pageinn serve --swap-space`: what was evicted is found in host memory, and the metrics say so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_what_was_evicted_is_loaded_again(start_server, qwen_path: Path) -> None:
    """A pool for one prompt, three prompts, and the first again: all but its last token come from the host."""
    server = start_server(str(qwen_path), "--kv-cache-memory-bytes", "64KiB", "--swap-space", "0.001")
    total = server.metric("kv_host_blocks", state="free")
    assert total == int(0.001 * 2**30) // 4096
    prompts = [[first, *range(100, 299)] for first in (10, 20, 30)]
    answers = [server.complete(prompt, max_tokens=2) for prompt in prompts]
    again = server.complete(prompts[0], max_tokens=2)
    assert again["choices"][0]["text"] == answers[0]["choices"][0]["text"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 199
    record = server.http.get("/cache/misses").json()["records"][0]
    assert record["from"]["host"] >= 192
    assert record["from"]["device"] + record["from"]["host"] == record["cached_tokens"] == 199
    assert record["from"]["disk"] == record["from"]["public"] == 0
    states = {state: server.metric("kv_host_blocks", state=state) for state in ("free", "kept", "held")}
    assert sum(states.values()) == total
    assert states["held"] == 0 < states["kept"]
    assert server.metric("demoted_blocks_total") >= 24
    assert server.metric("promoted_blocks_total") >= 12
    assert server.metric("failed_stores_total") == server.metric("num_swaps_total") == 0
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--swap-space", "much"), 2, "'much' is not a number of GiB; write for example 4"),
        (("--host-memory-bytes", "4MiB", "--prefix-cache", "off"), 1, "needs --prefix-cache keep or live"),
        (("--preemption-mode", "swap"), 1, "--preemption-mode swap needs --host-memory-bytes"),
        (("--disk-cache-bytes", "1GiB"), 1, "--disk-cache-bytes needs --disk-cache"),
        (("--disk-cache", ""), 2, "the path is empty; write . for the working directory"),
        (("--host-memory-bytes", "1KiB"), 1, "--host-memory-bytes 1024 is less than one block of 4096 bytes"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(qwen_path: Path, flags: tuple[str, ...], code: int, message: str) -> None:
    command = [sys.executable, "-m", "pageinn.cli", "serve", str(qwen_path), *flags]
    got = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert got.returncode == code, got.stderr
    assert message in got.stderr.strip().splitlines()[-1]
    assert "Traceback" not in got.stderr
