// Scores to weights, a row and a step at a time.
//
// A row's weights are relative to its largest score of the first step that it sees in a piece: its base. That is revised
// only when a score exceeds it by 2^60, which is a matter of overflow and not of accuracy.
#pragma once

#include <cmath>

#include "../activation.h"
#include "packed.h"
#include "scales.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

constexpr float kReviseAbove = 60;  // in powers of two

// 2**(t / kUnit - kBias) for weights of type W, and how 64 of them are stored, 32 at `half` bytes behind the others.
template <class W>
struct Weight {
  static constexpr float kUnit = 1, kBias = 0;

  // Within 2 units of the last place, down to 2**-126: the Taylor polynomial of degree 6 of 2**f for |f| <= 1/2.
  static V power_of_two(V t) {
    t = max(t, set1(-126.0f));
    const V n = round(t), f = sub(t, n);
    V y = set1(1.54035304e-4f);
    y = fma(y, f, set1(1.33335581e-3f));
    y = fma(y, f, set1(9.61812911e-3f));
    y = fma(y, f, set1(5.55041087e-2f));
    y = fma(y, f, set1(2.40226507e-1f));
    y = fma(y, f, set1(6.93147181e-1f));
    y = fma(y, f, set1(1.0f));
    return scale_by_power(y, n);
  }

  static void put(char* to, int64_t half, const V* weights) {
    LULLM_UNROLL for (int i = 0; i < 4; i++)
      store(reinterpret_cast<float*>(to + i / 2 * half) + i % 2 * kLanes, weights[i]);
  }
};

#if defined(LULLM_HAS_DOTS)
template <>
struct Weight<Bf16> {
  static constexpr float kUnit = 1 << 23;  // a power of two, in the bits of a float
  static constexpr float kBias = 254;      // what a float adds to its exponent, and the exponent of what is subtracted

  // Off by 8e-5 of itself at most (what becomes of it is rounded to bf16, to 2e-3), down to 2**-125. Taken as a number,
  // t is nearly the bits of the result: between powers of two it is linear where it should be 2**f, f being the low 23
  // bits. A polynomial of 1 + f gives the difference of the two plus 1, and the bits of that plus the 127 of its exponent
  // are subtracted.
  static V power_of_two(V t) {
    const I bits = to_unsigned(max(t, set1((kBias - 125) * kUnit)));
    const V m = floats_of(both_or(bits, set_integers(0x7fffff), set_integers(0x3f800000)));
    V y = fma(set1(-0.07802455f), m, set1(0.008006471f));
    y = fma(y, m, set1(0.52222723f));
    y = fma(y, m, set1(1 - 0.45213437f));
    return floats_of(sub(bits, bits_of(y)));
  }

  static void put(char* to, int64_t half, const V* weights) {
    store(reinterpret_cast<float*>(to), round_to_pairs(weights[0], weights[1]));
    store(reinterpret_cast<float*>(to + half), round_to_pairs(weights[2], weights[3]));
  }
};

template <>
struct Weight<Swapped> : Weight<Bf16> {
  static void put(char* to, int64_t half, const V* weights) {
    V swapped[4];
    LULLM_UNROLL for (int i = 0; i < 4; i++) swapped[i] = swap_neighbours(round_to_bf16(weights[i]));
    Weight<float>::put(to, half, swapped);
  }
};
#endif

// What turns a step's products into scores, and weights into those of the values as the cache holds them.
//
// A cache of 8 bits holds numbers that are exact in the products. The scales of the step's keys go into the scores, those
// of its values into the weights, after these have been summed up.
struct Scoring {
  float scale, soft_cap;
  const float *key_scales, *value_scales;  // [kStepKeys] each, or null: all are 1

  Scoring with(const StepScales* scales) const {
    if (scales == nullptr) return *this;
    return {scale, soft_cap, scales->keys, scales->values};
  }
};

