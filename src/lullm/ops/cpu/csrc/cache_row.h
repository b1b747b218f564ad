// A head's keys or values of one token on their way into the cache, rounded as `ops/cache` says. Plain loops, which the
// compiler turns into vectors.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "simd.h"

namespace lullm {
namespace LULLM_ISA {

static inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

template <class T>
static inline void write_row(const T* x, int64_t size, const float*, T* row) {
  if (row != x) std::memcpy(row, x, size * sizeof(T));
}

// Quantized by the stored, rounded scale. A NaN makes the scale one, because bits of NaN are above all others.
template <class T>
static inline void write_row(const T* x, int64_t size, const float*, Int8* row) {
  constexpr float kSmallestHalf = 0x1p-24f, kToInteger = 0x1.8p23f;  // sums with the latter are rounded to an integer
  uint32_t largest = 0;
  for (int64_t d = 0; d < size; d++) largest = std::max(largest, bits_of(to_float(x[d])) & 0x7fffffff);
  float scale;
  std::memcpy(&scale, &largest, 4);
  scale /= 127;
  if (scale < kSmallestHalf) scale = kSmallestHalf;
  const uint16_t half = half_of(scale);
  scale = float_of_half(half);
  for (int64_t d = 0; d < size; d++) {
    const float quotient = std::max(-127.0f, std::min(127.0f, to_float(x[d]) / scale));
    row[d].value = static_cast<int8_t>(bits_of(quotient + kToInteger));
  }
  std::memcpy(row + size, &half, kScaleBytes);
}

// `scale`: the head's; null: it is 1.
template <class T>
static inline void write_row(const T* x, int64_t size, const float* scale, Float8* row) {
  constexpr uint32_t kNan = 0x7f800001, kLargest = 0x43e00000, kSmallestNormal = 0x3c800000;  // 448 and 2**-6
  constexpr float kToSteps = 0x1p14f;  // sums with it are rounded to steps of 2**-9
  const float divisor = scale == nullptr ? 1.0f : *scale;
  for (int64_t d = 0; d < size; d++) {
    const uint32_t bits = bits_of(to_float(x[d]) / divisor), magnitude = bits & 0x7fffffff;
    const uint32_t bounded = std::min(magnitude, kLargest);
    float bounded_value;
    std::memcpy(&bounded_value, &bounded, 4);
    const uint32_t normal = ((bounded + 0x7ffff + ((bounded >> 20) & 1)) >> 20) - ((127 - 7) << 3);
    const uint32_t small = bits_of(bounded_value + kToSteps) - bits_of(kToSteps);
    const uint32_t number = bounded < kSmallestNormal ? small : normal;
    row[d].bits = static_cast<uint8_t>((magnitude >= kNan ? 0x7f : number) | (bits >> 24 & 0x80));
  }
}

}  // namespace LULLM_ISA
}  // namespace lullm
