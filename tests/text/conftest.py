"""The default model's tokenizer, read with the gguf package and not with our own reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFReader
from tokenizers.pre_tokenizers import ByteLevel

from pageinn.text.data import TokenizerData
from pageinn.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def smollm2_data(smollm2_path: Path) -> TokenizerData:
    fields = GGUFReader(smollm2_path).fields

    def value(key: str):
        return fields[f"tokenizer.{key}"].contents()

    return TokenizerData(
        model=value("ggml.model"),
        pre=value("ggml.pre"),
        tokens=value("ggml.tokens"),
        token_types=value("ggml.token_type"),
        merges=value("ggml.merges"),
        bos_id=value("ggml.bos_token_id"),
        eos_id=value("ggml.eos_token_id"),
        pad_id=value("ggml.padding_token_id"),
        add_bos=value("ggml.add_bos_token"),
        add_space_prefix=value("ggml.add_space_prefix"),
        chat_template=value("chat_template"),
    )


@pytest.fixture(scope="session")
def tokenizer(smollm2_data: TokenizerData) -> Tokenizer:
    return Tokenizer(smollm2_data)


@pytest.fixture(scope="session")
def byte_tokenizer(smollm2_data: TokenizerData) -> Tokenizer:
    """One token for each byte and nothing else. The stand-ins come from the tokenizers library."""
    stand_ins = sorted(ByteLevel.alphabet())
    return Tokenizer(smollm2_data._replace(pre="gpt-2", tokens=stand_ins, token_types=[], merges=[]))
