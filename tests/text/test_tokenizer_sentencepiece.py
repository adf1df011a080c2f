"""Vocabularies with scores against SentencePiece itself, transformers, and a brute-force merge."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pageinn.text.data import TokenizerData
from pageinn.text.detokenizer import Detokenizer
from pageinn.text.tokenizer import Tokenizer, TokenizerError
from pageinn.text.vocabulary import SPACE

DATA = Path(__file__).parents[1] / "data"
TRAINED: dict[str, Any] = json.loads((DATA / "sentencepiece" / "bpe900.json").read_text())
ROWS = [json.loads(line)["input"] for line in (DATA / "miniswe" / "inputs.jsonl").open()]
BOS, EOS, USER = 1, 2, 3


def trained_data(**changes: Any) -> TokenizerData:
    return TokenizerData(
        model="llama",
        pre="default",
        tokens=TRAINED["tokens"],
        token_types=TRAINED["token_types"],
        merges=[],
        bos_id=BOS,
        eos_id=EOS,
        pad_id=None,
        add_bos=True,
        add_space_prefix=True,
        chat_template=None,
        scores=TRAINED["scores"],
    )._replace(**changes)


MADE = Tokenizer(trained_data())


@pytest.fixture(scope="module")
def made() -> Tokenizer:
    return MADE


def test_ids_equal_sentencepieces_on_real_prompts(made: Tokenizer) -> None:
    for row, digest in zip(ROWS, TRAINED["rows"], strict=True):
        ids = made.encode(row, add_special=False)
        assert hashlib.sha256(np.array(ids, "<u4").tobytes()).hexdigest() == digest
        assert made.decode(ids) == row


@pytest.mark.parametrize("sample", TRAINED["samples"], ids=lambda sample: repr(sample["text"][:12]))
def test_ids_equal_sentencepieces_on_awkward_text(made: Tokenizer, sample: dict[str, Any]) -> None:
    assert made.encode(sample["text"], add_special=False) == sample["ids"]
    assert made.encode(sample["text"]) == [BOS, *sample["ids"]]
    assert made.decode(sample["ids"]) == sample["text"]


def test_ids_equal_transformers_on_real_prompts(made: Tokenizer) -> None:
    """Its Llama tokenizer, with the merges that its own converter ranks by score."""
    from transformers import LlamaTokenizer
    from transformers.tokenization_utils_base import generate_merges

    vocab = {text: i for i, text in enumerate(TRAINED["tokens"])}
    scores = dict(zip(TRAINED["tokens"], TRAINED["scores"], strict=True))
    theirs = LlamaTokenizer(vocab=vocab, merges=generate_merges(vocab, scores))
    for row in ROWS:
        assert made.encode(row) == [BOS, *theirs.encode(row, add_special_tokens=False)]


def brute_force(text: str, data: TokenizerData) -> list[int]:
    """SentencePiece by definition: join the best-scored neighbours, the leftmost of equals, until none join."""
    score = {text: data.scores[i] for i, text in enumerate(data.tokens) if data.token_types[i] == 1}
    symbols = list((SPACE + text if text else "").replace(" ", SPACE))
    while joint := [(-score[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in score]:
        _, at = min(joint)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    ids = {text: i for i, text in enumerate(data.tokens)}
    return [
        token
        for symbol in symbols
        for token in ([ids[symbol]] if symbol in score else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()])
    ]


@given(st.text(alphabet=st.one_of(st.sampled_from(" aeinorst.\n`_/"), st.characters(codec="utf-8")), max_size=30))
def test_ids_equal_the_definition_and_any_text_comes_back(text: str) -> None:
    assume(SPACE not in text)  # it would come back as a space
    ids = MADE.encode(text, add_special=False)
    assert ids == brute_force(text, trained_data())
    assert MADE.decode(ids) == text


def test_streamed_text_is_the_plain_text_after_the_prompts(made: Tokenizer) -> None:
    """Wherever prompt and answer meet: the answer keeps the space it starts with, the whole text loses only its own."""
    text = ROWS[0][:400] + " naïve 🙂 end"
    ids = made.encode(text, add_special=False)
    for cut in range(1, len(ids)):
        stream = Detokenizer(made)
        pieces = [stream.push([token]).text for token in ids[cut:]]
        streamed = "".join([*pieces, stream.finish()])
        head = b"".join(made.token_bytes[token] for token in ids[:cut])
        assert streamed == b"".join(made.token_bytes[token] for token in ids[cut:]).decode(errors="replace")
        if not streamed.startswith("\ufffd"):
            assert head.decode().removeprefix(" ") + streamed == made.decode(ids) == text


def test_every_id_has_its_exact_bytes(made: Tokenizer) -> None:
    for token, (text, kind) in enumerate(zip(TRAINED["tokens"], TRAINED["token_types"], strict=True)):
        expected = {2: b"", 3: b"", 4: b"<|user|>"}.get(kind)
        if kind == 6:
            expected = bytes([int(text[3:5], 16)])
        assert made.token_bytes[token] == (text.replace(SPACE, " ").encode() if expected is None else expected)
    assert made.eos_ids == {EOS}
    assert made.vocab_size == 900
    assert max(map(len, made.token_bytes)) <= made.max_token_bytes


def test_control_tokens_written_out_and_the_space_after_them(made: Tokenizer) -> None:
    """As in llama.cpp and transformers' legacy Llama: a prefix space for each run of text between them."""
    hello = made.encode("Hello", add_special=False)
    assert made.encode("<s>Hello</s>Hello<|user|>Hello") == [BOS, BOS, *hello, EOS, *hello, USER, *hello]


def test_without_a_space_prefix() -> None:
    bare = Tokenizer(trained_data(add_space_prefix=False, add_bos=False))
    prefixed = Tokenizer(trained_data(add_bos=False))
    assert bare.encode(" Hello world") == prefixed.encode("Hello world")
    assert bare.decode(bare.encode(" Hello")) == " Hello"


@pytest.mark.parametrize("scores", [[], [0.0] * 3])
def test_scores_that_do_not_fit_are_refused(scores: list[float]) -> None:
    with pytest.raises(TokenizerError, match=f"900 tokens but {len(scores)} scores"):
        Tokenizer(trained_data(scores=scores))
