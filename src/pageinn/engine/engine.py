"""An engine for library use: load a model once, generate many times."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pageinn.engine.cache_scales import declared_scales
from pageinn.engine.config import EngineConfig, model_length, require_block_size, require_store_dtype
from pageinn.engine.core import EngineCore
from pageinn.engine.default_model import default_model
from pageinn.engine.description import describe
from pageinn.engine.disk_tier import DiskTier
from pageinn.engine.executor import Executor
from pageinn.engine.fingerprint import fingerprint, packed_key
from pageinn.engine.messages import (
    Delta,
    FinishReason,
    GenerationRequest,
    PromptLogProb,
    SamplingParams,
    TokenLogProb,
)
from pageinn.kernels.cpu import CpuBackend
from pageinn.memory.eviction import EvictionPolicy
from pageinn.memory.manager import MemoryManager
from pageinn.memory.questions import PrefixCache
from pageinn.memory.scopes import DEFAULT, Scope
from pageinn.model.decoder import Decoder
from pageinn.model.packed_file import PackedFile
from pageinn.model.sources import open_checkpoint
from pageinn.scheduling.config import AdmissionMode, ConfigError, Preemption, SchedulerConfig
from pageinn.scheduling.scheduler import Scheduler
from pageinn.store.disk import DiskStore
from pageinn.store.host_store import HostStore
from pageinn.store.kv_store import KVStore, available_memory, bytes_per_block, require_memory
from pageinn.text.template import ChatTemplate
from pageinn.text.tokenizer import Tokenizer

#: Called while loading with (bytes done, bytes in all).
Progress = Callable[[int, int], None]


class Generation(NamedTuple):
    """One finished choice. cached_tokens counts prompt tokens that were not computed."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogProb, ...]
    finish_reason: FinishReason
    cached_tokens: int
    prompt_logprobs: tuple[PromptLogProb | None, ...]


