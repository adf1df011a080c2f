"""How far an engine's greedy answers follow the float32 reference's."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from pageinn.model.gguf_file import GGUFFile
from pageinn.text.tokenizer import Tokenizer

from .load import Target
from .workloads import REAL_TEXTS

PROMPTS, PROMPT_TOKENS, ANSWER = 16, 256, 64


class Agreement(NamedTuple):
    """Over all prompts. prefix: the median longest common prefix. equal: share of equal tokens, by position."""

    prefix: float
    equal: float


def prompts(model: Path) -> list[list[int]]:
    """Windows of a real text, evenly spread."""
    rows = [json.loads(line)["input"] for line in REAL_TEXTS.read_text().splitlines()]
    tokens = Tokenizer(GGUFFile(model).tokenizer).encode("".join(rows))
    stride = (len(tokens) - PROMPT_TOKENS) // (PROMPTS - 1)
    return [tokens[place * stride : place * stride + PROMPT_TOKENS] for place in range(PROMPTS)]


async def answers(target: Target, asked: Sequence[Sequence[int]]) -> list[list[int]]:
    """One after another, so that a batch changes nothing."""
    return [await target.tokens(prompt, ANSWER) for prompt in asked]


def agreement(found: Sequence[Sequence[int]], reference: Sequence[Sequence[int]]) -> Agreement:
    pairs = list(zip(found, reference, strict=True))
    equal = sum(sum(map(int.__eq__, mine, theirs)) for mine, theirs in pairs)
    return Agreement(median(common_prefix(*pair) for pair in pairs), equal / sum(map(len, reference)))


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
