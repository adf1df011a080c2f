"""Settings of an engine. Names follow vLLM's flags."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pageinn.memory.eviction import EvictionPolicy
from pageinn.memory.questions import PrefixCache
from pageinn.memory.retention import DEFAULT_MOST_RETAINED
from pageinn.scheduling.config import AdmissionMode, ConfigError, Preemption, SchedulerConfig

__all__ = ["ConfigError", "EngineConfig"]

#: Decodes wait for the prefill chunk they share a step with: about half a second of it on two cores.
DEFAULT_BATCHED_TOKENS = 256
DEFAULT_SEQS = SchedulerConfig.max_num_seqs
DEFAULT_CACHE_BYTES = 1 << 30
DEFAULT_DISK_BYTES = 8 << 30
#: What --kv-cache-dtype takes beside the names of store dtypes; `auto` is what suits a CPU.
STORE_DTYPE_ALIASES = {"auto": "bfloat16", "fp8": "fp8_e4m3"}


@dataclass(frozen=True)
class EngineConfig:
    """What to serve and within which limits.

    model: a GGUF file, or None for the packaged default model. max_model_len: None is what model and cache allow.
    kv_cache_scales: for an fp8 cache, a file that `pageinn drift --calibrate` wrote; None is a scale of 1.
    host_memory_bytes: for blocks that were evicted or swapped out; 0 for none. disk_cache: a folder that keeps blocks
    across restarts, for this engine alone; None for none. weights_cache: a folder where packed weights are kept for the
    next start, of any engine; None for none. max_queued_requests, max_queued_tokens and queue_timeout:
    None is no bound. threads: None is one per usable core. seed: what per-request seeds are drawn from, None for real
    randomness.
    """

    model: Path | None = None
    quantization: str = "int8"
    kv_cache_dtype: str = "auto"
    kv_cache_scales: Path | None = None
    kv_cache_memory_bytes: int = DEFAULT_CACHE_BYTES
    block_size: int = 16
    max_num_seqs: int = DEFAULT_SEQS
    max_num_batched_tokens: int = DEFAULT_BATCHED_TOKENS
    max_model_len: int | None = None
    admission: AdmissionMode = AdmissionMode.PREDICTED
    preempt_by: Preemption = Preemption.AUTO
    max_queued_requests: int | None = None
    max_queued_tokens: int | None = None
    queue_timeout: float | None = None
    prefix_cache: PrefixCache = PrefixCache.KEEP
    eviction_policy: EvictionPolicy = EvictionPolicy.REUSE
    host_memory_bytes: int = 0
    max_retained_share: float = DEFAULT_MOST_RETAINED
    disk_cache: Path | None = None
    disk_cache_bytes: int = DEFAULT_DISK_BYTES
    weights_cache: Path | None = None
    threads: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.host_memory_bytes and self.prefix_cache == PrefixCache.OFF:
            raise ConfigError("--host-memory-bytes needs --prefix-cache keep or live")
        if self.disk_cache is not None and self.prefix_cache != PrefixCache.KEEP:
            raise ConfigError("--disk-cache needs --prefix-cache keep")
        if self.disk_cache is None and self.disk_cache_bytes != DEFAULT_DISK_BYTES:
            raise ConfigError("--disk-cache-bytes needs --disk-cache: there is no folder that it could bound")
        if self.preempt_by == Preemption.SWAP and not self.host_memory_bytes and self.disk_cache is None:
            raise ConfigError("--preemption-mode swap needs --host-memory-bytes: there is nowhere to swap to")

    @property
    def store_dtype(self) -> str:
        """The dtype named, or the one that an alias stands for."""
        return STORE_DTYPE_ALIASES.get(self.kv_cache_dtype, self.kv_cache_dtype)


def require_store_dtype(dtype: str, supported: frozenset[str], backend: str) -> None:
    """Raise ConfigError for a store dtype that the backend does not support."""
    if dtype not in supported:
        raise ConfigError(
            f"--kv-cache-dtype {dtype} is not supported by the {backend} backend; take one of "
            f"{', '.join(sorted(supported))}"
        )


def require_block_size(block_size: int, multiple: int, backend: str) -> None:
    """Raise ConfigError for blocks that the backend cannot read."""
    if block_size < 1 or block_size % multiple:
        raise ConfigError(
            f"--block-size is {block_size}; the {backend} backend needs a multiple of {multiple} tokens, for example 16"
        )


def model_length(asked: int | None, context_length: int, cache_slots: int) -> int:
    """The longest sequence to serve. Raises ConfigError when the model or the cache cannot hold what was asked for."""
    if asked is None:
        return min(context_length, cache_slots)
    if asked > context_length:
        raise ConfigError(f"--max-model-len is {asked}, and the model goes to {context_length}; ask for less")
    if asked > cache_slots:
        raise ConfigError(
            f"--max-model-len is {asked}, and the cache holds {cache_slots} tokens; ask for less, "
            "or give more --kv-cache-memory-bytes"
        )
    return asked