class Engine:
    """A loaded model, its cache and its scheduler.

    Call `generate` from one thread, or hand the engine to an `EngineClient` for an async stream; not both.
    Raises ModelError, TokenizerError, ConfigError or StoreTooLargeError, each one line that names the way out.
    """

    def __init__(self, config: EngineConfig | None = None, progress: Progress | None = None) -> None:
        self.config = config = config or EngineConfig()
        backend = CpuBackend(config.threads)
        require_store_dtype(config.store_dtype, backend.store_dtypes, backend.name)
        require_block_size(config.block_size, backend.block_multiple, backend.name)
        checkpoint = open_checkpoint(config.model or default_model())
        shape = checkpoint.config
        self.calibration = declared_scales(config.kv_cache_scales, config.store_dtype, checkpoint)
        block_bytes = bytes_per_block(
            shape.num_layers, shape.num_kv_heads, shape.head_dim, config.block_size, config.store_dtype
        )
        blocks = config.kv_cache_memory_bytes // block_bytes
        if blocks < 1:
            raise ConfigError(
                f"--kv-cache-memory-bytes {config.kv_cache_memory_bytes} is less than one block of {block_bytes} bytes"
            )
        host_blocks = config.host_memory_bytes // block_bytes
        if config.host_memory_bytes and not host_blocks:
            raise ConfigError(
                f"--host-memory-bytes {config.host_memory_bytes} is less than one block of {block_bytes} bytes"
            )
        require_memory(blocks * block_bytes, available_memory())
        #: How far the model goes, in tokens.
        self.context_length = shape.context_length
        self.max_model_len = model_length(config.max_model_len, shape.context_length, blocks * config.block_size)
        _require_within_window(self.max_model_len, shape.sliding_window)
        self.tokenizer = Tokenizer(checkpoint.tokenizer)
        self.template = ChatTemplate.of(checkpoint.tokenizer)
        kept = None
        if config.weights_cache is not None:
            kept = PackedFile(config.weights_cache, packed_key(checkpoint, backend, config.quantization), backend)
        model = Decoder.load(
            checkpoint,
            backend,
            config.quantization,
            progress or (lambda done, total: None),
            max_tokens=config.max_num_batched_tokens,
            kept=kept,
        )
        store = KVStore(
            layers=shape.num_layers,
            blocks=blocks,
            kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            block_size=config.block_size,
            dtype=config.store_dtype,
            scales=None if self.calibration is None else self.calibration.scales,
            pairs=backend.pairs,
        )
        host_blocks = host_blocks or self._staging(blocks)
        host = HostStore(host_blocks, block_bytes, available_memory() - store.nbytes)
        self.model_name = checkpoint.served_name
        self.vocab_size = shape.vocab_size
        self.num_blocks = blocks
        self.host_blocks = host_blocks
        self.cache_bytes = store.nbytes
        #: How many times the tokens of a bfloat16 cache of as many bytes; scales are counted.
        self.capacity_ratio = (
            bytes_per_block(shape.num_layers, shape.num_kv_heads, shape.head_dim, config.block_size, "bfloat16")
            / block_bytes
        )
        self.threads = backend.threads
        limits = SchedulerConfig(
            config.max_num_seqs,
            config.max_num_batched_tokens,
            self.max_model_len,
            admission=AdmissionMode(config.admission),
            preempt_by=Preemption(config.preempt_by),
            max_queued_requests=config.max_queued_requests,
            max_queued_tokens=config.max_queued_tokens,
            queue_timeout=config.queue_timeout,
        )
        memory = MemoryManager(
            blocks,
            config.block_size,
            PrefixCache(config.prefix_cache),
            EvictionPolicy(config.eviction_policy),
            host_blocks,
            most_retained=config.max_retained_share,
        )
        scheduler = Scheduler(limits, memory)
        executor = Executor(model, store, host, backend, config.max_num_seqs, self.max_model_len)
        disk = None
        if config.disk_cache is not None:
            mark = fingerprint(checkpoint, model, backend, store, config.quantization)
            opened = DiskStore(config.disk_cache, mark, config.disk_cache_bytes)
            disk = DiskTier(opened, mark, memory, store, host.bytes, scheduler.rates, time.monotonic)
        self.core = EngineCore(scheduler, executor, self.tokenizer, config.seed, time.monotonic, disk)
        self._requests = 0

    @property
    def cache_config(self) -> dict[str, str]:
        """How the cache is set up, as labels."""
        return {
            "cache_dtype": self.config.store_dtype,
            "prefix_cache": str(self.config.prefix_cache),
            "eviction_policy": str(self.config.eviction_policy),
            "kv_cache_memory_bytes": str(self.cache_bytes),
            "host_memory_bytes": str(self.config.host_memory_bytes),
        }

    @property
    def description(self) -> str:
        """What is served and with what, for a person to read."""
        return describe(self)

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        sampling: SamplingParams | None = None,
        scope: Scope = DEFAULT,
    ) -> list[list[Generation]]:
        """Continue each prompt (text or token ids), all at once; for each its n choices.

        Raises RefusedError for a prompt or parameter that can never be served; nothing is started then.
        """
        requests = [self._request(prompt, sampling or SamplingParams(), scope) for prompt in prompts]
        for request in requests:
            self.core.check(request)
        for request in requests:
            self.core.submit(request)
        deltas: dict[tuple[str, int], list[Delta]] = {}
        while not self.core.idle:
            for delta in self.core.step():
                deltas.setdefault((delta.request_id, delta.index), []).append(delta)
        return [
            [_joined(deltas[request.request_id, choice]) for choice in range(request.sampling.n)]
            for request in requests
        ]

    def close(self) -> None:
        """Write what is still to go to disk, if there is a disk cache, and let go of it. Nothing may follow."""
        self.core.close()

    def _staging(self, blocks: int) -> int:
        """Host slots for what comes from disk: a longest sequence's, a quarter of the cache at most."""
        if self.config.disk_cache is None:
            return 0
        return max(min(-(-self.max_model_len // self.config.block_size), blocks // 4), 1)

    def _request(self, prompt: str | Sequence[int], sampling: SamplingParams, scope: Scope) -> GenerationRequest:
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        self._requests += 1
        return GenerationRequest(f"generate-{self._requests}", tuple(tokens), sampling, scope)


def _require_within_window(length: int, window: int | None) -> None:
    """Raise ConfigError where a sequence could outgrow the window: without that, it changes nothing."""
    if window is not None and length > window:
        raise ConfigError(
            f"the model attends within a sliding window of {window} tokens, which is supported only where no "
            f"sequence outgrows it, and sequences may reach {length}; give --max-model-len {window}, or less"
        )


def _joined(deltas: list[Delta]) -> Generation:
    last = deltas[-1]
    assert last.finish_reason is not None
    return Generation(
        text="".join(delta.text for delta in deltas),
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        logprobs=tuple(logprob for delta in deltas for logprob in delta.logprobs),
        finish_reason=last.finish_reason,
        cached_tokens=last.cached_tokens,
        prompt_logprobs=deltas[0].prompt_logprobs,
    )
