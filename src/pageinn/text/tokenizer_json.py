"""A tokenizer.json, as the tokenizers library saves it and models on the hub bring it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer as BaseTokenizer

from pageinn.text.data import TokenizerData
from pageinn.text.pretokenizers import TokenizerError
from pageinn.text.vocabulary import Built, Kind, byte_level_bytes, byte_of, piece_bytes

#: What data.model is called in this family.
FAMILY = "tokenizer.json"
#: Kinds of vocabulary whose tokens stand for exact bytes.
_MODELS = ("BPE", "Unigram")


def read_vocabulary(source: str, vocab_size: int) -> tuple[list[str], list[int]]:
    """Texts and GGUF token types by id; ids up to vocab_size that the file leaves out are unused.

    (A model's embedding often has more rows than its tokenizer has tokens.) Raises TokenizerError, without the
    file's name, if it is not a tokenizer.json, is of a kind not supported, or has ids beyond vocab_size.
    """
    try:
        content = json.loads(source)
        kind = content["model"].get("type", "BPE")
        if kind not in _MODELS:
            raise TokenizerError(f"model type {kind!r} is not supported; supported are {' and '.join(_MODELS)}")
        ids = _model_ids(content["model"]["vocab"])
        falls_back = "ByteFallback" in _types(content.get("decoder"))
        kinds = {
            token: Kind.BYTE if falls_back and byte_of(text) is not None else Kind.NORMAL for text, token in ids.items()
        }
        for added in content.get("added_tokens") or []:
            ids[added["content"]] = added["id"]
            kinds[added["id"]] = Kind.CONTROL if added["special"] else Kind.USER_DEFINED
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, TokenizerError):
            raise
        raise TokenizerError(f"not a valid tokenizer.json ({type(error).__name__}: {error})") from error
    return _by_id(ids, kinds, vocab_size)


def _model_ids(vocab: Mapping[str, int] | list[Any]) -> dict[str, int]:
    if isinstance(vocab, list):
        return {piece: i for i, (piece, _) in enumerate(vocab)}
    return dict(vocab)


def _by_id(ids: Mapping[str, int], kinds: Mapping[int, int], vocab_size: int) -> tuple[list[str], list[int]]:
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    types = [int(Kind.UNUSED)] * vocab_size
    for text, token in ids.items():
        if type(token) is not int or not 0 <= token < vocab_size:
            raise TokenizerError(f"token {text!r} has id {token}, and the model has only {vocab_size} rows")
        tokens[token], types[token] = text, int(kinds[token])
    return tokens, types


def build_json(data: TokenizerData) -> Built:
    """The tokenizer that data.json describes. Raises TokenizerError where its tokens have no exact bytes."""
    assert data.json is not None
    try:
        base: BaseTokenizer = BaseTokenizer.from_str(data.json)
    except Exception as error:  # the library raises bare Exception for whatever is wrong in the file
        raise TokenizerError(f"tokenizer.json is not valid: {' '.join(str(error).split())}") from error
    # Settings of training that a file may carry along: a prompt is never cut or filled up.
    base.no_truncation()
    base.no_padding()
    decoder = json.loads(data.json).get("decoder")
    types = _types(decoder)
    pairs = zip(data.tokens, data.token_types, strict=True)
    if "ByteLevel" in types:
        return Built(base, [byte_level_bytes(text, kind) for text, kind in pairs], starts_with_space=False)
    if "ByteFallback" in types or "Metaspace" in types:
        return Built(base, [piece_bytes(text, kind) for text, kind in pairs], _takes_a_space_off(decoder))
    name = ", ".join(types) or "none"
    raise TokenizerError(
        f"tokenizer.json: decoder {name!r} is not supported; supported are ByteLevel, ByteFallback and Metaspace"
    )


def _parts(decoder: Any) -> Iterator[Mapping[str, Any]]:
    """A decoder's steps, one after another."""
    if isinstance(decoder, Mapping):
        yield decoder
        for step in decoder.get("decoders") or []:
            yield from _parts(step)


def _types(decoder: Any) -> list[str]:
    return [str(part.get("type")) for part in _parts(decoder)]


def _takes_a_space_off(decoder: Any) -> bool:
    for part in _parts(decoder):
        if part.get("type") == "Strip" and part.get("content") == " " and part.get("start"):
            return True
        if part.get("type") == "Metaspace":
            return bool(part.get("prepend_scheme", "always") != "never")
    return False
