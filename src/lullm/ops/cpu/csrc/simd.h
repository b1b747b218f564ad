// V and I: sixteen floats, and sixteen 32-bit integers or thirty-two of 16 bits, in the instruction set this file is
// compiled for, and what the kernels do with them.
//
// Included by kernels only, each of which is compiled once per instruction set, in a namespace of that set's name.
// Everything is static: two versions of one inline function must never meet in the linker.
#pragma once

#include <cstring>

#include "dtype.h"

#define LULLM_UNROLL _Pragma("GCC unroll 16")
#define LULLM_NO_UNROLL _Pragma("GCC unroll 1")

namespace lullm {
namespace LULLM_ISA {

constexpr int kLanes = 16;

}  // namespace LULLM_ISA
}  // namespace lullm

// A file per instruction set. Beside arithmetic it has
//   kRegisters: how many V its registers hold
//   even, odd: the floats 0, 2, 4, ... and 1, 3, 5, ... of 32 bf16 that lie in one cache line
//   keep_below, keep_from: lanes first, first + 1, ...: those below `last`, or from it on, keep their value, the others get
//     `other`
//   stream: a store past the caches, of aligned elements; neighbours follow one another until a cache line is full
//   keep: the lanes whose bits of the mask are set keep their value; keep_at_least: the others become 0
//   at_most: a bit per lane, a <= b, which NaN is not
//   transpose: sixteen rows of sixteen 32-bit units become their columns; strides in bytes, rows in registers are used up
//   add_product: sum = fma(a, b, sum), which stays in its register; left to itself, gcc moves sums about until some are in memory
//   hold: the compiler keeps the value in a register and knows nothing of it
//   signs_32, negate_8: the signs of integers, for the four bytes of each; bytes with their sign changed where it is negative
//   add_dot: sum + the products of neighbouring 16-bit integers, in pairs
//   load_signed_bytes: sixteen, as 32 bits each; store_bytes: the other way, saturated
//   store_crossed: as 16 bits, of each four the second and the third in each other's place
//   load(const Float8*): by way of half precision, whose exponent counts from 15 instead of 7: numbers are divided by
//     kFloat8Unit. Neither small ones nor a processor that flushes denormals take a step of their own. The only NaN of e4m3
//     is all ones, which takes as many instructions as the rest: hence FiniteFloat8
//   note_nan: 64 Float8 more in what holds_nan looks at
//   store_numbers: as `store`, but a NaN whose lower half is not 0 may become any number
//   add_to_numbers: 32 bf16 times powers of two, which are given as what to add to their bits; zeros stay
//   split_bytes: sixteen times four bytes become four times sixteen: the first of each, then the second, ...
// and, where it multiplies pairs of bf16 (LULLM_HAS_DOTS), a V of 32 bf16 in sixteen pairs:
//   dot: sum + the two products of each pair; set_pair: one pair in all lanes
//   load_pairs: thirty-two elements, or 16 and zeros where no more are left; round_to_pairs: of two V
//   pair_even, pair_odd: elements 0, 2, ... (or 1, 3, ...) of both, side by side; pair_first: the first sixteen of both
//   interleave: what `even` and `odd` took apart
//   swap_neighbours: of each two lanes the second first
//   both_or: a & b | c; floats_of: the bits as they are
//   kInt8Unit: what 1 stands for in pairs of Int8
// and, where it makes pairs of bytes without detours (LULLM_PAIRS_BYTES),
//   pair_bytes: of 64 elements of two rows those of the first half that `pair_even` gives, and `pair_odd`, then the second's
#if defined(__AVX512F__)
#include "simd/avx512.h"
#include "simd/x86.h"
#elif defined(__AVX2__)
#include "simd/avx2.h"
#include "simd/x86.h"
#else
#include "simd/neon.h"
#endif

namespace lullm {
namespace LULLM_ISA {

// e**x within 2 units of the last place for -87.3 <= x <= 88; below that, and for minus infinity, e**-87.3, about 1e-38.
// Cody-Waite reduction to |r| <= ln(2) / 2 and the Taylor polynomial of degree 6 (remainder below 2e-7).
static inline V exp(V x) {
  x = max(x, set1(-87.3f));
  V n = round(mul(x, set1(1.44269504f)));
  V r = fnma(n, set1(0.693359375f), x);
  r = fnma(n, set1(-2.12194440e-4f), r);
  V y = set1(1.0f / 720);
  y = fma(y, r, set1(1.0f / 120));
  y = fma(y, r, set1(1.0f / 24));
  y = fma(y, r, set1(1.0f / 6));
  y = fma(y, r, set1(0.5f));
  y = fma(y, r, set1(1.0f));
  y = fma(y, r, set1(1.0f));
  return scale_by_power(y, n);
}

static inline float to_float(float x) { return x; }
static inline float to_float(Bf16 x) {
  uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

template <class T>
static inline V load_first(const T* p, int64_t count) {  // the others are zero
  alignas(64) T buffer[kLanes] = {};
  std::memcpy(buffer, p, count * sizeof(T));
  return load(buffer);
}
template <class T>
static inline void store_first(T* p, V v, int64_t count) {
  alignas(64) T buffer[kLanes];
  store(buffer, v);
  std::memcpy(p, buffer, count * sizeof(T));
}
// Sixteen elements from `p`, or as many as are left.
template <class T>
static inline V load_up_to(const T* p, int64_t left) {
  return left >= kLanes ? load(p) : load_first(p, left);
}
template <class T>
static inline void store_up_to(T* p, V v, int64_t left) {
  if (left >= kLanes) store(p, v);
  else store_first(p, v, left);
}
template <class T>
static inline void put(T* p, V v, bool streams) {
  if (streams) stream(p, v);
  else store(p, v);
}
// As it would be after a round trip through memory.
template <class T>
inline V rounded(V v);
template <>
inline V rounded<float>(V v) {
  return v;
}
template <>
inline V rounded<Bf16>(V v) {
  return round_to_bf16(v);
}

constexpr float kFloat8Unit = 256;

static inline V load(const Int8* p) { return to_floats(load_signed_bytes(&p->value)); }
static inline V load(const Half* p) { return load_halves(p); }
static inline void store(Half* p, V v) { store_halves(p, v); }

#if defined(LULLM_HAS_DOTS) && !defined(LULLM_PAIRS_BYTES)
constexpr float kInt8Unit = 1;
static inline V load_pairs(const Int8* p, int64_t left) {
  return round_to_pairs(load(p), left >= 32 ? load(p + kLanes) : zero());
}
#endif

}  // namespace LULLM_ISA
}  // namespace lullm
