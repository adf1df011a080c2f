"""Token ids against transformers, and what a file may get wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from pageinn.text.data import TokenizerData
from pageinn.text.tokenizer import Tokenizer, TokenizerError

MINISWE = Path(__file__).parents[1] / "data" / "miniswe"


@pytest.fixture(scope="module")
def reference(smollm2_path: Path):
    """transformers' tokenizer of the same file, cutting digits as the published tokenizer.json does.

    Its conversion from GGUF ignores `tokenizer.ggml.pre` and leaves the Digits step out; "\\n\\n2." then
    gives other ids than the model was trained on.
    """
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    made.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return made


def texts() -> list[str]:
    rows = [json.loads(line) for path in sorted(MINISWE.glob("*.jsonl")) for line in path.open()]
    assert rows
    return [row[key] for row in rows for key in ("input", "output") if key in row]


def test_ids_equal_transformers_on_real_prompts(tokenizer: Tokenizer, reference) -> None:
    for text in texts():
        assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False)


AWKWARD = [
    "",
    " ",
    "\n\n2. two",
    "   12 345\t6",
    "in 2024 we had ½ of Ⅷ and ٣",
    "naïve café 日本語 🙂👩‍👩‍👧 \u0000\u200b",
    "<|im_start|>user\nhi<|im_end|>\n<|im_e nd|>",
    "I'll they're DON'T",
]


@pytest.mark.parametrize("text", AWKWARD)
def test_ids_equal_transformers_on_awkward_text(text: str, tokenizer: Tokenizer, reference) -> None:
    assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False)


@given(st.text())
def test_any_text_comes_back(byte_tokenizer: Tokenizer, text: str) -> None:
    """With all bytes in the vocabulary; SmolLM2 lacks some, and drops them as transformers does."""
    assert byte_tokenizer.decode(byte_tokenizer.encode(text)) == text


def test_known_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|im_start|>") == [1]
    assert tokenizer.eos_ids == {0, 2}
    assert tokenizer.vocab_size == 49152
    assert tokenizer.token_bytes[1] == b""
    assert tokenizer.token_text(1) == "<|im_start|>"
    assert len(set(tokenizer.token_bytes[17:])) == 49152 - 17
    assert max(map(len, tokenizer.token_bytes)) <= tokenizer.max_token_bytes


def byte_level(tokens: list[str], merges: list[str], pre: str = "gpt-2") -> TokenizerData:
    return TokenizerData(
        model="gpt2",
        pre=pre,
        tokens=tokens,
        token_types=[],
        merges=merges,
        bos_id=None,
        eos_id=None,
        pad_id=None,
        add_bos=False,
        add_space_prefix=False,
        chat_template=None,
    )


def test_begin_token_goes_in_front_once() -> None:
    made = Tokenizer(byte_level(["<s>", "a", "b"], [])._replace(token_types=[3, 1, 1], bos_id=0, add_bos=True))
    assert made.encode("ab") == [0, 1, 2]
    assert made.encode("ab", add_special=False) == [1, 2]


def test_user_defined_tokens_keep_their_text() -> None:
    made = Tokenizer(byte_level(["a", "<tag é>"], [])._replace(token_types=[1, 4]))
    assert made.encode("a<tag é>a") == [0, 1, 0]
    assert made.token_bytes[1] == "<tag é>".encode()


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        # By hand from the published patterns: Llama 3 takes up to three digits, Qwen 2 and SmolLM one.
        ("llama-bpe", "a 1234 B", ["a", "Ġ", "123", "4", "ĠB"]),
        ("qwen2", "a 1234 B", ["a", "Ġ", "1", "2", "3", "4", "ĠB"]),
        ("smollm", "a 1234 B", ["a", "Ġ", "1", "2", "3", "4", "ĠB"]),
        ("gpt-2", "a 1234 B", ["a", "Ġ1234", "ĠB"]),
        ("llama-bpe", "it'S\n\n x", ["it", "'S", "ĊĊ", "Ġx"]),
        ("gpt-2", "it's\n\n x", ["it", "'s", "ĊĊ", "Ġx"]),
    ],
)
def test_cuts_by_name(pre: str, text: str, words: list[str]) -> None:
    from pageinn.text.pretokenizers import pretokenizer

    assert [word for word, _ in pretokenizer(pre).cut.pre_tokenize_str(text)] == words


def test_llama3_takes_whole_words_before_merging() -> None:
    """Llama 3's words that no chain of merges reaches: `ignore_merges` in its tokenizer.json."""
    tokens = ["a", "b", "c", "bc", "abc"]
    assert Tokenizer(byte_level(tokens, ["b c"], "llama-bpe")).encode("abc") == [4]
    assert Tokenizer(byte_level(tokens, ["b c"], "gpt-2")).encode("abc") == [0, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "t5"}, "tokenizer model 't5' is not supported"),
        ({"pre": "tekken"}, "pre-tokenizer 'tekken' is not supported; supported are default, gpt-2"),
        ({"token_types": [1]}, "2 tokens but 1 token types"),
        ({"tokens": ["a", "a"]}, "the same token twice"),
        ({"merges": ["a x"]}, "merges do not fit its vocabulary"),
        ({"merges": ["ab"]}, "merges do not fit its vocabulary"),
        ({"eos_id": 2}, "end token 2 is outside its 2 tokens"),
    ],
)
def test_bad_files_are_refused_in_one_line(changes: dict, message: str) -> None:
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer(byte_level(["a", "b"], [])._replace(**changes))
    assert "\n" not in str(caught.value)
