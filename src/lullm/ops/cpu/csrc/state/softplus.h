// Softplus of vectors, which makes step sizes of recurrent layers.
#pragma once

#include "../simd.h"

namespace lullm {
namespace LULLM_ISA {

// log(1 + e**x): the larger of x and 0, and log(1 + u) with u = e**-|x|, as u times a polynomial of u (relative error below
// 6e-9 before rounding; a division would take longer).
static inline V softplus(V x) {
  const V above = max(x, zero()), u = exp(sub(x, add(above, above)));
  V series = set1(-0.00317605701f);
  LULLM_UNROLL for (const float c : {0.0195425265f, -0.0563736111f, 0.105436236f, -0.152696669f, 0.196632743f, -0.249516159f,
                                     0.333297104f, -0.499998927f, 1.0f})
    series = fma(series, u, set1(c));
  return fma(u, series, above);
}

}  // namespace LULLM_ISA
}  // namespace lullm
