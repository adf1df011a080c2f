"""What the slots of a sequence stand for, for tests of what was stored."""

from __future__ import annotations

from pageinn.kernels.backend import F32, I32, LayerStore
from pageinn.kernels.reference import head_scales, read_slots


def gather(store: LayerStore, table: I32, context: int) -> tuple[F32, F32]:
    """What a sequence's slots stand for: keys [G, D, context] and values [G, context, D]."""
    slots = read_slots(store, table, context)
    key_scales, value_scales = head_scales(store)
    keys = slots.keys * slots.key_scales[:, None] * key_scales
    return keys, slots.values * slots.value_scales[:, :, None] * value_scales
