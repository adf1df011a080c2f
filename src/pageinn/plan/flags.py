"""The plan as command lines for pageinn, vLLM and SGLang."""

from __future__ import annotations

from math import floor
from shlex import quote

from pageinn.catalogue.accelerators import GIB
from pageinn.plan.inputs import Inputs

#: transformers' classes that pageinn serves.
SERVED = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_FP8 = {"fp8": "fp8_e4m3"}


def flags(asked: Inputs, named: str, users: int) -> dict[str, str | None]:
    """Command lines by engine; None where an engine does not serve the model or the store.

    users: sequences at once, the last row of the stack in the store that was asked for.
    """
    return {
        "pageinn": _pageinn(asked, named, users),
        "vllm": _vllm(asked, named, users),
        "sglang": _sglang(asked, named, users),
    }


def _pageinn(asked: Inputs, named: str, users: int) -> str | None:
    windows = [group.window for group in asked.shape.groups if group.window is not None]
    if asked.shape.architecture not in SERVED or asked.tp > 1 or min(windows, default=asked.limit) < asked.limit:
        return None
    return _line(
        f"pageinn serve {quote(named)}",
        {
            "--max-model-len": asked.limit,
            "--kv-cache-dtype": asked.store,
            "--kv-cache-memory-bytes": floor(asked.cache_bytes),
            "--block-size": asked.block_size,
            "--max-num-seqs": max(1, users),
        },
    )


def _vllm(asked: Inputs, named: str, users: int) -> str | None:
    if asked.store in ("int8", "float32"):
        return None
    plain = asked.store in ("bfloat16", "float16")
    return _line(
        f"vllm serve {quote(named)}",
        {
            "--max-model-len": asked.limit,
            "--kv-cache-dtype": "auto" if plain else asked.store,
            "--gpu-memory-utilization": f"{asked.utilisation:g}",
            "--max-num-seqs": max(1, users),
            "--tensor-parallel-size": asked.tp if asked.tp > 1 else None,
            "--kv-offloading-size": f"{asked.host / GIB:g}" if asked.host else None,
        },
    )


def _sglang(asked: Inputs, named: str, users: int) -> str | None:
    if asked.store in ("int8", "float32"):
        return None
    plain = asked.store in ("bfloat16", "float16")
    static = min(1.0, (asked.weight_bytes + asked.cache_bytes) / asked.accelerator.memory)
    return _line(
        f"python -m sglang.launch_server --model-path {quote(named)}",
        {
            "--context-length": asked.limit,
            "--kv-cache-dtype": "auto" if plain else _FP8.get(asked.store, asked.store),
            "--mem-fraction-static": f"{floor(100 * static) / 100:.2f}",
            "--max-running-requests": max(1, users),
            "--tp": asked.tp if asked.tp > 1 else None,
            "--enable-hierarchical-cache --hicache-size": f"{asked.host / 1e9:.0f}" if asked.host else None,
        },
    )


def _line(command: str, given: dict[str, object]) -> str:
    return " ".join([command, *(f"{flag} {value}" for flag, value in given.items() if value is not None)])
