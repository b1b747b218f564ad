// V: sixteen floats, in the instruction set this file is compiled for, and what the kernels do with them.
//
// Included by kernels only, each of which is compiled once per instruction set, in a namespace of that set's name.
// Everything is static: two versions of one inline function must never meet in the linker.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "dtype.h"

namespace lullm {
namespace LULLM_ISA {

#define LULLM_UNROLL _Pragma("GCC unroll 16")

constexpr int kLanes = 16;

#if defined(__AVX512F__)

using V = __m512;

static inline V zero() { return _mm512_setzero_ps(); }
static inline V set1(float value) { return _mm512_set1_ps(value); }
static inline V load(const float* p) { return _mm512_loadu_ps(p); }
static inline V load(const Bf16* p) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
static inline void store(float* p, V v) { _mm512_storeu_ps(p, v); }
static inline __m256i to_bf16(V v) {
#if defined(__AVX512BF16__)
  return (__m256i)_mm512_cvtneps_pbh(v);
#else
  __m512i bits = _mm512_castps_si512(v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
#endif
}
static inline void store(Bf16* p, V v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(v)); }
static inline V add(V a, V b) { return _mm512_add_ps(a, b); }
static inline V sub(V a, V b) { return _mm512_sub_ps(a, b); }
static inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
static inline V div(V a, V b) { return _mm512_div_ps(a, b); }
static inline V max(V a, V b) { return _mm512_max_ps(a, b); }
static inline V min(V a, V b) { return _mm512_min_ps(a, b); }
static inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
static inline V fnma(V a, V b, V c) { return _mm512_fnmadd_ps(a, b, c); }
static inline V round(V a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline V scale_by_power(V a, V exponent) { return _mm512_scalef_ps(a, exponent); }
static inline float sum(V a) { return _mm512_reduce_add_ps(a); }
static inline float largest(V a) { return _mm512_reduce_max_ps(a); }
// The floats 0, 2, 4, ... and 1, 3, 5, ... of 32 bf16 that lie in one cache line.
static inline V even(const Bf16* p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16)); }
static inline V odd(const Bf16* p) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(0xffff0000)));
}
// Lanes first, first + 1, ... : those below `last` keep their value, the others get `other`.
static inline V keep_below(V a, int64_t first, int64_t last, float other) {
  int64_t count = last - first;
  __mmask16 mask = count >= 16 ? 0xffff : count <= 0 ? 0 : (1u << count) - 1;
  return _mm512_mask_blend_ps(mask, set1(other), a);
}

static inline V select_negative(V sign, V if_negative, V otherwise) {
  return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(sign)), otherwise, if_negative);
}
// As `keep_below`: those from `last` on keep their value.
static inline V keep_from(V a, int64_t first, int64_t last, float other) {
  int64_t count = last - first;
  __mmask16 mask = count >= 16 ? 0xffff : count <= 0 ? 0 : (1u << count) - 1;
  return _mm512_mask_blend_ps(mask, a, set1(other));
}

// The sums of sixteen vectors, in one.
static inline V sums(const V* v) {
  V a[8], b[4];
  LULLM_UNROLL for (int i = 0; i < 8; i++)
    a[i] = add(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
  LULLM_UNROLL for (int i = 0; i < 4; i++) {
    __m512d low = _mm512_castps_pd(a[2 * i]), high = _mm512_castps_pd(a[2 * i + 1]);
    b[i] = add(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)), _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
  }
  V c0 = add(_mm512_shuffle_f32x4(b[0], b[1], 0x88), _mm512_shuffle_f32x4(b[0], b[1], 0xdd));
  V c1 = add(_mm512_shuffle_f32x4(b[2], b[3], 0x88), _mm512_shuffle_f32x4(b[2], b[3], 0xdd));
  return add(_mm512_shuffle_f32x4(c0, c1, 0x88), _mm512_shuffle_f32x4(c0, c1, 0xdd));
}

// Sixteen rows of sixteen 32-bit units become their columns. Strides in bytes. The contents of `r` are used up.
static inline void transpose(__m512i* r, char* to, int64_t to_stride) {
  __m512i t[16];
  LULLM_UNROLL for (int i = 0; i < 8; i++) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  LULLM_UNROLL for (int i = 0; i < 4; i++) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  LULLM_UNROLL for (int i = 0; i < 4; i++) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
  }
  LULLM_UNROLL for (int i = 0; i < 8; i++) {
    _mm512_storeu_si512(to + i * to_stride, _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88));
    _mm512_storeu_si512(to + (8 + i) * to_stride, _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd));
  }
}
static inline void transpose(const char* from, int64_t from_stride, char* to, int64_t to_stride) {
  __m512i rows[16];
  LULLM_UNROLL for (int i = 0; i < 16; i++) rows[i] = _mm512_loadu_si512(from + i * from_stride);
  transpose(rows, to, to_stride);
}

#else  // AVX2

struct V {
  __m256 low, high;
};

