import numpy as np
from numpy.typing import NDArray

from pageinn.kernels.backend import F32, I32, I64, U64, LayerStore

class PackedLinear:
    @property
    def out_features(self) -> int: ...
    @property
    def in_features(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def weight_format(self) -> str: ...

class Engine:
    def __init__(self, threads: int, isa: str, share_prefixes: bool, /) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def pairs(self) -> bool: ...
    @property
    def threads(self) -> int: ...
    @property
    def saturated_values(self) -> int: ...
    def pack_linear(self, weight: F32, weight_format: str, /) -> PackedLinear: ...
    def save_linear(self, weight: PackedLinear, out: NDArray[np.uint8], /) -> None: ...
    def restore_linear(
        self, packed: NDArray[np.uint8], outputs: int, inputs: int, weight_format: str, /
    ) -> PackedLinear: ...
    def linear(self, x: F32, weight: PackedLinear, out: F32, add: bool, /) -> None: ...
    def rms_norm(self, x: F32, weight: F32, eps: float, out: F32, /) -> None: ...
    def rotary_write(
        self,
        qkv: F32,
        positions: I32,
        cos: F32,
        sin: F32,
        num_heads: int,
        slots: I64,
        store: LayerStore,
        /,
    ) -> None: ...
    def attention(
        self,
        q: F32,
        store: LayerStore,
        tables: I32,
        query_starts: I32,
        context_lens: I32,
        scale: float,
        out: F32,
        /,
    ) -> None: ...
    def silu_mul(self, gate_up: F32, out: F32, /) -> None: ...
    def sample(
        self,
        logits: F32,
        temperature: F32,
        top_k: I32,
        top_p: F32,
        min_p: F32,
        seed: U64,
        choice: U64,
        position: U64,
        tokens: I32,
        /,
    ) -> None: ...
    def log_probs(self, logits: F32, tokens: I32, chosen: F32, top_ids: I32, top: F32, /) -> None: ...

def copy_blocks(store: LayerStore, pairs: I32, /) -> None: ...
