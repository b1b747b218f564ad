"""The number formats of a GGUF file's tensors: values and bytes of a block."""

from dataclasses import dataclass

from lullm.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """Rows of a tensor are blocks of `num_values` values in `num_bytes` bytes.

    Args:
        by_library: the optional gguf library decodes it. Its code books are large.
    """

    name: str
    num_values: int
    num_bytes: int
    by_library: bool = False

    @property
    def is_quantized(self) -> bool:
        return self.num_values > 1

    def row_bytes(self, num_values: int) -> int:
        """Bytes of a row of `num_values` values, whole blocks."""
        return num_values // self.num_values * self.num_bytes


FORMATS = {
    0: BlockFormat("F32", 1, 4),
    1: BlockFormat("F16", 1, 2),
    2: BlockFormat("Q4_0", 32, 18),
    3: BlockFormat("Q4_1", 32, 20),
    6: BlockFormat("Q5_0", 32, 22),
    7: BlockFormat("Q5_1", 32, 24),
    8: BlockFormat("Q8_0", 32, 34),
    10: BlockFormat("Q2_K", 256, 84),
    11: BlockFormat("Q3_K", 256, 110),
    12: BlockFormat("Q4_K", 256, 144),
    13: BlockFormat("Q5_K", 256, 176),
    14: BlockFormat("Q6_K", 256, 210),
    16: BlockFormat("IQ2_XXS", 256, 66, by_library=True),
    17: BlockFormat("IQ2_XS", 256, 74, by_library=True),
    18: BlockFormat("IQ3_XXS", 256, 98, by_library=True),
    19: BlockFormat("IQ1_S", 256, 50, by_library=True),
    20: BlockFormat("IQ4_NL", 32, 18),
    21: BlockFormat("IQ3_S", 256, 110, by_library=True),
    22: BlockFormat("IQ2_S", 256, 82, by_library=True),
    23: BlockFormat("IQ4_XS", 256, 136),
    29: BlockFormat("IQ1_M", 256, 56, by_library=True),
    30: BlockFormat("BF16", 1, 2),
    34: BlockFormat("TQ1_0", 256, 54, by_library=True),
    35: BlockFormat("TQ2_0", 256, 66, by_library=True),
    39: BlockFormat("MXFP4", 32, 17),
    40: BlockFormat("NVFP4", 64, 36, by_library=True),
}
"""The formats by their numbers in a file."""

_OTHERS = {
    9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 41: "Q1_0",
}  # fmt: skip


def format_of(number: int, tensor: str) -> BlockFormat:
    """The format of a number. Raises ModelLoadError: no such format, or lullm cannot read it."""
    found = FORMATS.get(number)
    if found is None:
        name = _OTHERS.get(number, f"number {number}")
        known = ", ".join(each.name for each in FORMATS.values())
        raise ModelLoadError(
            f"tensor {tensor} has the format {name}, which is not supported; take the model's Q4_K_M or IQ4_XS "
            f"file, or another one with {known} only"
        )
    return found
