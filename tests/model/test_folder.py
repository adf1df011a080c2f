"""A folder of safetensors is the same model as the GGUF of the same weights; whatever is wrong with it is said."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import CASES, LLAMA3, Case, tiny_model, write_folder, write_gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running import all_logits, store_for
from safetensors.numpy import load_file, save_file
from tiny import CHAT_TEMPLATE

from pageinn.engine import build
from pageinn.engine.config import EngineConfig
from pageinn.engine.messages import SamplingParams
from pageinn.kernels.cpu import CpuBackend
from pageinn.kernels.reference import ReferenceBackend
from pageinn.model.config import ModelError
from pageinn.model.decoder import Decoder
from pageinn.model.folder import SafetensorsFolder
from pageinn.model.gguf_file import GGUFFile
from pageinn.model.weights import load_weights

TOKENS = [int(token) for token in np.random.default_rng(3).integers(0, 320, 200)]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_same_bits_as_the_gguf_of_the_same_weights(tmp_path: Path, case: Case) -> None:
    model = tiny_model(case)
    paths = write_gguf(tmp_path / "m.gguf", model), write_folder(tmp_path / "m", model)
    backend = CpuBackend(threads=2)
    for quantization in ("none", "int8"):
        logits = []
        for path in paths:
            decoder = Decoder.load(path, backend, quantization)
            logits.append(all_logits(decoder, store_for(decoder, 13, "bfloat16"), TOKENS, range(13), 64))
        np.testing.assert_array_equal(logits[0], logits[1])


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("name", ["llama-llama3", "qwen2", "qwen3-tied-llama3"])
def test_the_engine_answers_the_same_from_either(tmp_path: Path, name: str, quantization: str) -> None:
    """Text, tokens and log-probabilities to the bit, tokenizer and end tokens included."""
    model = tiny_model(CASES[name])
    answers = []
    for path in (write_gguf(tmp_path / "m.gguf", model), write_folder(tmp_path / "m", model)):
        engine = build(EngineConfig(model=path, quantization=quantization, kv_cache_memory_bytes=1 << 21, threads=2))
        sampling = SamplingParams(max_tokens=12, temperature=1.0, seed=5, logprobs=5)
        answers.append(engine.generate(["user the naïve ☃ and 2024", "<|im_start|>on<|im_end|>"], sampling))
        assert engine.tokenizer.eos_ids == {0, 2}
    assert answers[0] == answers[1]


@pytest.mark.parametrize(("dtype", "kind"), [(torch.float16, "F16"), (torch.bfloat16, "BF16")])
def test_half_precision_in_shards(tmp_path: Path, dtype: torch.dtype, kind: str) -> None:
    model = tiny_model(CASES["qwen3"])
    with torch.no_grad():
        # Not model.to(dtype), which would round the rotary frequencies too.
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype))
    folder = write_folder(tmp_path / "m", model, dtype, shard="60KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    backend, logits = CpuBackend(threads=2), []
    for path in (folder, write_gguf(tmp_path / "m.gguf", model, kind)):
        decoder = Decoder.load(path, backend, "none")
        logits.append(all_logits(decoder, store_for(decoder, 13), TOKENS, range(13), 200))
    with torch.inference_mode():
        theirs = model(torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(logits[0], theirs, atol=1e-4, rtol=0)
    np.testing.assert_array_equal(logits[0], logits[1])


def test_what_the_small_files_say(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    model = SafetensorsFolder(folder)
    assert (model.config.name, model.config.architecture) == ("m", "llama")
    assert model.tokenizer.chat_template == CHAT_TEMPLATE
    assert (model.tokenizer.bos_id, model.tokenizer.eos_id, model.tokenizer.add_bos) == (1, 2, None)
    assert model.tokenizer.eos_ids == {2, 7}
    (folder / "chat_template.jinja").write_text("{{ 'own file' }}")
    change(folder, "tokenizer_config.json", add_bos_token=True)
    again = SafetensorsFolder(folder, "org/name")
    assert (again.config.name, again.tokenizer.add_bos) == ("org/name", True)
    assert again.tokenizer.chat_template == "{{ 'own file' }}"
    change(folder, "tokenizer_config.json", chat_template=[{"name": "default", "template": "x"}])
    (folder / "chat_template.jinja").unlink()
    assert SafetensorsFolder(folder).tokenizer.chat_template == "x"


def test_a_configuration_of_before_transformers_5(folder: Path) -> None:
    model = tiny_model(CASES["llama-llama3"])
    write_folder(folder, model)
    new = SafetensorsFolder(folder).config
    change(folder, "config.json", rope_parameters=None, rope_theta=500000.0, rope_scaling=LLAMA3)
    assert SafetensorsFolder(folder).config == new
    change(folder, "config.json", rope_scaling={"type": "linear", "factor": 4})
    assert SafetensorsFolder(folder).config.rope_factors == (4.0,) * 8


@pytest.mark.parametrize(
    ("family", "changes", "window"),
    [
        ("mistral", {"sliding_window": 32}, 32),
        ("mistral", {"sliding_window": None}, None),
        ("qwen2", {"sliding_window": 32, "use_sliding_window": False, "layer_types": None}, None),
        ("qwen2", {"sliding_window": 32, "use_sliding_window": True, "layer_types": None}, 32),
        ("qwen3", {"sliding_window": 32, "use_sliding_window": True, "layer_types": ["full_attention"] * 2}, None),
        ("llama", {"sliding_window": 32}, None),
    ],
)
def test_the_sliding_window_as_transformers_reads_it(
    tmp_path: Path, family: str, changes: dict[str, Any], window: int | None
) -> None:
    folder = write_folder(tmp_path / "m", tiny_model(Case(family, {})))
    change(folder, "config.json", **changes)
    assert SafetensorsFolder(folder).config.sliding_window == window


def test_mistrals_window_where_the_file_is_silent(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", tiny_model(Case("mistral", {})))
    content = json.loads((folder / "config.json").read_text())
    del content["sliding_window"]
    (folder / "config.json").write_text(json.dumps(content))
    assert SafetensorsFolder(folder).config.sliding_window == 4096


def test_a_head_stored_although_tied_must_be_the_embedding(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", tiny_model(CASES["llama-tied"]))
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].copy()}, weights)
    Decoder.load(folder, ReferenceBackend())
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, weights)
    assert "'lm_head.weight' differs from 'model.embed_tokens.weight'" in refusal(folder)


def test_fingerprint_sees_weights_and_configuration(folder: Path) -> None:
    """J1: another base, another rotary scaling: another model; another tokenizer file is not."""
    before = SafetensorsFolder(folder).fingerprint()
    assert SafetensorsFolder(folder).fingerprint() == before
    change(folder, "tokenizer_config.json", chat_template=None)
    assert SafetensorsFolder(folder).fingerprint() == before
    raw = bytearray((folder / "model.safetensors").read_bytes())
    raw[-100] ^= 1
    (folder / "model.safetensors").write_bytes(raw)
    flipped = SafetensorsFolder(folder).fingerprint()
    change(folder, "config.json", rms_norm_eps=1e-4)
    assert len({before, flipped, SafetensorsFolder(folder).fingerprint()}) == 3


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("saved") / "m", tiny_model(Case("llama", {})))


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "m"))


def change(folder: Path, name: str, **changes: Any) -> None:
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**content, **changes}))


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as raised:
        Decoder.load(path, ReferenceBackend())
    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "architecture 'MixtralForCausalLM' is not supported (supported: L"),
        ({"architectures": None, "model_type": "gpt2"}, "architecture 'model_type gpt2' is not supported"),
        ({"architectures": "x"}, "not a list of strings"),
        ({"quantization_config": {"quant_method": "gptq"}}, "the weights are quantised ('gptq')"),
        ({"attention_bias": True}, "an output bias in attention is not supported (config.json's 'attention_bias'"),
        ({"mlp_bias": True}, "biases in the feed-forward layers"),
        ({"hidden_act": "gelu"}, "an activation other than silu"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
            "rotary scaling 'yarn' is not supported (supported",
        ),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, "rotary scaling 'dynamic' is not supported"),
        ({"rope_parameters": {"rope_type": "linear"}}, "config.json's rotary scaling lacks 'factor'"),
        ({"rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor 1.0 must exceed"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "by kind of layer"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "part of each head"),
        ({"rope_parameters": [1]}, "not an object"),
        ({"layer_types": ["linear_attention"]}, "layers of kind linear_attention"),
        ({"hidden_size": None}, "config.json lacks 'hidden_size'"),
        ({"hidden_size": "64"}, "not an integer"),
        ({"hidden_size": 66, "head_dim": None}, "not a multiple of 4 heads"),
        ({"hidden_size": 128}, "tensor 'model.embed_tokens.weight' has shape (320, 64), not (320, 128)"),
        ({"head_dim": 15}, "cannot be rotated in pairs"),
        ({"head_dim": 10**12}, "beyond the supported"),
        ({"vocab_size": 10**12}, "beyond the supported"),
        ({"vocab_size": 300}, "and the model has only 300 rows"),
        ({"vocab_size": 330}, "has shape (320, 64), not (330, 64)"),
        ({"max_position_embeddings": 2**31}, "beyond the supported"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3"),
        ({"num_hidden_layers": 3}, "tensor 'model.layers.2.input_layernorm.weight' is missing"),
        ({"num_hidden_layers": 1}, "tensor 'model.layers.1."),
        ({"num_hidden_layers": 10**15}, "is missing"),
        ({"rms_norm_eps": float("nan")}, "finite"),
        ({"rms_norm_eps": 10**400}, "finite"),
        ({"tie_word_embeddings": "yes"}, "not true or false"),
        ({"eos_token_id": 320}, "eos_token_id 320 is outside the vocabulary"),
        ({"eos_token_id": "2"}, "not an id"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_configurations_that_cannot_be_served(folder: Path, changes: dict[str, Any], said: str) -> None:
    change(folder, "config.json", **changes)
    assert said in refusal(folder)


def put(name: str, values: np.ndarray[Any, Any] | None) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tensors = {**load_file(folder / "model.safetensors"), name: values}
        save_file({key: each for key, each in tensors.items() if each is not None}, folder / "model.safetensors")

    return edit


def replaced(name: str, content: bytes | None) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_bytes(content)

    return edit


def only_pickles(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": 1}))


def index(weight_map: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return edit


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (replaced("config.json", None), "config.json is missing"),
        (replaced("config.json", b"{"), "config.json is not valid JSON"),
        (replaced("config.json", b"[" * 100_000), "config.json is not valid JSON"),
        (replaced("config.json", b"[]"), "config.json is not a JSON object"),
        (replaced("config.json", b"\xff{}"), "config.json is not UTF-8"),
        (replaced("tokenizer.json", None), "tokenizer.json is missing"),
        (replaced("tokenizer.json", b"{}"), "tokenizer.json: not a valid tokenizer.json"),
        (replaced("tokenizer_config.json", b'{"add_eos_token": true}'), "a prompt that ends itself"),
        (replaced("tokenizer_config.json", b'{"chat_template": 5}'), "not a string"),
        (replaced("model.safetensors", None), "model.safetensors is missing"),
        (replaced("model.safetensors", b""), "model.safetensors is truncated or corrupt"),
        (replaced("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n"), "truncated or corrupt"),
        (only_pickles, "pytorch_model.bin is a pickle, which can run code"),
        (index({"lm_head.weight": "model-1.safetensors"}), "model-1.safetensors is missing"),
        (index({"lm_head.weight": "../model-1.safetensors"}), "not a safetensors file of the folder"),
        (index({"lm_head.weight": "model.bin"}), "not a safetensors file of the folder"),
        (index([]), "has no weight_map"),
        (put("model.norm.weight", None), "tensor 'model.norm.weight' is missing"),
        (put("lm_head.weight", None), "tensor 'lm_head.weight' is missing"),
        (put("model.layers.0.self_attn.v_proj.weight", np.zeros((3, 3), np.float32)), "has shape (3, 3), not (32, 64)"),
        (put("model.layers.0.self_attn.q_proj.bias", np.zeros(64, np.float32)), "a bias is not supported"),
        (put("model.layers.1.mlp.experts.0.w1.weight", np.zeros((2, 2), np.float32)), "mixture of experts"),
        (put("surprise", np.zeros(2, np.float32)), "tensor 'surprise' is not part of a llama model"),
        (put("model.norm.weight", np.full(64, np.inf, np.float32)), "'model.norm.weight' holds values that are not f"),
        (put("model.norm.weight", np.zeros(64, np.int8)), "has dtype I8, which is not supported (F32, F16, BF16 are)"),
    ],
    ids=range(25),
)
def test_folders_that_cannot_be_served(folder: Path, edit: Callable[[Path], None], said: str) -> None:
    edit(folder)
    assert said in refusal(folder)


@pytest.mark.parametrize(("name", "said"), [("m.bin", "pickle"), ("m.safetensors", "name the folder")])
def test_files_that_are_no_model(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    assert said in refusal(tmp_path / name)


def test_buffers_of_older_versions_are_passed_over(folder: Path) -> None:
    put("model.layers.0.self_attn.rotary_emb.inv_freq", np.zeros(8, np.float32))(folder)
    Decoder.load(folder, ReferenceBackend())


def loads_or_refuses(folder: Path) -> bool:
    message = None
    try:
        load_weights(SafetensorsFolder(folder), ReferenceBackend(), "none", lambda done, total: None)
    except ModelError as error:
        message = str(error)
    assert message is None or message.startswith(f"{folder}: ")
    assert message is None or "\n" not in message
    return message is None


def test_every_truncation_is_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    raw = weights.read_bytes()
    for length in [*range(0, 200, 3), *range(200, len(raw), 4999), len(raw) - 1]:
        weights.write_bytes(raw[:length])
        assert not loads_or_refuses(folder)
    weights.write_bytes(raw)
    assert loads_or_refuses(folder)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    name=st.sampled_from(["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"]),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=3),
)
def test_flipped_bytes_are_refused_or_harmless(
    saved: Path, folder: Path, name: str, flips: list[tuple[float, int]]
) -> None:
    raw = bytearray((saved / name).read_bytes())
    for where, mask in flips:
        raw[int(where * min(len(raw), 4000))] ^= mask
    (folder / name).write_bytes(raw)
    loads_or_refuses(folder)
    shutil.copy(saved / name, folder / name)


def test_gguf_and_folder_know_each_other_apart(folder: Path, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tiny_model(Case("llama", {})))
    assert GGUFFile(path).interleaved_rotary
    assert not SafetensorsFolder(folder).interleaved_rotary
