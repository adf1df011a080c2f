"""Models by name, from a local server with the hub's layout, through the command as users call it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from families import Case, tiny_model, write_folder
from hub_server import Hub, running

from pageinn.model import hub

SERVE = """
from pageinn.engine import build
from pageinn.engine.config import EngineConfig
from pageinn.engine.messages import SamplingParams
from pathlib import Path
import sys
engine = build(EngineConfig(model=Path(sys.argv[1]), kv_cache_memory_bytes=1 << 21, threads=1))
print(engine.model_name, engine.generate(["the"], SamplingParams(max_tokens=4, temperature=0.0))[0][0].tokens)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_folder(tmp_path_factory.mktemp("repository") / "m", tiny_model(Case("qwen2", {})), shard="60KB")
    (made / "pytorch_model.bin").write_bytes(b"never asked for")
    (made / "README.md").write_text("never asked for")
    return made


@pytest.fixture
def server(folder: Path) -> Iterator[Hub]:
    with running(Hub({"org/tiny": folder, "org/gated": folder}, gated=frozenset({"org/gated"}))) as made:
        yield made


def python(arguments: list[str], home: Path, endpoint: str, **more: str) -> subprocess.CompletedProcess[str]:
    settings = {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    env = {**os.environ, **settings, "NO_PROXY": "*", **more}
    return subprocess.run(
        [sys.executable, *arguments], check=False, env=env, capture_output=True, text=True, timeout=60
    )


def models(name: str, home: Path, endpoint: str, **more: str) -> subprocess.CompletedProcess[str]:
    return python(["-m", "pageinn.cli", "models", name], home, endpoint, **more)


def one_line(answer: subprocess.CompletedProcess[str]) -> str:
    return " ".join(answer.stdout.split())


def test_judged_without_its_weights_then_served_then_served_offline(server: Hub, folder: Path, tmp_path: Path) -> None:
    judged = models("org/tiny", tmp_path, server.url)
    assert judged.stdout.startswith("org/tiny would load\n"), judged
    assert "not looked at" in judged.stdout
    assert not [path for path in server.asked if path.endswith(".safetensors")]

    served = python(["-c", SERVE, "org/tiny"], tmp_path, server.url)
    assert served.stdout.startswith("org/tiny ("), served.stderr
    files = {Path(path).name for path in server.asked if "/resolve/" in path}
    assert not files & {"pytorch_model.bin", "README.md"}
    assert {file.name for file in folder.glob("*.safetensors")} <= files

    count = len(server.asked)
    offline = python(["-c", SERVE, "org/tiny"], tmp_path, server.url, HF_HUB_OFFLINE="1")
    assert offline.stdout == served.stdout, offline.stderr
    again = models("org/tiny", tmp_path, server.url, HF_HUB_OFFLINE="1")
    assert "their values are checked while loading" in again.stdout
    assert len(server.asked) == count
    assert python(["-c", SERVE, str(folder)], tmp_path, server.url).stdout == served.stdout.replace("org/tiny", "m")


def test_a_name_that_is_nowhere(server: Hub, tmp_path: Path) -> None:
    answer = models("org/absent", tmp_path, server.url)
    assert answer.returncode == 1
    assert "org/absent: neither a file or folder here nor a model on the hub" in one_line(answer)


def test_a_gated_model(server: Hub, tmp_path: Path) -> None:
    answer = models("org/gated", tmp_path, server.url)
    assert answer.returncode == 1
    assert "org/gated: its owner asks that terms be accepted" in one_line(answer)


@pytest.mark.parametrize("more", [{}, {"HF_HUB_OFFLINE": "1"}])
def test_a_hub_that_cannot_be_reached(tmp_path: Path, more: dict[str, str]) -> None:
    with running(Hub({})) as gone:
        endpoint = gone.url
    answer = models("org/tiny", tmp_path, endpoint, **more)
    assert answer.returncode == 1
    assert "not complete in the hub's cache, and the hub cannot be reached" in one_line(answer)
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("model", "is_name"),
    [
        ("org/name", True),
        ("Qwen/Qwen3-0.6B", True),
        ("name", False),
        ("./org/name", False),
        ("/org/name", False),
        ("a/b/c", False),
        ("org/model.gguf", False),
        ("../name", False),
    ],
)
def test_what_may_be_a_name(model: Any, is_name: bool) -> None:
    assert hub.is_name(model) == is_name
