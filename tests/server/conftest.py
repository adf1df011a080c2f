"""A tokenizer for servers without a model, and the real server with the default model for all others."""

from __future__ import annotations

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from pageinn.text.data import TokenizerData
from pageinn.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def byte_tokenizer() -> Tokenizer:
    """One token for each byte and nothing else."""
    return Tokenizer(
        TokenizerData(
            model="gpt2",
            pre="gpt-2",
            tokens=sorted(ByteLevel.alphabet()),
            token_types=[],
            merges=[],
            bos_id=None,
            eos_id=None,
            pad_id=None,
            add_bos=False,
            add_space_prefix=False,
            chat_template=None,
        )
    )
