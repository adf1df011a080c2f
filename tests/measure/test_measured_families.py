"""Clusters are found from the prompts, and named only where the name fits."""

from __future__ import annotations

import random

from pageinn.measure.families import Cluster, clusters
from pageinn.measure.token_tree import TokenTree
from pageinn.memory.tokens import pack


class Traffic:
    """Requests of random tokens, by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rows: list[tuple[float, float, list[int]]] = []

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(50_000) for _ in range(count)]

    def few_shot(self, start: float) -> None:
        head = self.tokens(2000)
        self.rows += [(start + n, start + n + 0.5, head + self.tokens(60)) for n in range(40)]

    def sessions(self, start: float, gap: float, turns: int, first: int, more: int) -> None:
        head = self.tokens(800)
        for session in range(5):
            prompt, time = head + self.tokens(first), start + session * 3.1
            for _ in range(turns):
                self.rows.append((time, time + 1.0, prompt))
                prompt = prompt + self.tokens(more)
                time += 1.0 + gap

    def retrieval(self, start: float) -> None:
        head = self.tokens(100)
        self.rows += [(start + n, start + n + 0.5, head + self.tokens(3000)) for n in range(40)]

    def clusters(self, clock: bool = True) -> list[Cluster]:
        tree = TokenTree(16)
        for arrival, end, prompt in sorted(self.rows, key=lambda row: row[0]):
            tree.add("", pack(prompt), b"", arrival, end)
        return clusters(tree.paths(), clock)


def test_each_kind_alone_has_its_name() -> None:
    for kind, build in {
        "few-shot": lambda traffic: traffic.few_shot(0),
        "agent loop": lambda traffic: traffic.sessions(0, 1.0, 12, 300, 200),
        "chat": lambda traffic: traffic.sessions(0, 40.0, 8, 50, 150),
        "coding": lambda traffic: traffic.sessions(0, 5.0, 12, 15_000, 500),
        "retrieval": lambda traffic: traffic.retrieval(0),
    }.items():
        traffic = Traffic(1)
        build(traffic)
        found = traffic.clusters()
        assert {each.name for each in found} <= {kind, ""}, kind
        assert sum(each.tokens for each in found if each.name == kind) > 0.9 * sum(each.tokens for each in found), kind


def test_kinds_that_stand_together_are_found() -> None:
    traffic = Traffic(2)
    traffic.few_shot(0)
    traffic.retrieval(5)
    traffic.sessions(7, 1.0, 12, 300, 200)
    found = traffic.clusters()
    assert {each.name for each in found} >= {"few-shot", "retrieval", "agent loop"}
    assert sum(each.requests for each in found) == len(traffic.rows)


def test_without_a_clock_no_conversation_is_named() -> None:
    traffic = Traffic(3)
    traffic.sessions(0, 1.0, 12, 300, 200)
    assert {each.name for each in traffic.clusters(clock=False)} == {""}


def test_what_fits_nothing_has_no_name() -> None:
    traffic = Traffic(4)
    traffic.rows = [(float(n), n + 0.5, traffic.tokens(20)) for n in range(30)]
    assert {each.name for each in traffic.clusters()} == {""}
