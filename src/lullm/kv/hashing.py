"""Content hashes of full blocks, chained: a block's hash covers every token from the start of the sequence.

Two blocks with equal hashes hold the KV of equal prefixes, which is what may be shared. The digest is cryptographic
because prompts come from strangers: a forged collision would show one user's cache to another.
"""

import hashlib
from array import array
from collections.abc import Sequence

ROOT_HASH = b""


def salted_root(salt: bytes) -> bytes:
    """The parent of first blocks whose KV also depends on `salt` (a weight version, an adapter): no other is equal."""
    return hashlib.blake2b(salt, digest_size=16, person=b"lullm-salt").digest() if salt else ROOT_HASH


def chain_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Hash of a full block that holds `token_ids`, behind the block with hash `parent` (ROOT_HASH: the first)."""
    return hashlib.blake2b(parent + array("q", token_ids).tobytes(), digest_size=16).digest()


def extend_hashes(
    hashes: list[bytes], token_ids: Sequence[int], block_size: int, num_blocks: int, root: bytes = ROOT_HASH
) -> None:
    """Append to `hashes` until it covers the first `num_blocks` full blocks of `token_ids`."""
    for index in range(len(hashes), num_blocks):
        parent = hashes[-1] if hashes else root
        hashes.append(chain_hash(parent, token_ids[index * block_size : (index + 1) * block_size]))
