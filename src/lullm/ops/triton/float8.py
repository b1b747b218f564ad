"""e4m3 in the kernels, for the fp8 KV cache of `ops.cache.float8_cache`."""

import triton
import triton.language as tl


@triton.jit
def to_float8(x):
    """float32 -> e4m3, to the nearest, ties to even, saturating; NaN stays NaN.

    Rounded by hand, so that the conversion itself is exact: Triton's interpreter loses the carry of a rounding.
    """
    is_nan = x != x  # the next line would turn NaN into a number
    x = tl.minimum(tl.maximum(x, -448.0), 448.0)
    bits = x.to(tl.int32, bitcast=True)
    rounded = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)  # 3 bits of mantissa
    subnormal = (x + 24576.0) - 24576.0  # below 2**-6 the step is 2**-9, the spacing of float32 at 1.5 * 2**14
    value = tl.where(tl.abs(x) < 0.015625, subnormal, rounded).to(tl.float8e4nv)
    return tl.where(is_nan, 0x7F, value.to(tl.uint8, bitcast=True)).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
