// Queries of a cache of integers: rounded to multiples of a unit, such that sums of products with its keys are exact.
//
// So few rows may multiply as integers what many multiply as bf16, in whatever order. The unit is the smallest power of two
// for which all sums stay below 2^24, which float32 holds, and all elements are two digits of 8 bits. Elements of bf16 that
// are multiples of it stay as they are; the others are off by half of it, at most 2^-17 of the sum of their magnitudes or
// 2^-15 of the largest. Keys are off by 2^-8 of theirs.
#pragma once

#include "softmax.h"
#include "tile_products.h"

namespace lullm {
namespace amx {

constexpr int64_t kDigits = 2;  // both signed, the upper one first

// NaN if the query, or the sum of its magnitudes, is not finite, or nearly so.
inline float query_unit(const Bf16* q, int64_t size) {
  constexpr float kShareOfSum = 1.03f / (1 << 17);  // rounding adds a little
  constexpr float kMostUnits = 32256, kMostSum = 0x1p120f;
  V sums = zero();
  I top = zero_integers();
  for (int64_t d = 0; d < size; d += kTileDepth) {
    const I magnitudes = both(bits_of(load_pairs(q + d, size - d)), set_integers(0x7fff7fff));
    sums = dot(sums, floats_of(magnitudes), floats_of(set_integers(0x3f803f80)));
    top = _mm512_max_epu16(top, magnitudes);
  }
  const float total = sum(sums), most = total * kShareOfSum;
  if (!(total < kMostSum)) return NAN;
  uint32_t bits;
  std::memcpy(&bits, &most, 4);
  bits = (bits & 0x7f800000) + 0x00800000;  // the power of two above, a normal number
  float unit;
  std::memcpy(&unit, &bits, 4);
  auto is_above = [&](float limit) {
    std::memcpy(&bits, &limit, 4);
    return _mm512_cmpgt_epu16_mask(top, _mm512_set1_epi16(static_cast<int16_t>(bits >> 16))) != 0;
  };
  while (is_above(unit * kMostUnits)) unit *= 2;
  return unit;
}

// Thirty-two elements of the rounded query, or 16 and zeros where no more are left. `unit`: of a cache of C.
template <class C>
inline V load_query(const Bf16* q, int64_t left, float unit) {
  const V pairs = load_units<Bf16>(q, left);
  if constexpr (!std::is_same_v<C, Int8>) return pairs;
  const V to_units = set1(unit * 0x1.8p23f);  // sums with it are rounded to multiples of the unit
  const I bits = bits_of(pairs);
  const V even = floats_of(shift_left_32<16>(bits)), odd = floats_of(both(bits, set_integers(0xffff0000)));
  return pair_odd(sub(add(even, to_units), to_units), sub(add(odd, to_units), to_units));
}

inline I in_units(const Bf16* q, float unit) { return to_integers(mul(load(q), set1(1 / unit))); }

// Sixty-four of its elements, or as many as are left and zeros: one digit of each.
inline V load_digits(const Bf16* q, int64_t left, float unit, int64_t digit) {
  alignas(64) int8_t digits[64] = {};
  for (int64_t d = 0; d < std::min<int64_t>(left, 64); d += kLanes) {
    const I units = in_units(q + d, unit), lower = shift_signed_32<24>(shift_left_32<24>(units));
    const I upper = shift_signed_32<8>(_mm512_sub_epi32(units, lower));
    _mm_store_si128(reinterpret_cast<__m128i*>(digits + d), _mm512_cvtepi32_epi8(digit == 0 ? upper : lower));
  }
  return load(reinterpret_cast<const float*>(digits));
}

// The sums of all digits' products as floats, with the keys' scales. `lower`: how far behind the upper digits'.
inline void join_digits(float* sums, int64_t lower, float unit, const float* scales) {
  LULLM_UNROLL for (int64_t i = 0; i < kStepKeys; i += kLanes) {
    const I joined = add(shift_left_32<8>(load_integers(sums + i)), load_integers(sums + lower + i));
    store(sums + i, mul(mul(to_floats(joined), set1(unit)), load(scales + i)));
  }
}

}  // namespace amx
}  // namespace lullm
