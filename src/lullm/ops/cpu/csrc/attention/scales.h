// StepScales: what the numbers of a step's keys and values in a cache of 8 bits are multiplied by.
#pragma once

#include <type_traits>

#include "../simd.h"
#include "rows.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

struct StepScales {
  alignas(64) float keys[kStepKeys], values[kStepKeys];
};

// What 1 stands for in operands of type E that are made of elements of type C.
template <class E, class C>
inline float unit_of() {
  if (std::is_same_v<C, Float8> && std::is_same_v<E, float>) return kFloat8Unit;
#if defined(LULLM_HAS_DOTS)
  if (std::is_same_v<C, Int8> && std::is_same_v<E, Bf16>) return kInt8Unit;
#endif
  return 1;
}

// Does a cache of C, read as operands of type E, have any?
template <class E, class C>
bool has_scales(const AttentionArgs& a) {
  return std::is_same_v<C, Int8> || (std::is_same_v<C, Float8> && (a.key_scales != nullptr || unit_of<E, C>() != 1));
}

inline void load_row_scales(const char* first, const StepKeys& found, float unit, float* scales) {
  alignas(64) uint16_t halves[kStepKeys];
  LULLM_UNROLL for (int64_t i = 0; i < kStepKeys; i++) std::memcpy(halves + i, first + found.offset[i], kScaleBytes);
  for (int64_t i = 0; i < kStepKeys; i += kLanes) store(scales + i, mul(load_halves(halves + i), set1(unit)));
}

// Those of one head, for operands of type E; null if all are 1. `place`: where they are written.
template <class E, class C>
inline const StepScales* find_scales(const AttentionArgs& a, int64_t head, const StepKeys& found, StepScales* place) {
  const float unit = unit_of<E, C>();
  if (!has_scales<E, C>(a)) return nullptr;
  if constexpr (std::is_same_v<C, Int8>) {
    const int64_t at = head * a.row_bytes + a.head_size;
    load_row_scales(a.key_cache + at, found, unit, place->keys);
    load_row_scales(a.value_cache + at, found, unit, place->values);
  } else {
    std::fill_n(place->keys, kStepKeys, a.key_scales == nullptr ? unit : a.key_scales[head] * unit);
    std::fill_n(place->values, kStepKeys, a.value_scales == nullptr ? unit : a.value_scales[head] * unit);
  }
  return place;
}

// A query as integers, in the order of units of keys; gives what 1 stands for. Sums of up to 1,024 products with bytes are
// within 2^31, and exact. Of its largest element a query keeps 15 bits: a score is off by 2^-15 of that times the sum of
// a key's magnitudes, where the key's own rounding, to 8 bits, is off by 2^-8 of its largest. What is not finite makes
// the unit NaN.
template <class T, class K>
float quantize_query(const T* from, int64_t size, K* to) {
  constexpr float kMost = 16383;
  V top = zero(), zeros = zero();
  for (int64_t d = 0; d < size; d += kLanes) {
    const V x = load(from + d);
    top = max(top, max(x, sub(zero(), x)));
    zeros = fma(x, zero(), zeros);
  }
  const float most = has_nan(zeros) ? NAN : largest(top);
  const V factor = set1(most > 0 ? kMost / most : 0);
  for (int64_t d = 0; d < size; d += kLanes) store_crossed(to + d, to_integers(mul(load(from + d), factor)));
  return most / kMost;
}

}  // namespace
}  // namespace LULLM_ISA
}  // namespace lullm
