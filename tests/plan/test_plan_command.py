"""`pageinn plan` as people run it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from gguf import GGUFWriter

from pageinn.cli import main
from pageinn.cli.main import _parser
from pageinn.engine.default_model import default_model

CONFIGS = Path(__file__).parents[1] / "data" / "model_configs" / "configs.jsonl"


def config_of(repository: str) -> dict[str, object]:
    rows = [json.loads(line) for line in CONFIGS.read_text().splitlines()]
    found: dict[str, object] = next(row["config"] for row in rows if row["repository"] == repository)
    return found


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["plan", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_catalogue_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys)
    assert code == 0
    assert "llama-3-8b" in out
    assert "h100" in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_and_text_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("llama-3-8b", "h100", "--kv-cache-dtype", "fp8", "--kv-cache-memory-bytes", "53.1GiB", "--mean", "2275")
    code, out, _ = run(capsys, *asked, "--json")
    got = json.loads(out)
    assert code == 0
    assert [row["users"] for row in got["users"]] == [13, 53, 106, 382, 381]
    assert set(got) == {
        *("model", "accelerator", "weights", "kv_cache_dtype", "max_model_len"),
        *("lengths", "figures", "users", "flags"),
    }
    assert all(set(figure) == {"value", "unit", "formula", "given"} for figure in got["figures"].values())
    code, text, _ = run(capsys, *asked)
    assert code == 0
    for row in got["users"]:
        assert any(line.split()[-5:-2] and f" {row['users']:,} " in line for line in text.splitlines())


def test_a_gguf_is_read_without_its_weights(capsys: pytest.CaptureFixture[str]) -> None:
    """SmolLM2's own file: its tensors' bytes and its 3 key-value heads of 64 in 30 layers."""
    path = str(default_model())
    code, out, _ = run(capsys, path, "cpu-2core", "--json")
    got = json.loads(out)
    assert code == 0
    assert got["model"]["parameters"] == 134_515_008
    assert got["figures"]["bytes_per_token"]["value"] == 30 * 2 * 3 * 64 * 2
    size = Path(path).stat().st_size
    assert 0.97 * size < got["figures"]["weights"]["value"] < size


def test_a_config_json_and_its_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of("Qwen/Qwen3-8B")))
    for named in (tmp_path, tmp_path / "config.json"):
        code, out, _ = run(capsys, str(named), "l40s", "--json")
        assert code == 0
        assert json.loads(out)["model"]["parameters"] == 8_190_735_360
    (tmp_path / "model.safetensors").write_bytes(bytes(5000))
    _, out, _ = run(capsys, str(tmp_path), "l40s", "--json")
    assert json.loads(out)["figures"]["weights"]["value"] == 5000


def test_unknown_architectures_are_refused_not_guessed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {**config_of("Qwen/Qwen3-8B"), "architectures": ["Qwen3NextForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, out, err = run(capsys, str(tmp_path), "h100")
    assert (code, out) == (1, "")
    assert err.startswith(f"pageinn: {tmp_path}: architecture 'Qwen3NextForCausalLM' is not known (known: ")
    writer = GGUFWriter(tmp_path / "mamba.gguf", "mamba")
    writer.add_tensor("token_embd.weight", __import__("numpy").zeros((2, 32), "float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    code, _, err = run(capsys, str(tmp_path / "mamba.gguf"), "h100")
    assert code == 1
    assert "architecture 'mamba' is not known in a GGUF" in err


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("nobody/knows", "h100"), 1, "model 'nobody/knows' is not known (known: smollm2-135m"),
        (("llama-3-8b", "h1000"), 1, "accelerator 'h1000' is not known (known: t4"),
        (("llama-3-8b",), 2, "name a card too"),
        (("llama-3-8b", "h100", "--kv-cache-dtype", "fp3"), 1, "KV cache dtype 'fp3' is not known"),
        (("llama-3-8b", "h100", "--weights", "q4"), 1, "weight format 'q4' is not known"),
        (("llama-3-8b", "h100", "--lengths", "nothing.txt"), 1, "nothing.txt: neither numbers"),
        (("llama-3-8b", "h100", "--lengths", "0,5"), 1, "lengths are whole numbers of at least 1"),
        (("llama-3-8b", "h100", "--explain", "nothing"), 1, "there is no figure 'nothing'"),
        (("llama-3-8b", "h100", "--plot", "/nowhere/plan.png"), 1, "the plot cannot be written"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], args: tuple[str, ...], code: int, said: str) -> None:
    if "--plot" in args:
        pytest.importorskip("matplotlib")
    got, out, err = run(capsys, *args)
    assert (got, out) == (code, "")
    assert said in err
    assert err.count("\n") == 1


def test_wrong_usage_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["--mean", "0"], ["--gpu-memory-utilization", "1.5"], ["--mean", "5", "--lengths", "5"]):
        with pytest.raises(SystemExit, match="2"):
            main(["plan", "llama-3-8b", "h100", *args])
    capsys.readouterr()


def test_lengths_from_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "lengths").write_text("300\n2000\n600\n4400\n")
    _, out, _ = run(capsys, "llama-3-8b", "h100", "--lengths", str(tmp_path / "lengths"), "--json")
    got = json.loads(out)
    assert got["lengths"]["mean"] == 1825
    assert round(100 * got["users"][1]["wasted"], 1) == 77.7


def test_flags_are_those_of_the_engines(capsys: pytest.CaptureFixture[str]) -> None:
    """pageinn's are parsed by its own parser; a model with a window below the limit is not served by it."""
    _, out, _ = run(capsys, "qwen3-8b", "h100", "--mean", "1500", "--json")
    commands = json.loads(out)["flags"]
    words = shlex.split(commands["pageinn"])
    parsed = _parser().parse_args(words[1:])
    assert parsed.max_model_len == 8192
    assert parsed.kv_cache_memory_bytes == int(json.loads(out)["figures"]["cache"]["value"])
    assert "--max-num-seqs" in commands["vllm"]
    assert "--mem-fraction-static 0.87" in commands["sglang"]
    for model in ("mistral-7b-v0.1", "mixtral-8x7b"):
        _, out, _ = run(capsys, model, "h200", "--json")
        assert json.loads(out)["flags"]["pageinn"] is None


