"""Whether a choice may start: whether those that run will find the blocks that they grow into."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pageinn.memory.manager import MemoryManager
from pageinn.scheduling.choice import Choice
from pageinn.scheduling.config import AdmissionMode
from pageinn.scheduling.forecast import Asked, Forecast, Prospect
from pageinn.scheduling.lengths import Curve, Lengths, Underway

#: How many standard deviations of what the running choices will hold are left room for. Measured: docs/architecture.md.
_DEVIATIONS = 3.0
#: The forecast is told of an answer again when it has grown by 1 / 2**_STALE, or come as much nearer to its limit.
_STALE = 3
#: The curve of a choice that nothing ends but its limit.
_ENDLESS = Curve(())


class Admission:
    """Keeps what is promised to the running choices. `running` is the scheduler's own list."""

    def __init__(self, mode: AdmissionMode, memory: MemoryManager, longest: int, running: Sequence[Choice]) -> None:
        self._mode = mode
        self._memory = memory
        self._running = running
        self._lengths = Lengths()
        self._forecast = Forecast(memory.block_size, longest)
        #: Blocks that each running choice may still come to need, up to its limit.
        self._promised: dict[Choice, int] = {}
        self._sum_promised = 0
        #: Choices of which the forecast is to be told before it is asked.
        self._untold: dict[Choice, None] = {}

    def reserve(self, choice: Choice, tokens: int) -> int:
        """Blocks that must be left over when a choice starts with so many tokens."""
        match self._mode:
            case AdmissionMode.OPTIMISTIC:
                # A block for each to grow into, or the newcomer would be preempted at once.
                return len(self._running)
            case AdmissionMode.GUARANTEED:
                own = self._memory.blocks_for(choice.longest) - self._memory.blocks_for(tokens)
                return own + self._sum_promised
            case AdmissionMode.PREDICTED:
                return 0

    def likely_fits(self, choice: Choice, tokens: int, exclusive: int) -> bool:
        """Whether a choice that starts so, holding so many blocks alone, will likely find what it grows into.

        Other modes have promised what they promise by their reserve. Alone, a choice may take all there is.
        """
        if self._mode is not AdmissionMode.PREDICTED or not self._running:
            return True
        available = self._memory.available_to(choice.request.scope)
        most = exclusive + self._memory.blocks_for(choice.longest) - self._memory.blocks_for(tokens)
        if most + self._sum_promised <= available:
            # Nobody will go short even if all go on to their limits: then nothing need be forecast.
            return True
        for untold in self._untold:
            self._tell(untold)
        self._untold.clear()
        # What several hold is taken to stay; the rest goes with the one that holds it.
        room = available + self._forecast.exclusive
        prospect, curve = self._prospect(choice, tokens, exclusive), self._curve(choice)
        # One that waits is asked about step after step, and mostly nothing of this has changed meanwhile.
        if choice.asked is None or choice.asked.prospect != prospect or choice.asked.curve is not curve:
            choice.asked = Asked(prospect, curve, self._forecast.claim(prospect, curve))
        return self._forecast.fits(choice.asked.claim, room, _DEVIATIONS)

    def start(self, choice: Choice) -> None:
        """A choice has started."""
        choice.asked = None
        if self._mode is not AdmissionMode.OPTIMISTIC:
            self._promised[choice] = 0
            self._promise(choice)
            self._untold[choice] = None

    def grow(self, choice: Choice) -> None:
        """A choice's table has grown. Not each block changes what is expected of it."""
        if self._mode is AdmissionMode.OPTIMISTIC:
            return
        self._promise(choice)
        near = min(choice.generated, choice.limit - choice.generated)
        if choice.generated - choice.told >= near >> _STALE:
            self._untold[choice] = None

    def leave(self, choice: Choice) -> None:
        """A choice has left its seat: its promises are free again."""
        if self._mode is not AdmissionMode.OPTIMISTIC:
            self._sum_promised -= self._promised.pop(choice)
            self._untold.pop(choice, None)
            self._forecast.drop(id(choice))

    def _promise(self, choice: Choice) -> None:
        assert choice.sequence is not None
        promised = self._memory.blocks_for(choice.longest) - len(choice.sequence.table)
        self._sum_promised += promised - self._promised[choice]
        self._promised[choice] = promised

    def _tell(self, choice: Choice) -> None:
        sequence = choice.sequence
        assert sequence is not None
        choice.told = choice.generated
        prospect = self._prospect(choice, sequence.num_tokens, self._memory.exclusive(sequence))
        self._forecast.put(id(choice), self._forecast.claim(prospect, self._curve(choice)))

    def ended(self, choice: Choice, cut: bool) -> None:
        """Learn how long a choice's answer got. cut: by its limit."""
        if choice.generated:
            self._lengths.saw(choice.request.scope.tenant, choice.generated, cut)

    def _prospect(self, choice: Choice, tokens: int, exclusive: int) -> Prospect:
        return Prospect(tokens, choice.generated, max(choice.limit - choice.generated, 1), exclusive)

    def _curve(self, choice: Choice) -> Curve:
        request = choice.request
        endless = request.ignore_eos and not request.stop_ids
        return _ENDLESS if endless else self._lengths.curve(request.scope.tenant, self._underway)

    def _underway(self) -> Iterator[Underway]:
        return (Underway(one.request.scope.tenant, one.generated) for one in self._running if one.generated)
