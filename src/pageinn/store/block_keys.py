"""Names of blocks that outlive the process: what a block's bits depend on, and nothing else."""

from __future__ import annotations

import hashlib

from pageinn.memory.scopes import Scope

KEY_BYTES = 32


def root_key(fingerprint: str, scope: Scope) -> bytes:
    """Where a scope's keys begin. fingerprint: everything but tokens that a block's bits depend on.

    Each field has its length in front, so that ("org_1", "2345") and ("org_12345", "") stay apart; no salt and an empty
    one do too.
    """
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    for field in (fingerprint, *scope):
        raw = b"" if field is None else field.encode("utf-8", "surrogatepass")
        digest.update(b"-" if field is None else b"+")
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.digest()


def block_keys(root: bytes, packed: bytes, block_bytes: int) -> list[bytes]:
    """A key for each whole block of packed tokens: the digest of its parent's key and its own tokens.

    The chain makes it a digest over all tokens up to and including the block's, at the cost of one block.
    """
    keys, parent = [], root
    for start in range(0, len(packed) - block_bytes + 1, block_bytes):
        parent = hashlib.blake2b(parent + packed[start : start + block_bytes], digest_size=KEY_BYTES).digest()
        keys.append(parent)
    return keys
