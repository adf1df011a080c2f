"""The conversations that contenders answer: some that come with the package, or the user's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from pageinn.drift.texts import CorpusError, built_in
from pageinn.text.template import ChatTemplate, TemplateError

#: Characters of the built-in text that its reader is asked about: some 1,400 tokens.
_PASSAGE = 6000


class Prompts(NamedTuple):
    """tokens: of each prompt. skipped: what is wrong with the rows that were left out, a line each."""

    tokens: list[list[int]]
    skipped: list[str]


def built_in_rows() -> list[str]:
    """The package's conversations, one of them about a long passage."""
    lines = files(__package__).joinpath("data/prompts.jsonl").read_text(encoding="utf-8").splitlines()
    question = (
        f"{built_in()[:_PASSAGE]}\n\nWho tells this story, and what has happened to him so far? Retell it at length."
    )
    return [*lines, json.dumps({"messages": [{"role": "user", "content": question}]})]


def read_rows(path: Path | None) -> list[str]:
    """Lines of a file, or the built-in ones. Raises CorpusError."""
    if path is None:
        return built_in_rows()
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"--prompts {path}: {error}; name a file of JSON lines with messages") from error


def tokenised(
    rows: Sequence[str], template: ChatTemplate | None, encode: Callable[[str], list[int]], room: int
) -> Prompts:
    """Prompts of at most `room` tokens. A model without a template gets the last message as it is."""
    tokens, skipped = [], []
    for number, row in enumerate(rows, 1):
        try:
            body = json.loads(row)
            messages: list[dict[str, Any]] = body["messages"]
            if template is None:
                text = str(messages[-1]["content"])
            else:
                text = template.render(messages, tools=body.get("tools") or ())
        except (json.JSONDecodeError, TypeError, KeyError, IndexError, AttributeError, TemplateError) as error:
            skipped.append(f"prompt {number}: {type(error).__name__}: {error}")
            continue
        found = encode(text)
        if 0 < len(found) <= room:
            tokens.append(found)
        else:
            skipped.append(f"prompt {number}: {len(found)} tokens, outside 1 to {room}")
    return Prompts(tokens, skipped)
