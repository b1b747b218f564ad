// V and I with AVX-512; what the functions do is said in simd.h.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "../dtype.h"

namespace lullm {
namespace LULLM_ISA {

constexpr int kRegisters = 32;

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
static inline void store_numbers(Bf16* p, V v) { store(p, v); }
static inline void stream(float* p, V v) { _mm512_stream_ps(p, v); }
static inline void stream(Bf16* p, V v) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), to_bf16(v)); }
static inline V add(V a, V b) { return _mm512_add_ps(a, b); }
static inline V sub(V a, V b) { return _mm512_sub_ps(a, b); }
static inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
static inline V div(V a, V b) { return _mm512_div_ps(a, b); }
static inline V sqrt(V a) { return _mm512_sqrt_ps(a); }
static inline V max(V a, V b) { return _mm512_max_ps(a, b); }
static inline V min(V a, V b) { return _mm512_min_ps(a, b); }
static inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
static inline void add_product(V& sum, V a, V b) { asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); }
static inline V fnma(V a, V b, V c) { return _mm512_fnmadd_ps(a, b, c); }
static inline V round(V a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline V scale_by_power(V a, V exponent) { return _mm512_scalef_ps(a, exponent); }
static inline float sum(V a) { return _mm512_reduce_add_ps(a); }
static inline float largest(V a) { return _mm512_reduce_max_ps(a); }
static inline V even(const Bf16* p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16)); }
static inline V odd(const Bf16* p) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(0xffff0000)));
}
static inline void interleave(V even, V odd, V& first, V& second) {
  const __m512i places = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  first = _mm512_permutex2var_ps(even, places, odd);
  second = _mm512_permutex2var_ps(even, _mm512_add_epi32(places, _mm512_set1_epi32(8)), odd);
}
static inline V keep_below(V a, int64_t first, int64_t last, float other) {
  int64_t count = last - first;
  __mmask16 mask = count >= 16 ? 0xffff : count <= 0 ? 0 : (1u << count) - 1;
  return _mm512_mask_blend_ps(mask, set1(other), a);
}
static inline V select_negative(V sign, V if_negative, V otherwise) {
  return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(sign)), otherwise, if_negative);
}
static inline V keep_from(V a, int64_t first, int64_t last, float other) {
  int64_t count = last - first;
  __mmask16 mask = count >= 16 ? 0xffff : count <= 0 ? 0 : (1u << count) - 1;
  return _mm512_mask_blend_ps(mask, a, set1(other));
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
static inline void transpose(V* rows, char* to) {
  __m512i bits[16];
  LULLM_UNROLL for (int i = 0; i < 16; i++) bits[i] = _mm512_castps_si512(rows[i]);
  transpose(bits, to, 64);
}
static inline void transpose(const char* from, int64_t from_stride, char* to, int64_t to_stride) {
  __m512i rows[16];
  LULLM_UNROLL for (int i = 0; i < 16; i++) rows[i] = _mm512_loadu_si512(from + i * from_stride);
  transpose(rows, to, to_stride);
}

static inline V round_to_bf16(V v) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(to_bf16(v)), 16));
}
static inline V keep(V a, uint64_t mask, float other) { return _mm512_mask_blend_ps(mask, set1(other), a); }
static inline bool any_above(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
static inline uint32_t at_most(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
static inline bool has_nan(V v) { return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q) != 0; }
static inline V keep_at_least(V v, float threshold) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(v, set1(threshold), _CMP_GE_OQ), v);
}
static inline void hold(V& v) { asm volatile("" : "+v"(v)); }

