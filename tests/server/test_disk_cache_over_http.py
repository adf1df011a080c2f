"""`pageinn serve --disk-cache`: a server that starts again, with the default model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

#: Long enough that computing it again would take more than a second: what comes from disk is waited for no longer.
PROMPT = "The quick brown fox jumps over the lazy dog. " * 60


def test_a_server_that_starts_again_hits(start_server, tmp_path: Path) -> None:
    """J4, from outside; J2: with another block size it starts empty and says so."""
    flags = ("--kv-cache-memory-bytes", "64MiB", "--disk-cache", str(tmp_path / "cache"), "--disk-cache-bytes", "64MiB")
    server = start_server(*flags)
    first = server.complete(PROMPT, max_tokens=8)
    prompt_tokens = first["usage"]["prompt_tokens"]
    assert server.metric("disk_cache_queries_total") == prompt_tokens // 16 * 16
    assert server.metric("disk_cache_hits_total") == 0
    refused = subprocess.run(
        [sys.executable, "-m", "pageinn.cli", "serve", "--port", "0", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 1
    assert refused.stderr.strip().splitlines()[-1].endswith("is in use by another process; give each its own")
    assert server.stop() == 0

    server = start_server(*flags)
    again = server.complete(PROMPT, max_tokens=8)
    assert again["choices"][0]["text"] == first["choices"][0]["text"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == prompt_tokens // 16 * 16
    assert server.metric("disk_cache_hits_total") == prompt_tokens // 16 * 16
    (record,) = server.http.get("/cache/misses").json()["records"]
    assert record["from"] == {"device": 0, "host": 0, "disk": prompt_tokens // 16 * 16, "public": 0}
    assert server.metric("disk_cache_errors_total") == 0
    assert server.metric("disk_cache_blocks") >= prompt_tokens // 16
    assert 0 < server.metric("disk_cache_bytes") <= 64 << 20
    assert server.stop() == 0

    server = start_server(*flags, "--block-size", "32")
    assert server.complete(PROMPT, max_tokens=8)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert any("holds blocks of another model, setting or build: starting empty" in line for line in server.log)
    assert server.stop() == 0


def test_without_a_disk_cache_there_are_no_such_families(start_server) -> None:
    server = start_server("--kv-cache-memory-bytes", "32MiB")
    assert server.metric("disk_cache_queries_total") is None
    assert server.stop() == 0
