"""What a step takes: the catalogue's roofline over a plan's arithmetic and the bytes it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pageinn.catalogue.compute import Roofline
from pageinn.catalogue.memory import token_bytes
from pageinn.memory.moves import MoveKind
from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.scheduling.plan import Plan


class Load(NamedTuple):
    """What a plan asks of a machine.

    prefill: (tokens computed, tokens before them) of each piece of more than one token. decode: the context of each
    piece of one token, itself included. moved: blocks that go to the host or come from it.
    """

    prefill: list[tuple[int, int]]
    decode: list[int]
    moved: int


def load_of(plan: Plan) -> Load:
    """Sort a plan's work."""
    prefill, decode = [], []
    for work in plan.work:
        count = len(work.tokens) // TOKEN_BYTES
        if count == 1:
            decode.append(work.start + 1)
        else:
            prefill.append((count, work.start))
    return Load(prefill, decode, sum(move.kind is not MoveKind.COPY for move in plan.moves))


class Machine(Protocol):
    """Says how long a plan takes, in seconds."""

    def seconds(self, plan: Plan) -> float:
        """Seconds from the start of a step to its tokens."""
        ...


@dataclass(frozen=True)
class RooflineMachine:
    """A model on an accelerator. overhead: seconds that a step takes beside arithmetic, reads and the link.

    Blocks go over the link before the step computes, one after the other.
    """

    line: Roofline
    block_size: int
    overhead: float

    def seconds(self, plan: Plan) -> float:
        """How long the step takes."""
        load = load_of(plan)
        moved = load.moved * self.block_bytes / self.line.accelerator.link
        return self.line.step(load.prefill, load.decode).total + moved + self.overhead

    @property
    def block_bytes(self) -> float:
        """Bytes of one block on one accelerator."""
        return self.block_size * token_bytes(self.line.shape, self.line.store, self.line.tp)
