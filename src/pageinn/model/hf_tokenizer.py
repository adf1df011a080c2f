"""From a folder's tokenizer.json and its companions to a TokenizerData."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pageinn.model.config import ModelError, short
from pageinn.model.values import Values
from pageinn.text.data import TokenizerData
from pageinn.text.pretokenizers import TokenizerError
from pageinn.text.tokenizer_json import FAMILY, read_vocabulary


def read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    """An object in a file; empty if there is no such file and it is not required.

    Raises ModelError, without the folder's name, for a file that is missing, unreadable or not a JSON object.
    """
    text = read_text(path, required=required)
    if text is None:
        return {}
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path.name} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path.name} is not a JSON object")
    return content


def read_text(path: Path, *, required: bool = False) -> str | None:
    """A text file; None if there is no such file and it is not required."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if required:
            raise ModelError(f"{path.name} is missing") from error
        return None
    except UnicodeDecodeError as error:
        raise ModelError(f"{path.name} is not UTF-8") from error
    except OSError as error:
        raise ModelError(f"{path.name}: {error.strerror}") from error


def read_hf_tokenizer(folder: Path, config: Mapping[str, Any], vocab_size: int) -> TokenizerData:
    """What the folder says about its tokenizer. config: its config.json.

    Ids that end an answer are those of generation_config.json and config.json. Raises ModelError, without the
    folder's name, for files that are missing or contradict each other.
    """
    source = read_text(folder / "tokenizer.json")
    if source is None:
        raise ModelError(_missing(folder))
    try:
        tokens, types = read_vocabulary(source, vocab_size)
    except TokenizerError as error:
        raise ModelError(f"tokenizer.json: {error}") from error
    said = read_json(folder / "tokenizer_config.json")
    generation = read_json(folder / "generation_config.json")
    ids = {text: i for i, text in enumerate(tokens)}
    ends = [*_ids(config, "config.json"), *_ids(generation, "generation_config.json")]
    for end in ends:
        if not 0 <= end < vocab_size:
            raise ModelError(f"eos_token_id {end} is outside the vocabulary of {vocab_size} tokens")
    named_end = ids.get(_special(said, "eos_token"))
    return TokenizerData(
        model=FAMILY,
        pre="",
        tokens=tokens,
        token_types=types,
        merges=[],
        bos_id=ids.get(_special(said, "bos_token")),
        eos_id=named_end if named_end is not None else next(iter(ends), None),
        pad_id=ids.get(_special(said, "pad_token")),
        add_bos=_adds_bos(said),
        add_space_prefix=False,
        chat_template=_chat_template(folder, said),
        eos_ids=frozenset(ends),
        json=source,
    )


def _missing(folder: Path) -> str:
    if (folder / "tokenizer.model").exists():
        return (
            "tokenizer.json is missing (tokenizer.model is SentencePiece's own file, which is not read: "
            "save the tokenizer once with transformers' AutoTokenizer)"
        )
    return "tokenizer.json is missing"


def _ids(content: Mapping[str, Any], name: str) -> list[int]:
    value = content.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(each) is int for each in ids):
        raise ModelError(f"{name}'s 'eos_token_id' is {short(value)}, not an id or a list of ids")
    return ids


def _special(said: Mapping[str, Any], key: str) -> str:
    """The text of a special token, "" (which is no token) where there is none."""
    value = said.get(key)
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _adds_bos(said: Mapping[str, Any]) -> bool | None:
    """As in transformers: what is said of either end replaces what tokenizer.json does at both."""
    read = Values({key: value for key, value in said.items() if value is not None}, "tokenizer_config.json")
    if read.flag("add_eos_token", False):
        raise ModelError("tokenizer_config.json's 'add_eos_token' is true: a prompt that ends itself is not supported")
    if "add_bos_token" not in read.values and "add_eos_token" not in read.values:
        return None
    return read.flag("add_bos_token", False)


def _chat_template(folder: Path, said: Mapping[str, Any]) -> str | None:
    own_file = read_text(folder / "chat_template.jinja")
    if own_file is not None:
        return own_file
    value = said.get("chat_template")
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, Mapping)}
        value = named.get("default")
    if value is not None and not isinstance(value, str):
        raise ModelError(f"tokenizer_config.json's 'chat_template' is {short(value)}, not a string")
    return value
