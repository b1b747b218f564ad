// Softplus of vectors, which makes step sizes of recurrent layers.
#pragma once

#include "../simd.h"

namespace lullm {
namespace LULLM_ISA {

// log(1 + e**x): the larger of x and 0, and log(1 + u) with u = e**-|x|, as 2 atanh(s) of s = u / (2 + u) <= 1/3, whose
// series ends at s**13 (remainder below 1e-8).
static inline V softplus(V x) {
  const V above = max(x, zero()), u = exp(sub(x, add(above, above)));
  const V s = div(u, add(set1(2.0f), u)), square = mul(s, s);
  V series = set1(1.0f / 13);
  LULLM_UNROLL for (const float odd : {11, 9, 7, 5, 3, 1}) series = fma(series, square, set1(1.0f / odd));
  return fma(add(s, s), series, above);
}

}  // namespace LULLM_ISA
}  // namespace lullm
