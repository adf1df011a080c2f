"""The models of the catalogue against their published configs, transformers' own count and published totals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from pageinn.catalogue.errors import CatalogueError
from pageinn.catalogue.models import find_model, models, repository_of
from pageinn.catalogue.published import READERS, shape_of
from pageinn.catalogue.shape import GroupedQuery, Shape

CONFIGS = Path(__file__).parents[1] / "data" / "model_configs" / "configs.jsonl"


def published() -> dict[str, dict[str, Any]]:
    rows = [json.loads(line) for line in CONFIGS.read_text().splitlines()]
    return {row["repository"]: row["config"] for row in rows}


@pytest.mark.parametrize("repository", sorted(published()))
def test_a_model_is_what_its_published_config_says(repository: str) -> None:
    ours = find_model(repository)
    assert shape_of(published()[repository], ours.name, ours.source) == ours


@pytest.mark.parametrize("repository", sorted(published()))
def test_parameters_are_those_of_the_model_that_transformers_builds(repository: str) -> None:
    config = {**published()[repository]}
    for key in ("auto_map", "quantization_config"):
        config.pop(key, None)
    kind = {"kimi_k2": "deepseek_v3"}.get(config["model_type"], config["model_type"])
    del config["model_type"]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config))
    assert find_model(repository).parameters == sum(parameter.numel() for parameter in model.parameters())


#: Families of which no config is in the test data: transformers builds them from the catalogue's own figures.
OTHERS = ["mistral-7b-v0.1", "phi-4", "gemma-2-9b", "qwen2.5-7b", "deepseek-v2-lite", "glm-4.5-air"]


@pytest.mark.parametrize("name", OTHERS)
def test_other_families_are_counted_as_transformers_counts_them(name: str) -> None:
    config = catalogue_config(name)
    architecture = config["architectures"][0]
    kinds = {
        "MistralForCausalLM": "mistral",
        "Phi3ForCausalLM": "phi3",
        "Gemma2ForCausalLM": "gemma2",
        "Qwen2ForCausalLM": "qwen2",
        "DeepseekV2ForCausalLM": "deepseek_v2",
        "Glm4MoeForCausalLM": "glm4_moe",
    }
    with torch.device("meta"):
        # Phi's default padding token is outside phi-4's vocabulary.
        built = AutoConfig.for_model(kinds[architecture], **{"pad_token_id": None, **config})
        model = AutoModelForCausalLM.from_config(built)
    assert find_model(name).parameters == sum(parameter.numel() for parameter in model.parameters())


def catalogue_config(name: str) -> dict[str, Any]:
    import pageinn.catalogue

    rows = json.loads((Path(pageinn.catalogue.__file__).parent / "models.json").read_text())
    return next(row["config"] for row in rows if row["name"] == name)


#: What the model cards give as the number of parameters in the safetensors files.
PUBLISHED_TOTALS = {
    "smollm2-135m": 134_515_008,
    "llama-3-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "phi-4": 14_659_507_200,
    "gemma-2-9b": 9_241_705_984,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "deepseek-v2-lite": 15_706_484_224,
}


@pytest.mark.parametrize(("name", "total"), PUBLISHED_TOTALS.items())
def test_parameters_are_the_published_ones(name: str, total: int) -> None:
    assert find_model(name).parameters == total


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mixtral-8x7b", 12.9),
        ("qwen3-30b-a3b", 3.3),
        ("qwen3-235b-a22b", 22),
        ("deepseek-v3", 37),
        ("kimi-k2", 32),
        ("glm-4.5-air", 12),
        ("gemma-3-27b", 27),
    ],
)
def test_active_parameters_are_about_the_published_ones(name: str, billions: float) -> None:
    """Cards round, and some leave the embeddings out."""
    assert find_model(name).active_parameters / 1e9 == pytest.approx(billions, rel=0.13)


def test_windows_are_where_the_families_have_them() -> None:
    def windows(name: str) -> list[tuple[int, int | None]]:
        return [(group.count, group.window) for group in find_model(name).groups]

    assert windows("gpt-oss-120b") == [(18, 128), (18, None)]
    assert windows("gemma-2-9b") == [(21, 4096), (21, None)]
    assert windows("gemma-3-27b") == [(52, 1024), (10, None)]
    assert windows("mistral-7b-v0.1") == [(32, 4096)]
    assert windows("mistral-7b-v0.3") == [(32, None)]
    assert windows("qwen3-8b") == [(36, None)]


def test_every_model_has_a_source_and_can_be_found_by_either_name() -> None:
    assert len(models()) >= 25
    for shape in models():
        assert shape.source.startswith("https://huggingface.co/")
        assert shape.weights is not None
        assert find_model(shape.name.upper()) is find_model(repository_of(shape)) is shape


def test_what_is_not_known_is_refused_with_what_is() -> None:
    with pytest.raises(CatalogueError, match=r"model 'llama-9' is not known \(known: smollm2-135m, "):
        find_model("llama-9")
    for architecture in ("MambaForCausalLM", "Llama4ForConditionalGeneration", "Qwen3NextForCausalLM"):
        with pytest.raises(CatalogueError, match=f"architecture '{architecture}' is not known"):
            shape_of({"architectures": [architecture]}, "x")


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}


def llama(**changes: object) -> Shape:
    return shape_of({**LLAMA, **changes}, "x")


def test_missing_key_value_heads_are_as_many_as_query_heads() -> None:
    assert llama().attention == GroupedQuery(4, 4, 16)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": []}, "names no architecture"),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
        ({"hidden_size": "64"}, "'hidden_size' is '64', not a whole number"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' is '0'"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "4 query heads cannot share 3 key-value heads"),
        ({"tie_word_embeddings": "no"}, "not true or false"),
    ],
)
def test_a_bad_config_is_refused_in_one_line(changes: dict[str, object], said: str) -> None:
    with pytest.raises(CatalogueError, match=said) as error:
        llama(**changes)
    assert "\n" not in str(error.value)


def test_layer_types_must_fit_and_be_known() -> None:
    config = {**published()["openai/gpt-oss-20b"]}
    with pytest.raises(CatalogueError, match="does not name one type for each layer"):
        shape_of({**config, "layer_types": ["full_attention"]}, "x")
    with pytest.raises(CatalogueError, match="layers of type 'linear_attention' are not known"):
        shape_of({**config, "layer_types": ["linear_attention"] * 24}, "x")


def test_the_weights_format_is_read_or_left_open() -> None:
    assert llama(torch_dtype="float32").weights == "float32"
    assert llama().weights is None
    assert llama(quantization_config={"quant_method": "awq", "bits": 4}).weights == "int4"
    assert llama(quantization_config={"quant_method": "somebody's own"}).weights is None


def test_every_reader_is_used_by_some_model() -> None:
    """Otherwise nothing says whether it is right."""
    assert {shape.architecture for shape in models()} == set(READERS) - {"Gemma3ForCausalLM"}
