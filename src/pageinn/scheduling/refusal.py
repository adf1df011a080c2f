"""Which requests can never be served."""

from __future__ import annotations

from pageinn.memory.manager import MemoryManager
from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.scheduling.config import AdmissionMode, SchedulerConfig
from pageinn.scheduling.plan import Request


def refusal(config: SchedulerConfig, memory: MemoryManager, request: Request) -> str | None:
    """Why the request can never be served, or None. Any thread may ask."""
    prompt = len(request.prompt) // TOKEN_BYTES
    if prompt == 0:
        return "the prompt is empty; give at least one token"
    limit = config.max_model_len
    if prompt >= limit:
        return f"the prompt has {prompt} tokens and leaves no room to answer within the maximum length of {limit}"
    if prompt + request.max_tokens > limit:
        return f"the prompt's {prompt} tokens and max_tokens {request.max_tokens} exceed the maximum length of {limit}"
    # A request that may end early is let in, unless all that it may need is to be reserved for it.
    whole = config.admission is AdmissionMode.GUARANTEED or (request.ignore_eos and not request.stop_ids)
    least = prompt + (request.max_tokens if whole else 1)
    blocks = memory.shares.most_blocks(request.scope.tenant)
    slots = blocks * memory.block_size
    if least - 1 > slots:
        if blocks < memory.pool.num_blocks:
            return f"the request needs {least - 1} token slots and its tenant may use {slots}; shorten it"
        return (
            f"the request needs {least - 1} token slots and the cache has {slots}; shorten it, "
            "or start the server with more --kv-cache-memory-bytes"
        )
    return None
