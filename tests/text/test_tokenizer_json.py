"""A tokenizer.json against the tokenizers library and transformers reading the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as BaseTokenizer

from pageinn.text.data import TokenizerData
from pageinn.text.detokenizer import Detokenizer
from pageinn.text.tokenizer import Tokenizer, TokenizerError
from pageinn.text.tokenizer_json import read_vocabulary

DATA = Path(__file__).parents[1] / "data"
ROWS = [json.loads(line)["input"] for line in (DATA / "miniswe" / "inputs.jsonl").open()]
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_end|>"]
SIZE = 700
AWKWARD = ["", " ", "  two", "naïve 日本語 🙂\n\n\t1234", "a<|im_end|>b", "<think>x</think>", "é"]


def from_json(source: str, size: int = SIZE, **changes: Any) -> Tokenizer:
    tokens, types = read_vocabulary(source, size)
    data = TokenizerData(
        model="tokenizer.json",
        pre="",
        tokens=tokens,
        token_types=types,
        merges=[],
        bos_id=1,
        eos_id=2,
        pad_id=None,
        add_bos=None,
        add_space_prefix=False,
        chat_template=None,
        json=source,
    )
    return Tokenizer(data._replace(**changes))


def byte_level() -> BaseTokenizer:
    made = BaseTokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        ROWS[:2], trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    return made


def metaspace() -> BaseTokenizer:
    """As transformers' Llama converter lays one out: Metaspace at the first text only, byte fallback, strip."""
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    made = BaseTokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=[*SPECIAL, *fallback], limit_alphabet=150)
    words = [word for row in ROWS[:2] for word in row.split(" ")]
    made.train_from_iterator(words, trainer)
    content = json.loads(made.to_str())
    content["added_tokens"] = [added for added in content["added_tokens"] if added["content"] in SPECIAL]
    made = BaseTokenizer.from_str(json.dumps(content))
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


def unigram() -> BaseTokenizer:
    made = BaseTokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.train_from_iterator(
        ROWS[:1],
        trainers.UnigramTrainer(vocab_size=400, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False),
    )
    return made


@pytest.fixture(scope="module", params=[byte_level, metaspace, unigram], ids=lambda make: make.__name__)
def base(request: pytest.FixtureRequest) -> BaseTokenizer:
    made: BaseTokenizer = request.param()
    made.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made


def test_ids_equal_the_librarys_and_transformers(base: BaseTokenizer) -> None:
    from transformers import PreTrainedTokenizerFast

    ours = from_json(base.to_str())
    theirs = PreTrainedTokenizerFast(tokenizer_object=BaseTokenizer.from_str(base.to_str()))
    for text in [*ROWS, *AWKWARD]:
        assert ours.encode(text) == base.encode(text).ids == theirs.encode(text)
        assert ours.encode(text, add_special=False) == base.encode(text, add_special_tokens=False).ids


def test_decoded_and_streamed_text_equals_the_librarys(base: BaseTokenizer) -> None:
    ours = from_json(base.to_str())
    for text in [ROWS[0], ROWS[1][:2000], *AWKWARD]:
        ids = base.encode(text).ids
        plain = base.decode(ids)
        assert ours.decode(ids) == plain
        stream = Detokenizer(ours)
        pieces = [stream.push([token]).text for token in ids]
        streamed = "".join([*pieces, stream.finish()])
        assert streamed in (plain, " " + plain)


def test_every_id_alone_has_the_bytes_the_library_shows(base: BaseTokenizer) -> None:
    ours = from_json(base.to_str())
    for token in range(base.get_vocab_size()):
        # A neighbour keeps the decoder from taking off a leading space; whole characters only.
        before = base.encode("a", add_special_tokens=False).ids[-1:]
        shown = base.decode([*before, token]).removeprefix(base.decode(before))
        assert ours.token_bytes[token].decode(errors="replace") == shown


def test_rows_of_the_embedding_without_a_token_are_unused(base: BaseTokenizer) -> None:
    ours = from_json(base.to_str())
    assert ours.vocab_size == SIZE == len(ours.token_bytes)
    last = SIZE - 1
    assert (ours.token_bytes[last], ours.token_text(last)) == (b"", f"[PAD{last}]")
    assert ours.eos_ids == {2, 3}
    assert from_json(base.to_str(), eos_ids=frozenset({5})).eos_ids == {2, 3, 5}


def test_padding_and_truncation_of_training_are_left_out() -> None:
    made = byte_level()
    plain = made.encode(ROWS[0]).ids
    made.enable_truncation(10)
    made.enable_padding(length=20)
    assert from_json(made.to_str()).encode(ROWS[0]) == plain


def test_an_explicit_begin_token_overrides_the_file(base: BaseTokenizer) -> None:
    hello = base.encode("Hello", add_special_tokens=False).ids
    assert from_json(base.to_str(), add_bos=False).encode("Hello") == hello
    assert from_json(base.to_str(), add_bos=True).encode("Hello") == [1, *hello]


def broken(**changes: Any) -> str:
    return json.dumps({**json.loads(byte_level().to_str()), **changes})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "not a valid tokenizer.json"),
        ("[]", "not a valid tokenizer.json"),
        ("[" * 100_000, "not a valid tokenizer.json"),
        ('{"model": {"type": "WordPiece", "vocab": {}}}', "model type 'WordPiece' is not supported"),
        ('{"model": {"type": "BPE", "vocab": {"a": 900}}}', "token 'a' has id 900, and the model has only 700 rows"),
        ('{"model": {"type": "BPE", "vocab": {"a": "0"}}}', "has id 0"),
        ('{"model": {"type": "BPE", "vocab": {"a": 0}}}', "tokenizer.json is not valid"),
        (
            broken(decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}),
            "decoder 'WordPiece' is not supported",
        ),
        (broken(decoder=None), "decoder 'none' is not supported"),
    ],
    ids=range(9),
)
def test_bad_files_are_refused_in_one_line(source: str, message: str) -> None:
    with pytest.raises(TokenizerError, match=message) as caught:
        from_json(source)
    assert "\n" not in str(caught.value)
