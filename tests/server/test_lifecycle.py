"""The process: how it starts, refuses to start, drains and ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from gguf import GGUFWriter

import pageinn


def pageinn_command(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pageinn.cli", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def assert_one_line_error(result: subprocess.CompletedProcess[str], words: str) -> None:
    assert result.returncode == 1, result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("pageinn: error: ")
    assert words in last
    assert "Traceback" not in result.stderr


def test_a_signal_lets_running_requests_finish(start_server) -> None:
    """Also field case F7: before any query there is no hit rate, not one of 0."""
    server = start_server("--kv-cache-memory-bytes", "32MiB")
    assert server.metric("prefix_cache_hit_rate_window") is None
    assert server.metric("prefix_cache_queries_total") == 0
    body = {"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True, "stream": True, "logprobs": 0}
    with server.http.stream("POST", "/v1/completions", json=body) as got:
        lines = got.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(timeout=60) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")


def test_a_second_signal_does_not_wait(start_server) -> None:
    server = start_server("--kv-cache-memory-bytes", "64MiB")
    body = {"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body) as got:
        lines = got.iter_lines()  # kept, for its end would close the stream
        next(lines)
        server.process.send_signal(signal.SIGINT)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 1
    server._reader.join()
    assert "Traceback" not in "".join(server.log)


def test_a_port_in_use_is_found_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = pageinn_command("serve", "no-such-file.gguf", "--port", str(port))
    assert_one_line_error(result, f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another")


def test_an_address_of_another_machine() -> None:
    assert_one_line_error(pageinn_command("serve", "--port", "0", "--host", "192.0.2.1"), "cannot listen on 192.0.2.1")


def test_a_missing_model() -> None:
    assert_one_line_error(pageinn_command("serve", "no-such-file.gguf", "--port", "0"), "no-such-file.gguf")


@pytest.mark.parametrize("length", [0, 3, 1000, 3_000_000])
def test_a_truncated_model(tmp_path: Path, smollm2_path: Path, length: int) -> None:
    path = tmp_path / "cut.gguf"
    with smollm2_path.open("rb") as whole:
        path.write_bytes(whole.read(length))
    assert_one_line_error(pageinn_command("serve", str(path), "--port", "0"), "cut.gguf")


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "noise.gguf"
    path.write_bytes(bytes(range(256)) * 100)
    assert_one_line_error(pageinn_command("serve", str(path), "--port", "0"), "noise.gguf")


def test_an_architecture_that_is_not_supported(tmp_path: Path) -> None:
    path = tmp_path / "mamba.gguf"
    writer = GGUFWriter(path, "mamba")
    writer.add_context_length(16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    result = pageinn_command("serve", str(path), "--port", "0")
    assert_one_line_error(result, "'mamba'")
    assert "llama" in result.stderr


@pytest.mark.parametrize("size", ["1KiB", "100TiB"])
def test_a_pool_that_cannot_be(size: str) -> None:
    assert_one_line_error(pageinn_command("serve", "--port", "0", "--kv-cache-memory-bytes", size), "")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "COMMAND"),
        (["serve", "--port", "70000"], "'70000' is not a port"),
        (["serve", "--kv-cache-memory-bytes", "lots"], "'lots' is not a size"),
        (["serve", "--kv-cache-memory-bytes", "1.5"], "'1.5' is not a whole number of bytes"),
        (["serve", "--kv-cache-memory-bytes", "0"], "'0' is nothing"),
        (["serve", "--block-size", "0"], "'0' is not a whole number above 0"),
        (["serve", "--kv-cache-dtype", "int2"], "invalid choice"),
        (["serve", "--no-such-flag"], "--no-such-flag"),
    ],
)
def test_wrong_usage(args: list[str], words: str) -> None:
    result = pageinn_command(*args)
    assert result.returncode == 2
    assert words in result.stderr


def test_help_and_version() -> None:
    assert pageinn_command("--version").stdout == f"pageinn {pageinn.__version__}\n"
    assert "serve" in pageinn_command("--help").stdout
    assert "--kv-cache-memory-bytes" in pageinn_command("serve", "--help").stdout


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from pageinn.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "print([name for name in ('numpy', 'fastapi', 'tokenizers', 'jinja2') if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"