static inline V zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline V set1(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
static inline V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline __m256 widen(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
static inline V load(const Bf16* p) {
  const __m128i* bits = reinterpret_cast<const __m128i*>(p);
  return {widen(_mm_loadu_si128(bits)), widen(_mm_loadu_si128(bits + 1))};
}
static inline void store(float* p, V v) {
  _mm256_storeu_ps(p, v.low);
  _mm256_storeu_ps(p + 8, v.high);
}
static inline __m256i rounded_bf16(__m256 v) {  // in the low half of each 32 bits
  __m256i bits = _mm256_castps_si256(v);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  rounded = _mm256_blendv_epi8(rounded, _mm256_or_si256(bits, _mm256_set1_epi32(0x400000)), is_nan);
  return _mm256_srli_epi32(rounded, 16);
}
static inline void store(Bf16* p, V v) {
  __m256i packed = _mm256_packus_epi32(rounded_bf16(v.low), rounded_bf16(v.high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
#define LULLM_LANEWISE(name, op) \
  static inline V name(V a, V b) { return {op(a.low, b.low), op(a.high, b.high)}; }
LULLM_LANEWISE(add, _mm256_add_ps)
LULLM_LANEWISE(sub, _mm256_sub_ps)
LULLM_LANEWISE(mul, _mm256_mul_ps)
LULLM_LANEWISE(div, _mm256_div_ps)
LULLM_LANEWISE(max, _mm256_max_ps)
LULLM_LANEWISE(min, _mm256_min_ps)
#undef LULLM_LANEWISE
static inline V fma(V a, V b, V c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
static inline V fnma(V a, V b, V c) {
  return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}
static inline V round(V a) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.low, kMode), _mm256_round_ps(a.high, kMode)};
}
static inline __m256 power_of_two(__m256 exponent) {  // for -126..127
  __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(exponent), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
static inline V scale_by_power(V a, V exponent) {
  return {_mm256_mul_ps(a.low, power_of_two(exponent.low)), _mm256_mul_ps(a.high, power_of_two(exponent.high))};
}
static inline float sum(V a) {
  __m256 v = _mm256_add_ps(a.low, a.high);
  __m128 w = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  w = _mm_add_ps(w, _mm_movehl_ps(w, w));
  return _mm_cvtss_f32(_mm_add_ss(w, _mm_movehdup_ps(w)));
}
static inline float largest(V a) {
  __m256 v = _mm256_max_ps(a.low, a.high);
  __m128 w = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  w = _mm_max_ps(w, _mm_movehl_ps(w, w));
  return _mm_cvtss_f32(_mm_max_ss(w, _mm_movehdup_ps(w)));
}
static inline V even(const Bf16* p) {
  const __m256i* bits = reinterpret_cast<const __m256i*>(p);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(bits), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(bits + 1), 16))};
}
static inline V odd(const Bf16* p) {
  const __m256i* bits = reinterpret_cast<const __m256i*>(p);
  __m256i mask = _mm256_set1_epi32(0xffff0000);
  return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(bits), mask)),
          _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(bits + 1), mask))};
}
struct Masks {
  __m256 low, high;
};
static inline Masks first_lanes(int64_t first, int64_t last) {
  int count = static_cast<int>(last - first < 0 ? 0 : last - first > 16 ? 16 : last - first);
  __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  __m256 low = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lanes));
  __m256 high = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count - 8), lanes));
  return {low, high};
}
static inline V keep_below(V a, int64_t first, int64_t last, float other) {
  Masks m = first_lanes(first, last);
  return {_mm256_blendv_ps(_mm256_set1_ps(other), a.low, m.low), _mm256_blendv_ps(_mm256_set1_ps(other), a.high, m.high)};
}
static inline V select_negative(V sign, V if_negative, V otherwise) {
  return {_mm256_blendv_ps(otherwise.low, if_negative.low, sign.low),
          _mm256_blendv_ps(otherwise.high, if_negative.high, sign.high)};
}
static inline V keep_from(V a, int64_t first, int64_t last, float other) {
  Masks m = first_lanes(first, last);
  return {_mm256_blendv_ps(a.low, _mm256_set1_ps(other), m.low), _mm256_blendv_ps(a.high, _mm256_set1_ps(other), m.high)};
}

static inline __m256 sums_of_eight(const V* v) {
  __m256 a[8], b[4], c[2];
  LULLM_UNROLL for (int i = 0; i < 8; i++) a[i] = _mm256_add_ps(v[i].low, v[i].high);
  LULLM_UNROLL for (int i = 0; i < 4; i++) b[i] = _mm256_hadd_ps(a[2 * i], a[2 * i + 1]);
  LULLM_UNROLL for (int i = 0; i < 2; i++) c[i] = _mm256_hadd_ps(b[2 * i], b[2 * i + 1]);
  return _mm256_add_ps(_mm256_permute2f128_ps(c[0], c[1], 0x20), _mm256_permute2f128_ps(c[0], c[1], 0x31));
}
static inline V sums(const V* v) { return {sums_of_eight(v), sums_of_eight(v + 8)}; }

static inline void transpose(const char* from, int64_t from_stride, char* to, int64_t to_stride) {
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 16; j++) std::memcpy(to + j * to_stride + 4 * i, from + i * from_stride + 4 * j, 4);
}

#endif

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
// As it would be after a round trip through memory.
template <class T>
inline V rounded(V v);
template <>
inline V rounded<float>(V v) {
  return v;
}
template <>
inline V rounded<Bf16>(V v) {
#if defined(__AVX512F__)
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(to_bf16(v)), 16));
#else
  return {_mm256_castsi256_ps(_mm256_slli_epi32(rounded_bf16(v.low), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(rounded_bf16(v.high), 16))};
#endif
}

}  // namespace LULLM_ISA
}  // namespace lullm
