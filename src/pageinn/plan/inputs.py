"""What is asked of the planner."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pageinn.catalogue.accelerators import Accelerator
from pageinn.catalogue.compute import Roofline
from pageinn.catalogue.memory import weight_bytes, weight_format
from pageinn.catalogue.shape import Shape
from pageinn.plan.figures import GIB, PlanError
from pageinn.plan.lengths import Lengths

#: Prompt tokens in one step, and answers whose logits are made at once: what peak activations are counted for.
BATCHED_TOKENS, LOGIT_ROWS = 8192, 256
#: Context, libraries and captured graphs of a GPU's runtime, bytes: an assumption, as none of it is published.
RUNTIME = 1 * GIB
#: Reading speed of one NVMe drive on PCIe 4.0, bytes per second: an assumption.
DISK = 7e9


@dataclass(frozen=True)
class Measured:
    """Seconds that were measured and are used in place of calculated ones; None where there is none."""

    prefill: float | None = None
    prefill_after_hit: float | None = None
    token: float | None = None


@dataclass(frozen=True)
class Inputs:
    """The question. Bytes are per accelerator, tokens per sequence.

    weights, store: names of formats. exact_weights: bytes of the files, where there are some. cache: bytes of the
    cache, None to work it out. overhead: bytes beside weights and cache, None to estimate. utilisation: the share of
    the card's memory that may be used. prompt: tokens that are recomputed or moved; shared: tokens at the start of
    every prompt that are the same. requests: how many share one prompt in the example. answer: tokens generated.
    """

    shape: Shape
    accelerator: Accelerator
    weights: str
    store: str
    limit: int
    lengths: Lengths
    tp: int = 1
    block_size: int = 16
    exact_weights: float | None = None
    cache: int | None = None
    overhead: int | None = None
    utilisation: float = 0.9
    prompt: int | None = None
    shared: int = 0
    requests: int = 100
    answer: int = 300
    flops_share: float = 1.0
    bandwidth_share: float = 1.0
    disk: float = DISK
    host: int | None = None
    measured: Measured = Measured()

    def check(self) -> Inputs:
        """Itself. Raises PlanError for what does not fit together, CatalogueError for unknown formats."""
        weight_format(self.weights)
        if self.limit > self.shape.context:
            raise PlanError(f"--max-model-len {self.limit} is beyond {self.shape.name}'s {self.shape.context} tokens")
        longest = max(self.lengths.sample, default=self.lengths.mean)
        if longest > self.limit:
            raise PlanError(f"a length of {longest:g} tokens is beyond --max-model-len {self.limit}")
        if self.shared >= self.lengths.mean:
            raise PlanError(
                f"--shared-prefix {self.shared} is not shorter than the mean of {self.lengths.mean:g} tokens"
            )
        if self.moved > self.limit:
            raise PlanError(f"--prompt {self.moved} is beyond --max-model-len {self.limit}")
        return self

    @property
    def moved(self) -> int:
        """Tokens of the prompt that is recomputed or moved."""
        return self.prompt or self.limit

    @cached_property
    def line(self) -> Roofline:
        """The model on the accelerators."""
        return Roofline(
            self.shape,
            self.accelerator,
            self.weights,
            self.store,
            self.tp,
            self.flops_share,
            self.bandwidth_share,
            self.exact_weights,
        )

    @property
    def weight_bytes(self) -> float:
        """Of the files where they are known, else by the format."""
        return self.line.weight_bytes

    @property
    def overhead_bytes(self) -> float:
        """Beside weights and cache."""
        if self.overhead is not None:
            return self.overhead
        widest = max(ff.width * ff.active + ff.shared for ff in (group.feed_forward for group in self.shape.groups))
        rows = 2 * BATCHED_TOKENS * (4 * self.shape.hidden + 2 * widest / self.tp)
        return RUNTIME + rows + 4 * LOGIT_ROWS * self.shape.vocab / self.tp

    @property
    def usable(self) -> float:
        """Bytes of the card that may be used."""
        return self.accelerator.memory * self.utilisation

    @property
    def cache_bytes(self) -> float:
        """Bytes of the cache. Raises PlanError where the weights leave none."""
        if self.cache is not None:
            return self.cache
        left = self.usable - self.weight_bytes - self.overhead_bytes
        if left <= 0:
            raise PlanError(
                f"{self.shape.name} in {self.weights} leaves no cache on {self.tp} x {self.accelerator.name}: "
                f"{self.weight_bytes / GIB:.1f} GiB of weights and {self.overhead_bytes / GIB:.1f} GiB beside them in "
                f"{self.usable / GIB:.1f} GiB; {self._way_out()}"
            )
        return left

    def _way_out(self) -> str:
        for tp in (2, 4, 8, 16):
            if tp > self.tp and weight_bytes(self.shape, self.weights, tp) + self.overhead_bytes < self.usable:
                return f"--tensor-parallel-size {tp} would hold it"
        return "take a larger card or smaller weights (--weights int4)"
