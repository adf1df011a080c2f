"""What the log says of memory: each preemption with its prices, thrashing, and how many sequences fit."""

from __future__ import annotations

import logging

from pageinn.scheduling.plan import Plan
from pageinn.scheduling.scheduler import Scheduler

log = logging.getLogger("pageinn")

#: The watermark is said again when it has changed by this part of itself.
_CHANGED = 0.25


class Advice:
    """Looks at the scheduler after each plan and says what has changed."""

    def __init__(self) -> None:
        self._thrashing = False
        self._said = 0

    def after(self, scheduler: Scheduler, plan: Plan) -> None:
        """Log what a plan did."""
        for one in plan.preempted:
            log.info(
                "%s: choice %d is preempted by %s for %d blocks: recompute costs %.3f s, swap %.3f s",
                one.request_id,
                one.choice,
                one.way,
                one.blocks,
                one.recompute_seconds,
                one.swap_seconds,
            )
        if plan.preempted:
            self._say_watermark(scheduler)
        if scheduler.thrash.now and not self._thrashing:
            log.warning("the cache thrashes: %s", remedy(scheduler))
        self._thrashing = scheduler.thrash.now

    def _say_watermark(self, scheduler: Scheduler) -> None:
        watermark = scheduler.watermark
        if watermark is not None and abs(watermark - self._said) > _CHANGED * self._said:
            self._said = watermark
            log.info("preemption does not start below %d running sequences", watermark)


def remedy(scheduler: Scheduler) -> str:
    """What to change when memory is full, the queue grows and preemptions become more frequent."""
    watermark = scheduler.watermark
    fewer = f"--max-num-seqs {watermark}" if watermark is not None else "a smaller --max-num-seqs"
    wait = "the running sequences need more blocks than there are, and the queue grows"
    careful = " or --admission predicted" if scheduler.config.admission == "optimistic" else ""
    return f"{wait}; set {fewer}{careful}, give more --kv-cache-memory-bytes, or send less here"
