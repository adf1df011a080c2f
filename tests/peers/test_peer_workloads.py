"""The requests that engines are compared on: their sizes, and that no run leaves anything to another."""

from __future__ import annotations

from itertools import pairwise, takewhile

import pytest

from peers.workloads import WORKLOADS, Step, Turn, workload


def steps(name: str, run: int = 1) -> list[list[Step]]:
    return [[step for step in client if isinstance(step, Step)] for client in workload(name, run)]


@pytest.mark.parametrize(
    ("name", "clients", "each", "first", "last", "answer", "shared"),
    [
        ("single", 1, 2, 128, 128, 128, 128),
        ("none", 8, 2, 512, 512, 64, 0),
        ("fewshot", 8, 8, 1600, 1600, 8, 1536),
        ("agent", 4, 8, 1088, 1760, 32, 1024),
        ("chat", 8, 6, 304, 784, 48, 256),
        ("decode", 16, 1, 32, 32, 192, 0),
        ("longctx", 8, 1, 4128, 4128, 96, 4096),
        ("rag", 8, 3, 996, 996, 32, 96),
    ],
)
def test_sizes(name: str, clients: int, each: int, first: int, last: int, answer: int, shared: int) -> None:
    made = steps(name)
    assert [len(client) for client in made] == [each] * clients
    assert all((len(client[0].prompt), len(client[-1].prompt)) == (first, last) for client in made)
    assert {step.max_tokens for client in made for step in client} == {answer}
    columns = zip(*(client[0].prompt for client in made), strict=True)
    assert sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns)) == shared


@pytest.mark.parametrize("name", ["agent", "chat"])
def test_a_step_goes_on_from_the_one_before(name: str) -> None:
    for client in steps(name):
        assert all(later.prompt[: len(step.prompt)] == step.prompt for step, later in pairwise(client))


def test_a_run_shares_nothing_with_another_or_with_another_workload() -> None:
    heads = [steps(name, run)[0][0].prompt[:32] for name in WORKLOADS if name != "turns" for run in (1, 2)]
    assert len(set(heads)) == len(heads)
    assert steps("none", 3) == steps("none", 3)


def test_turns_are_real_text_under_one_system_prompt() -> None:
    clients = workload("turns", 1)
    assert [len(client) for client in clients] == [5] * 8
    turns = [turn for client in clients for turn in client if isinstance(turn, Turn)]
    assert len({turn.system for turn in turns if turn.system}) == 1
    assert len({turn.user for turn in turns}) == 40
