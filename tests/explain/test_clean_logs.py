"""Logs without a fault get no finding: cut and resampled from real prompts, by seed."""

from __future__ import annotations

import random

import pytest
from explaining import Explain
from faulty_logs import answers, chat_log, conversation, instructions, outputs, rows, tasks, text_log, tools

from pageinn.traffic import Chat, Record, Text

SEEDS = range(12)


@pytest.mark.parametrize("seed", SEEDS)
def test_conversations_that_grow(explain: Explain, seed: int) -> None:
    """Agents side by side or one after another, with and without tools, their sessions known or not."""
    rng = random.Random(seed)
    chats: list[Chat] = []
    sessions: list[str] = []
    for number in range(rng.randrange(1, 6)):
        grown = conversation(rng, rng.randrange(2, 9), with_tools=seed % 2 == 0)
        chats += grown
        sessions += [str(number)] * len(grown)
    if seed % 3 == 0:
        order = sorted(range(len(chats)), key=lambda k: rng.random() + k / 5)
        chats, sessions = [chats[k] for k in order], [sessions[k] for k in order]
    assert not explain(chat_log(chats, sessions=sessions if seed % 4 < 2 else None)).report.findings


@pytest.mark.parametrize("seed", SEEDS)
def test_questions_behind_a_shared_prompt(explain: Explain, seed: int) -> None:
    """Few-shot fan-out: examples that all share, then each its own question, then a few words that all share."""
    rng = random.Random(seed)
    examples = instructions() + "".join(rng.sample(outputs(), 3))
    words = " ".join(answers()).split()
    asked = [" ".join(rng.sample(words, rng.randrange(5, 60))) for _ in range(30)]
    texts = [f"{examples}\nQuestion {rng.randrange(10**6)}: {one}\nAnswer in one line.\n" for one in asked]
    assert not explain(text_log(texts)).report.findings


@pytest.mark.parametrize("seed", SEEDS)
def test_real_sessions_cut_and_repeated(explain: Explain, seed: int) -> None:
    """The trace's own prompts: sessions from a random turn on, some requests sent twice, some missing."""
    rng = random.Random(seed)
    kept = [row for row in rows() for _ in range(rng.choice([0, 1, 1, 2]))] or list(rows())
    records = [Record("log", k, Text(row.input), float(k), session=row.session) for k, row in enumerate(kept, 1)]
    assert not explain(records).report.findings


@pytest.mark.parametrize("seed", SEEDS)
def test_branches_of_one_conversation(explain: Explain, seed: int) -> None:
    """Answers sampled again: the same beginning, another answer, and tools that happen to say the same later."""
    rng = random.Random(seed)
    trunk = conversation(rng, 4, with_tools=True)[-1]
    chats = []
    for _ in range(6):
        messages = list(trunk.messages)
        for _ in range(rng.randrange(1, 4)):
            words = answers()[rng.randrange(len(answers()))].split()
            rng.shuffle(words)
            messages.append({"role": "assistant", "content": " ".join(words)})
            messages.append({"role": "user", "content": rng.choice(outputs())})
            chats.append(Chat(list(messages), trunk.tools, {}))
    assert not explain(chat_log(chats)).report.findings


@pytest.mark.parametrize("seed", SEEDS)
def test_retrieval(explain: Explain, seed: int) -> None:
    """Other documents in front of each question, some of them seen before, in any order."""
    rng = random.Random(seed)
    library = [text for text in [*outputs(), *tasks(), *answers()] if len(text) > 200]
    system = {"role": "system", "content": "Answer from the documents below.\n" + instructions()[:1500]}
    chats = []
    for k in range(20):
        documents = "\n\n".join(rng.sample(library, 3))
        chats.append(Chat([system, {"role": "user", "content": f"{documents}\n\nQuestion: what of {k}?"}], [], {}))
    assert not explain(chat_log(chats)).report.findings


def test_agents_with_different_tools_and_prompts(explain: Explain) -> None:
    """A planner and a worker: two kinds of prompts, not two variants of one."""
    rng = random.Random(99)
    planner = conversation(rng, 5, system="You plan.\n" + instructions()[:2000])
    worker = [chat._replace(tools=tools()[:5]) for chat in conversation(rng, 5, system=instructions()[2500:])]
    mixed = [chat for pair in zip(planner, worker, strict=True) for chat in pair]
    assert not explain(chat_log(mixed)).report.findings