def test_the_plot_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    code, _, _ = run(capsys, "llama-3-8b", "h100", "--plot", str(tmp_path / "plan.png"))
    assert code == 0
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


MOONCAKE = Path(__file__).parents[1] / "data" / "mooncake" / "conversation_200.jsonl"


def test_lengths_from_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    """Prompt and answer of the trace's own figures, those beyond the limit left out."""
    rows = [json.loads(line) for line in MOONCAKE.read_text().splitlines()]
    lengths = [row["input_length"] + row["output_length"] for row in rows]
    within = [length for length in lengths if length <= 32768]
    args = ("llama-3.1-8b", "h100", "--max-model-len", "32768", "--trace", str(MOONCAKE), "--json")
    code, out, _ = run(capsys, *args)
    got = json.loads(out)
    assert code == 0
    assert got["lengths"]["mean"] == pytest.approx(sum(within) / len(within))
    assert f"{len(lengths) - len(within)} beyond the limit left out" in got["lengths"]["source"]
    cache, blocks = got["figures"]["cache"]["value"], [-(-length // 16) * 16 for length in within]
    row = next(row for row in got["users"] if row["key"] == "paged_in_blocks")
    assert row["users"] == int(cache // (131_072 * sum(blocks) / len(blocks)))


def test_a_trace_without_a_request_that_fits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "llama-3.1-8b", "h100", "--max-model-len", "16", "--trace", str(MOONCAKE))
    assert (code, "no request of at most 16 tokens; raise --max-model-len" in err) == (1, True)
    code, _, err = run(capsys, "llama-3.1-8b", "h100", "--trace", str(tmp_path / "none"))
    assert (code, err.count("\n")) == (1, 1)
