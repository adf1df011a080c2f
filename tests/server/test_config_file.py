"""`pageinn serve --config`: the file is silent where the command line speaks, and wrong keys are named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def refused(path: Path, *flags: str) -> str:
    """The last line of a command that was used wrongly."""
    command = [sys.executable, "-m", "pageinn.cli", "serve", "--config", str(path), *flags]
    got = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert got.returncode == 2, got.stderr
    assert "Traceback" not in got.stderr
    return got.stderr.strip().splitlines()[-1]


def test_a_server_from_a_file(start_server, qwen_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(
        f"model: {qwen_path}\n"
        "host: 127.0.0.1\n"
        "port: 1  # the test's own flag wins\n"
        "kv-cache-memory-bytes: 4MiB\n"
        "max_model_len: 128\n"
        "enable-prefix-caching: false\n"
        "block-size: 32\n"
        "canonical-tools: true\n"
        "served-model-name: [tiny, other/name]\n"
    )
    server = start_server("--config", str(path), "--block-size", "8")
    cards = server.http.get("/v1/models").json()["data"]
    assert [(card["id"], card["max_model_len"]) for card in cards] == [("tiny", 128), ("other/name", 128)]
    (info,) = [line for line in server.http.get("/metrics").text.splitlines() if "cache_config_info{" in line]
    assert 'block_size="8"' in info
    assert 'prefix_cache="off"' in info
    assert server.stop() == 0


def test_names_on_the_command_line(start_server, qwen_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("served-model-name: from-the-file\n")
    flags = (str(qwen_path), "--kv-cache-memory-bytes", "4MiB", "--config", str(path))
    for more, names in (((), ["from-the-file"]), (("--served-model-name", "a", "b"), ["a", "b"])):
        server = start_server(*flags, *more)
        assert [card["id"] for card in server.http.get("/v1/models").json()["data"]] == names
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no-such-flag: 1", "unknown key 'no-such-flag'"),
        ("config: other.yaml", "unknown key 'config'"),
        ("port: 70000", "argument --port: '70000' is not a port"),
        ("port:", "'port' has no value"),
        ("port: {a: 1}", "'port' cannot be a mapping"),
        ("port: true", "argument --port: expected one argument"),
        ("canonical-tools: perhaps", "argument --canonical-tools/--no-canonical-tools: ignored explicit argument"),
        ("seed: false", "'seed' cannot be false"),
        ("- port", "must hold flags and their values"),
        ("a: b: c", "is not YAML"),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    line = refused(path)
    assert line.startswith(f"pageinn: error: {path}")
    assert message in line


@pytest.mark.parametrize("named_in", ["file", "flag"])
def test_blocks_that_cannot_be_read_end_the_start(qwen_path: Path, tmp_path: Path, named_in: str) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("block-size: 1\n" if named_in == "file" else "port: 0\n")
    flags = ["--config", str(path)] if named_in == "file" else ["--config", str(path), "--block-size", "1"]
    command = [sys.executable, "-m", "pageinn.cli", "serve", str(qwen_path), *flags]
    got = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert got.returncode == 1
    line = "pageinn: error: --block-size is 1; the cpu backend needs a multiple of 8 tokens, for example 16"
    assert got.stderr == f"{line}\n"


def test_no_file(tmp_path: Path) -> None:
    assert "nothing.yaml cannot be read: No such file" in refused(tmp_path / "nothing.yaml")
