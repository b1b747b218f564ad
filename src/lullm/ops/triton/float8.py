"""The fp8 KV cache: e4m3 values (`torch.float8_e4m3fn`), with one float32 scale per layer, side and head.

    value = e4m3 * scale[head]

Values beyond 448 scales saturate. Without scales all are 1, which fits keys and values of nearly all models: e4m3 has
a step of 1/8 to 1/16 of the value from 0.016 to 448, so a scale only moves that range.
"""

import triton
import triton.language as tl


@triton.jit
def to_float8(x):
    """float32 -> e4m3, to the nearest, ties to even, saturating.

    Rounded by hand, so that the conversion itself is exact: Triton's interpreter loses the carry of a rounding.
    """
    x = tl.minimum(tl.maximum(x, -448.0), 448.0)
    bits = x.to(tl.int32, bitcast=True)
    rounded = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)  # 3 bits of mantissa
    subnormal = (x + 24576.0) - 24576.0  # below 2**-6 the step is 2**-9, the spacing of float32 at 1.5 * 2**14
    return tl.where(tl.abs(x) < 0.015625, subnormal, rounded).to(tl.float8e4nv)
