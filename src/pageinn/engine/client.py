"""The async face of the engine: what the server holds. The only file that knows the engine runs in a thread."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pageinn.engine.messages import Delta, GenerationRequest, ResetReport
from pageinn.engine.stats import Stats


class EngineClient:
    """Starts the step loop in a thread and exchanges messages with it."""

    def generate(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        """Stream the deltas of all choices; closing the iterator early cancels. Raises RefusedError before the first."""
        raise NotImplementedError

    async def cancel(self, request_id: str) -> None:
        """Free everything of a request at the next step."""
        raise NotImplementedError

    async def reset_prefix_cache(self) -> ResetReport:
        """Drop all kept blocks; says what that freed."""
        raise NotImplementedError

    def stats(self) -> Stats:
        """Counters and gauges as of the last step."""
        raise NotImplementedError

    @property
    def alive(self) -> bool:
        """Whether the step loop still runs."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Refuse new requests, wait for the running ones, stop the loop."""
        raise NotImplementedError
