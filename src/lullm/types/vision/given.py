"""GivenRows: rows that a caller gives in place of tokens, such as a prompt's embeddings or those of a prompt adapter.

They stand in a prompt as the rows of a picture do, and no tower computes them.
"""

import hashlib

import msgspec

GIVEN_TOKEN_ID = 0
"""What stands for a given row among the ids of a prompt, as in vLLM."""


class GivenRows(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Consecutive rows `[num_rows, H]`, as the decoder's first layer takes them.

    `digest`: their name, a hash of all else. `dtype`: 'float32', 'float16' or 'bfloat16'. `values`: row by row.
    """

    digest: bytes
    num_rows: int
    dtype: str
    values: bytes

    @classmethod
    def of(cls, num_rows: int, dtype: str, values: bytes) -> "GivenRows":
        """These rows. The digest is cryptographic, since caches are shared by it; no picture has it."""
        digest = hashlib.blake2b(digest_size=16, person=b"lullm-rows")
        digest.update(f"{num_rows} {dtype} ".encode())
        digest.update(values)
        return cls(digest.digest(), num_rows, dtype, values)

    def __repr__(self) -> str:
        return f"GivenRows({self.digest.hex()}, {self.num_rows})"
