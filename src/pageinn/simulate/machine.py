"""What a step takes: the catalogue's roofline over a plan's arithmetic and the bytes it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pageinn.catalogue.compute import Roofline
from pageinn.catalogue.memory import token_bytes
from pageinn.memory.moves import MoveKind
from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.scheduling.measuring import Copied
from pageinn.scheduling.plan import Plan


class Load(NamedTuple):
    """What a plan asks of a machine.

    prefill: (tokens computed, tokens before them) of each piece of more than one token. decode: the context of each
    piece of one token, itself included. out and back: blocks that go to the host, and that come from it.
    """

    prefill: list[tuple[int, int]]
    decode: list[int]
    out: int
    back: int


def load_of(plan: Plan) -> Load:
    """Sort a plan's work."""
    prefill, decode = [], []
    for work in plan.work:
        count = len(work.tokens) // TOKEN_BYTES
        if count == 1:
            decode.append(work.start + 1)
        else:
            prefill.append((count, work.start))
    kinds = [move.kind for move in plan.moves]
    return Load(prefill, decode, kinds.count(MoveKind.STORE), kinds.count(MoveKind.LOAD))


class Took(NamedTuple):
    """A step's time in seconds: computing, with what comes on top of it in each step, then copies."""

    computing: float
    copied: Copied

    @property
    def total(self) -> float:
        """All of it."""
        return self.computing + self.copied.out_seconds + self.copied.in_seconds


class Machine(Protocol):
    """Says how long a plan takes."""

    def took(self, plan: Plan) -> Took:
        """The time from the start of a step to its tokens."""
        ...


@dataclass(frozen=True)
class RooflineMachine:
    """A model on an accelerator. overhead: seconds that a step takes beside arithmetic, reads and the link.

    Blocks go over the link before the step computes, one after the other.
    """

    line: Roofline
    block_size: int
    overhead: float

    def took(self, plan: Plan) -> Took:
        """How long the step takes."""
        load, block = load_of(plan), self.block_bytes / self.line.accelerator.link
        computing = self.line.step(load.prefill, load.decode).total + self.overhead
        return Took(computing, Copied(load.out, load.out * block, load.back, load.back * block))

    @property
    def block_bytes(self) -> float:
        """Bytes of one block on one accelerator."""
        return self.block_size * token_bytes(self.line.shape, self.line.store, self.line.tp)
