"""The host pool's bytes: whole blocks as a KV store hands them out, side by side in slots."""

from __future__ import annotations

import numpy as np

from pageinn.store.kv_store import Bytes, KVStore, StoreTooLargeError


class HostStore:
    """Blocks as bytes [slots, block_bytes].

    The array is not filled: a page of memory is taken when its first slot is written.
    """

    def __init__(self, slots: int, block_bytes: int, available: int) -> None:
        """Allocate the slots. Raises StoreTooLargeError if they exceed the `available` bytes."""
        needed = slots * block_bytes
        if needed > available:
            raise StoreTooLargeError(
                f"a host pool of {needed / 2**30:.2f} GiB does not fit in the {available / 2**30:.2f} GiB that the "
                "KV cache leaves; give less --host-memory-bytes"
            )
        self.bytes: Bytes = np.empty((slots, block_bytes), np.uint8)

    def store(self, store: KVStore, block: int, slot: int) -> None:
        """Copy a block out of the KV store. Raises OSError or MemoryError if the slot cannot be written."""
        store.read_blocks([block], self.bytes[slot : slot + 1])

    def load(self, store: KVStore, slot: int, block: int) -> None:
        """Copy a slot back into a block of the KV store."""
        store.write_blocks([block], self.bytes[slot : slot + 1])
