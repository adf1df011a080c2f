"""Settings of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ConfigError(ValueError):
    """Settings that contradict each other or the model; the message names the flag and the way out."""


class AdmissionMode(StrEnum):
    """What memory a choice must find to start: all that it may ever need, what it will likely need, or its first."""

    GUARANTEED = "guaranteed"
    PREDICTED = "predicted"
    OPTIMISTIC = "optimistic"


class Preemption(StrEnum):
    """What happens to what a preempted choice has computed: it is given up, or swapped out where there is room.

    AUTO is what costs less.
    """

    AUTO = "auto"
    RECOMPUTE = "recompute"
    SWAP = "swap"


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of a step and of the queue. Names follow vLLM's flags.

    max_overtakes: how many later requests may start before one that waits for memory. max_queued_requests and
    max_queued_tokens: requests that have not started, and tokens of their prompts; None is no bound. queue_timeout:
    seconds a request may wait for its start where it does not say itself; None is for ever.
    """

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 256
    max_model_len: int = 8192
    max_overtakes: int = 16
    admission: AdmissionMode = AdmissionMode.PREDICTED
    preempt_by: Preemption = Preemption.AUTO
    max_queued_requests: int | None = None
    max_queued_tokens: int | None = None
    queue_timeout: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} is {value}; it must be at least 1")
        for name in ("max_queued_requests", "max_queued_tokens", "queue_timeout"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"--{name.replace('_', '-')} is {value}; it must be above 0")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is below --max-num-seqs "
                f"{self.max_num_seqs}: every running sequence needs a token a step; raise the one or lower the other"
            )