inline Scoring scoring_of(const AttentionArgs& a) { return {a.scale, a.soft_cap, nullptr, nullptr}; }

// Products that need more than one factor become those that need it no more, once.
inline void adjust(float* products, const Scoring& scoring) {
  if (scoring.key_scales == nullptr && scoring.soft_cap == 0) return;
  const V scale = set1(scoring.scale), cap = set1(scoring.soft_cap);
  LULLM_UNROLL for (int j = 0; j < 4; j++) {
    V s = load(products + kLanes * j);
    if (scoring.key_scales != nullptr) s = mul(s, load(scoring.key_scales + kLanes * j));
    if (scoring.soft_cap != 0) s = div(soft_cap(mul(s, scale), cap), scale);
    store(products + kLanes * j, s);
  }
}

// A row's 64 products become weights, and their sum is added to `total [16]`. If these are the first, they set the base;
// else it returns false and has done nothing where one exceeds the base by too much.
template <class W, bool kIsFirst, bool kMasked>
inline bool weigh_row(const float* products, const Scoring& scoring, uint64_t mask, float& base, float* total,
                      char* weights, int64_t half) {
  constexpr float kUnit = Weight<W>::kUnit, kBias = Weight<W>::kBias;
  const V factor = set1(scoring.scale * kLog2E * kUnit);
  V t[4];
  if constexpr (kIsFirst) {
    V top = set1(-INFINITY);
    LULLM_UNROLL for (int j = 0; j < 4; j++) {
      const V s = mul(load(products + kLanes * j), set1(scoring.scale * kLog2E));
      top = max(top, kMasked ? keep(s, mask >> kLanes * j, -INFINITY) : s);
    }
    base = largest(top);
  }
  const V offset = mul(sub(set1(kBias), set1(base)), set1(kUnit));
  LULLM_UNROLL for (int j = 0; j < 4; j++) {
    t[j] = fma(load(products + kLanes * j), factor, offset);
    if constexpr (kMasked) t[j] = keep(t[j], mask >> kLanes * j, -INFINITY);
  }
  const bool is_number = !has_nan(add(add(t[0], t[1]), add(t[2], t[3])));
  if constexpr (!kIsFirst) {
    const V top = max(max(t[0], t[1]), max(t[2], t[3]));
    if (any_above(top, set1((kBias + kReviseAbove) * kUnit))) return false;
  }
  LULLM_UNROLL for (int j = 0; j < 4; j++) {
    t[j] = Weight<W>::power_of_two(t[j]);
    if constexpr (kMasked) t[j] = keep(t[j], mask >> kLanes * j, 0);
  }
  const V sum = add(add(t[0], t[1]), add(t[2], t[3]));
  store(total, kIsFirst ? sum : add(load(total), sum));
  if (__builtin_expect(!is_number, 0)) {
    base = NAN;
    store(total, set1(NAN));
  }
  if (scoring.value_scales != nullptr) {
    LULLM_UNROLL for (int j = 0; j < 4; j++) t[j] = mul(t[j], load(scoring.value_scales + kLanes * j));
  }
  Weight<W>::put(weights, half, t);
  return true;
}

// What the row has so far, and then this step, relative to the step's largest score. `sums`: of the values, 16 elements
// of the head side by side, the next 16 `stride` floats further.
template <class W>
__attribute__((noinline)) void revise(const float* products, const Scoring& scoring, uint64_t mask, float& base,
                                      float* total, char* weights, int64_t half, float* sums, int64_t stride,
                                      int64_t head_size) {
  const float before = base;
  alignas(64) float now[kLanes];
  weigh_row<W, true, true>(products, scoring, mask, base, now, weights, half);
  const V factor = set1(std::exp2(before - base));
  store(total, fma(load(total), factor, load(now)));
  for (int64_t d = 0; d < head_size; d += kLanes, sums += stride) store(sums, mul(load(sums), factor));
}

}  // namespace
}  // namespace LULLM_ISA
}  // namespace lullm
