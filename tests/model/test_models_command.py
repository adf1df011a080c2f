"""`pageinn models`: what it lists, what it says of a model, and that it fits a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from families import CASES, Case, tiny_model, write_folder
from tiny import write_tiny_llama

from pageinn.cli.main import main
from pageinn.engine.default_model import default_model
from pageinn.kernels.cpu import CpuBackend
from pageinn.model.config import FAMILIES, ROPE_SCALINGS


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["models", *arguments]) == code
    out, err = capsys.readouterr()
    assert not err
    # A path is not broken, however long it is.
    assert all(len(line) <= 80 or max(map(len, line.split())) > 40 for line in out.splitlines())
    return out


def test_the_list_names_all_that_is_supported(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys)
    named = {*FAMILIES, *ROPE_SCALINGS, "GGUF", "safetensors", "Q4_K", "BF16", "int8", *CpuBackend.store_dtypes}
    assert {name for name in named if name not in out} == set()


def test_the_default_model(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, str(default_model()))
    assert f"{default_model()} would load\n" in out
    assert "30 layers of 576, 9 query and 3 key-value heads of 64" in " ".join(out.split())


def test_a_folder_with_its_scaling_and_its_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(tmp_path / "a", tiny_model(CASES["qwen3-tied-llama3"]))
    capsys.readouterr()  # transformers' progress bars
    assert "base 1e+06, scaling llama3" in said(capsys, str(tmp_path / "a"))
    write_folder(tmp_path / "b", tiny_model(Case("mistral", {"sliding_window": 512})))
    capsys.readouterr()
    out = " ".join(said(capsys, str(tmp_path / "b")).split())
    assert "2048 tokens in a sliding window of 512: serve it with --max-model-len 512 or less" in out


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba' is not supported"),
        ({"llama.block_count": 3}, "tensor 'blk.2.attn_norm.weight' is missing"),
        ({"tokenizer.ggml.pre": "tekken"}, "pre-tokenizer 'tekken' is not supported"),
        ({"tokenizer.ggml.model": "llama"}, "320 tokens but 0 scores"),
        ({"tokenizer.chat_template": "{% if %}"}, "chat template is not valid"),
    ],
)
def test_why_a_file_would_not_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], metadata: dict[str, object], why: str
) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", metadata=metadata)
    out = " ".join(said(capsys, str(path), code=1).split())
    assert out.startswith(f"would not load: {path}: ")
    assert why in out


def test_a_path_that_is_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such file" in said(capsys, str(tmp_path / "absent"), code=1)
