"""Content hashes of full blocks, chained: a block's hash covers every token from the start of the sequence.

Two blocks with equal hashes hold the KV of equal prefixes and may be shared. The digest is cryptographic, because a
forged collision would show one user's cache to another.
"""

import hashlib
from array import array
from collections.abc import Sequence

from lullm.types.vision.tile import TilePlace, shown_tiles

ROOT_HASH = b""


def salted_root(salt: bytes) -> bytes:
    """The parent hash of first blocks whose KV also depends on `salt` (a weight version, an adapter)."""
    return hashlib.blake2b(salt, digest_size=16, person=b"lullm-salt").digest() if salt else ROOT_HASH


def chain_hash(parent: bytes, token_ids: Sequence[int], shown: bytes = b"") -> bytes:
    """Hash of a full block that holds `token_ids`, after the block with hash `parent` (ROOT_HASH: the first).

    `shown`: what it shows in place of tokens (`shown_content`).
    """
    return hashlib.blake2b(parent + array("q", token_ids).tobytes() + shown, digest_size=16).digest()


def shown_content(tiles: Sequence[TilePlace], start: int, end: int) -> bytes:
    """The tiles at positions `start` .. `end` - 1, by digest, place and time: their tokens are all the same."""
    shown = shown_tiles(tiles, start, end)
    return b"".join(place.tile.digest + array("q", _place(place, start)).tobytes() for place in shown)


def _place(place: TilePlace, start: int) -> list[int]:
    geometry = place.geometry
    if geometry.time or geometry.goes_on:
        return [place.start - start, geometry.time, geometry.goes_on]
    return [place.start - start]


def group_suffix(group: int) -> bytes:
    """The suffix of a block's hash in cache group number `group`: equal tokens have other KV in other layers."""
    return group.to_bytes(2, "big") if group else b""


def state_suffix(group: int, part: int) -> bytes:
    """The suffix of a block's hash that names block number `part` of the state after that block."""
    return group.to_bytes(2, "big") + part.to_bytes(4, "big")


class BlockHashes:
    """The hashes of one sequence's full blocks, computed at first use and shared by all cache groups.

    They outlive the blocks: a preempted or waiting sequence is looked up again and again, and hashing 10,000 tokens
    takes a millisecond.

    Args:
        salt, adapter_digest: of the sequence's request; only sequences with the same find its blocks.
        tiles: of its pictures.
    """

    __slots__ = ("_chain", "_root", "adapter_digest", "block_size", "salt", "tiles")

    def __init__(
        self,
        block_size: int,
        root: bytes = ROOT_HASH,
        salt: str = "",
        adapter_digest: bytes = b"",
        tiles: Sequence[TilePlace] = (),
    ) -> None:
        self.block_size = block_size
        self.salt, self.adapter_digest, self.tiles = salt, adapter_digest, tiles
        if adapter_digest:
            root = salted_root(root + b"adapter" + adapter_digest)
        self._root = salted_root(root + b"request" + salt.encode("utf-8", "surrogatepass")) if salt else root
        self._chain: list[bytes] = []

    def __getitem__(self, index: int) -> bytes:
        return self._chain[index]

    def extend(self, token_ids: Sequence[int], num_blocks: int) -> None:
        """Cover the first `num_blocks` full blocks of `token_ids`, which is the sequence or a prefix of it."""
        chain, size = self._chain, self.block_size
        for index in range(len(chain), num_blocks):
            parent = chain[-1] if chain else self._root
            start, end = index * size, (index + 1) * size
            shown = shown_content(self.tiles, start, end) if self.tiles else b""
            chain.append(chain_hash(parent, token_ids[start:end], shown))

    def copy(self) -> "BlockHashes":
        """Hashes for a sequence that has the same tokens so far."""
        child = BlockHashes(self.block_size, self._root, tiles=self.tiles)
        child.salt, child.adapter_digest = self.salt, self.adapter_digest
        child._chain = self._chain.copy()
        return child