static inline V from_halves(__m256i bits) { return _mm512_cvtph_ps(bits); }
static inline void store_halves(void* p, V v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

using I = __m512i;

static inline void hold(I& v) { asm volatile("" : "+v"(v)); }

static inline I zero_integers() { return _mm512_setzero_si512(); }
static inline I set_integers(int32_t value) { return _mm512_set1_epi32(value); }
static inline I load_integers(const void* p) { return _mm512_loadu_si512(p); }
static inline void store_integers(void* p, I v) { _mm512_storeu_si512(p, v); }
static inline I add(I a, I b) { return _mm512_add_epi32(a, b); }
static inline I add_16(I a, I b) { return _mm512_add_epi16(a, b); }
static inline I add_to_numbers(I bf16, I powers) {
  return _mm512_mask_add_epi16(bf16, _mm512_test_epi16_mask(bf16, _mm512_set1_epi16(0x7fff)), bf16, powers);
}
static inline I both(I a, I b) { return _mm512_and_si512(a, b); }
static inline I either(I a, I b) { return _mm512_or_si512(a, b); }
template <int kBits>
static inline I shift_left_32(I a) { return _mm512_slli_epi32(a, kBits); }
template <int kBits>
static inline I shift_left_16(I a) { return _mm512_slli_epi16(a, kBits); }
template <int kBits>
static inline I shift_right_16(I a) { return _mm512_srli_epi16(a, kBits); }
template <int kBits>
static inline I shift_signed_16(I a) { return _mm512_srai_epi16(a, kBits); }
template <int kBits>
static inline I shift_signed_32(I a) { return _mm512_srai_epi32(a, kBits); }
static inline I subtract_8(I a, I b) { return _mm512_sub_epi8(a, b); }
static inline I multiply_16(I a, I b) { return _mm512_mullo_epi16(a, b); }
static inline I multiply_32(I a, I b) { return _mm512_mullo_epi32(a, b); }
static inline I magnitude_32(I a) { return _mm512_abs_epi32(a); }
static inline __mmask64 signs_32(I a) { return _mm512_movepi8_mask(_mm512_srai_epi32(a, 31)); }
static inline I negate_8(I a, __mmask64 signs) { return _mm512_mask_sub_epi8(a, signs, _mm512_setzero_si512(), a); }
static inline I add_dot(I sum, I a, I b) {
#if defined(__AVX512VNNI__)
  return _mm512_dpwssd_epi32(sum, a, b);
#else
  return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
#endif
}
static inline V to_floats(I a) { return _mm512_cvtepi32_ps(a); }
static inline I to_integers(V a) { return _mm512_cvtps_epi32(a); }
static inline I load_signed_bytes(const int8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline __m256i to_16_bits(I a) { return _mm512_cvtsepi32_epi16(a); }
static inline I greater(I a, I b) { return _mm512_max_epi32(a, b); }
static inline int32_t greatest(I a) { return _mm512_reduce_max_epi32(a); }
static inline int32_t total(I a) { return _mm512_reduce_add_epi32(a); }
static inline I bits_of(V a) { return _mm512_castps_si512(a); }

static inline I note_nan(I most, I bytes) { return _mm512_max_epu8(most, _mm512_add_epi8(bytes, bytes)); }
static inline bool holds_nan(I most) { return _mm512_cmpeq_epi8_mask(most, _mm512_set1_epi8(-2)) != 0; }
static inline void split_bytes(const void* from, void* to) {
  const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m512i fours = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(to, _mm512_permutexvar_epi32(fours, _mm512_shuffle_epi8(_mm512_loadu_si512(from), order)));
}

#if defined(__AVX512BF16__)
#define LULLM_HAS_DOTS

// The bits of a dot product are those of two fused products, the pairs' second elements first.
constexpr bool kDotsAreProducts = true;

static inline V dot(V sum, V a, V b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
}
static inline V set_pair(const void* p) {
  int32_t pair;
  std::memcpy(&pair, p, 4);
  return _mm512_castsi512_ps(_mm512_set1_epi32(pair));
}
static inline V load_pairs(const Bf16* p, int64_t left) {
  return _mm512_castsi512_ps(left >= 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16(0xffff, p));
}
static inline V round_to_pairs(V low, V high) { return _mm512_castsi512_ps((__m512i)_mm512_cvtne2ps_pbh(high, low)); }
#if defined(__AVX512FP16__) && defined(__AVX512VBMI__)
#define LULLM_PAIRS_BYTES
// Bytes in the upper halves of words are 256 times as much, as half precision exactly, and but for zero have the exponents
// 23 to 29. The topmost of their five bits, one as well in bf16's eight, stays in its place and the others move by three.
constexpr float kInt8Unit = 0x1p-8f;
template <int kHalf>
static inline V pairs_of(__m512i bytes) {
  const __m512i count = _mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11,
                                         10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i places = _mm512_slli_epi16(_mm512_add_epi16(count, _mm512_set1_epi16(32 * kHalf)), 8);
  const __m512i words = _mm512_maskz_permutexvar_epi8(0xaaaaaaaaaaaaaaaa, places, bytes);
  const __m512i halves = _mm512_castph_si512(_mm512_cvtepi16_ph(words));
  const __m512i moved = _mm512_and_si512(_mm512_srli_epi16(halves, 3), _mm512_set1_epi16(0x07ff));
  const __m512i kept = _mm512_set1_epi16(static_cast<short>(0xc000));
  return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(halves, kept, moved, 0xea));  // halves & kept | moved
}
static inline V load_pairs(const Int8* p, int64_t left) {
  const __m256i* bytes = reinterpret_cast<const __m256i*>(p);
  return pairs_of<0>(_mm512_castsi256_si512(left >= 32 ? _mm256_loadu_si256(bytes) : _mm256_maskz_loadu_epi8(0xffff, bytes)));
}
static inline void pair_bytes(const Int8* a, const Int8* b, V* columns) {
  constexpr __mmask64 kHigh = 0xaaaaaaaaaaaaaaaa;
  const __m512i first = _mm512_loadu_si512(a), second = _mm512_loadu_si512(b);
  const __m512i even = _mm512_mask_blend_epi8(kHigh, first, _mm512_slli_epi16(second, 8));
  const __m512i odd = _mm512_mask_blend_epi8(kHigh, _mm512_srli_epi16(first, 8), second);
  columns[0] = pairs_of<0>(even), columns[1] = pairs_of<0>(odd);
  columns[2] = pairs_of<1>(even), columns[3] = pairs_of<1>(odd);
}
#endif

// The exponent counts from 127 instead of 7. Numbers below 2**-6 are 0 to 7 times 2**-9, by a table.
static inline V load_pairs(const Float8* p, int64_t left) {
  const __m512i small = _mm512_castsi128_si512(
      _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60));
  const __mmask32 lanes = left >= 32 ? 0xffffffff : 0xffff;
  const __m512i words = _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(lanes, p));
  const __m512i magnitude = _mm512_and_si512(_mm512_slli_epi16(words, 4), _mm512_set1_epi16(0x7f0));
  __m512i bits = _mm512_add_epi16(magnitude, _mm512_set1_epi16((127 - 7) << 7));
  const __mmask32 is_small = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(0x80));
  bits = _mm512_mask_permutexvar_epi16(bits, is_small, words, small);
  const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f0));
  bits = _mm512_mask_mov_epi16(bits, is_nan, _mm512_set1_epi16(0x7fff));
  const __m512i sign = _mm512_set1_epi16(static_cast<short>(0x8000));
  return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(bits, words, sign, 0xf8));  // bits | (words & sign)
}
static inline V pair_even(V a, V b) {
  constexpr __mmask32 kHigh = 0xaaaaaaaa;
  const __m512i low = _mm512_castps_si512(a), high = _mm512_castps_si512(b);
  return _mm512_castsi512_ps(_mm512_mask_blend_epi16(kHigh, low, _mm512_slli_epi32(high, 16)));
}
static inline V pair_odd(V a, V b) {
  constexpr __mmask32 kHigh = 0xaaaaaaaa;
  const __m512i low = _mm512_castps_si512(a), high = _mm512_castps_si512(b);
  return _mm512_castsi512_ps(_mm512_mask_blend_epi16(kHigh, _mm512_srli_epi32(low, 16), high));
}
static inline V pair_first(V a, V b) {
  const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(_mm512_castps_si512(a)));
  const __m512i high = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(_mm512_castps_si512(b)));
  return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}
static inline V swap_neighbours(V a) { return _mm512_permute_ps(a, 0xb1); }
static inline I to_unsigned(V a) { return _mm512_cvtps_epu32(a); }
static inline I both_or(I a, I b, I c) { return _mm512_ternarylogic_epi32(a, b, c, 0xea); }
static inline I sub(I a, I b) { return _mm512_sub_epi32(a, b); }
static inline V floats_of(I bits) { return _mm512_castsi512_ps(bits); }

#endif

}  // namespace LULLM_ISA
}  // namespace lullm
