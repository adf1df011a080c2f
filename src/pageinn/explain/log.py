"""The prompts of a log, read once: laid out in units, and tokenised."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pageinn.explain.rendering import Rendering
from pageinn.explain.units import Laid, Units
from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.traffic.record import Record

#: Called with a stage and how many more requests have passed it.
Progress = Callable[[str, int], None]


@dataclass(slots=True)
class Log:
    """skipped: requests whose prompts are known as ids or lengths alone, or which the template refused.

    share_tenants: whether prompts of different tenants may share a prefix.
    """

    units: Units = field(default_factory=Units)
    records: list[Record] = field(default_factory=list)
    prompts: list[Laid] = field(default_factory=list)
    packed: list[bytes] = field(default_factory=list)
    skipped: int = 0
    share_tenants: bool = False

    def read(self, records: Iterable[Record], rendering: Rendering, progress: Progress) -> None:
        """Lay out and tokenise all prompts, in the order of time where all have one."""
        for record in records:
            pieces = rendering.pieces(record)
            progress("reading", 1)
            if pieces is None:
                self.skipped += 1
                continue
            self.records.append(record)
            self.prompts.append(self.units.lay(pieces))
            self.packed.append(rendering.pack("".join(piece.text for piece in pieces), record))
        times = [record.time for record in self.records if record.time is not None]
        if len(times) == len(self.records):
            order = sorted(range(len(times)), key=times.__getitem__)
            self.records = [self.records[k] for k in order]
            self.prompts = [self.prompts[k] for k in order]
            self.packed = [self.packed[k] for k in order]

    @property
    def scopes(self) -> list[tuple[str, str]]:
        """For each prompt, whose prompts it may share prefixes with: the same model's, and the same tenant's."""
        return [(record.model, "" if self.share_tenants else record.tenant) for record in self.records]

    def length(self, number: int) -> int:
        """The prompt's tokens."""
        return len(self.packed[number]) // TOKEN_BYTES

    def name(self, number: int) -> str:
        """Where a request was read."""
        record = self.records[number]
        return f"{record.source}:{record.line}"
