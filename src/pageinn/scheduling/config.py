"""Settings of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ConfigError(ValueError):
    """Settings that contradict each other or the model; the message names the flag and the way out."""


class Preemption(StrEnum):
    """What happens to what a preempted sequence has computed: it is given up, or swapped out where there is room."""

    RECOMPUTE = "recompute"
    SWAP = "swap"


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of a step and of the queue. Names follow vLLM's flags.

    max_overtakes: how many later requests may start before one that waits for memory.
    """

    max_num_seqs: int = 32
    max_num_batched_tokens: int = 256
    max_model_len: int = 8192
    max_overtakes: int = 16
    preempt_by: Preemption = Preemption.SWAP

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} is {value}; it must be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is below --max-num-seqs "
                f"{self.max_num_seqs}: every running sequence needs a token a step; raise the one or lower the other"
            )
