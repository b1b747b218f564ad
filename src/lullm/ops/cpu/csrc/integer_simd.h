// I: sixteen 32-bit integers, or thirty-two of 16 bits, in the instruction set this file is compiled for.
#pragma once

#include "simd.h"

namespace lullm {
namespace LULLM_ISA {

#if defined(__AVX512F__)

using I = __m512i;

static inline I zero_integers() { return _mm512_setzero_si512(); }
static inline I set_integers(int32_t value) { return _mm512_set1_epi32(value); }
static inline I load_integers(const void* p) { return _mm512_loadu_si512(p); }
static inline void store_integers(void* p, I v) { _mm512_storeu_si512(p, v); }
static inline I add(I a, I b) { return _mm512_add_epi32(a, b); }
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
// The signs of sixteen integers, for the four bytes of each; and bytes with their sign changed where it is negative.
static inline __mmask64 signs_32(I a) { return _mm512_movepi8_mask(_mm512_srai_epi32(a, 31)); }
static inline I negate_8(I a, __mmask64 signs) { return _mm512_mask_sub_epi8(a, signs, _mm512_setzero_si512(), a); }
// sum + the products of neighbouring 16-bit integers, in pairs.
static inline I add_dot(I sum, I a, I b) {
#if defined(__AVX512VNNI__)
  return _mm512_dpwssd_epi32(sum, a, b);
#else
  return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
#endif
}
static inline V to_floats(I a) { return _mm512_cvtepi32_ps(a); }
static inline I to_integers(V a) { return _mm512_cvtps_epi32(a); }
static inline I load_signed_bytes(const int8_t* p) {  // sixteen, as 32 bits each
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline __m256i to_16_bits(I a) { return _mm512_cvtsepi32_epi16(a); }
static inline I greater(I a, I b) { return _mm512_max_epi32(a, b); }
static inline int32_t greatest(I a) { return _mm512_reduce_max_epi32(a); }
static inline int32_t total(I a) { return _mm512_reduce_add_epi32(a); }
static inline I bits_of(V a) { return _mm512_castps_si512(a); }

#else  // AVX2

struct I {
  __m256i low, high;
};

static inline I zero_integers() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
static inline I set_integers(int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
static inline I load_integers(const void* p) {
  const __m256i* from = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)};
}
static inline void store_integers(void* p, I v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v.low);
  _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, v.high);
}
static inline I add(I a, I b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
static inline I both(I a, I b) { return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)}; }
static inline I either(I a, I b) { return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)}; }
template <int kBits>
static inline I shift_left_32(I a) { return {_mm256_slli_epi32(a.low, kBits), _mm256_slli_epi32(a.high, kBits)}; }
template <int kBits>
static inline I shift_left_16(I a) { return {_mm256_slli_epi16(a.low, kBits), _mm256_slli_epi16(a.high, kBits)}; }
template <int kBits>
static inline I shift_right_16(I a) { return {_mm256_srli_epi16(a.low, kBits), _mm256_srli_epi16(a.high, kBits)}; }
template <int kBits>
static inline I shift_signed_16(I a) { return {_mm256_srai_epi16(a.low, kBits), _mm256_srai_epi16(a.high, kBits)}; }
template <int kBits>
static inline I shift_signed_32(I a) { return {_mm256_srai_epi32(a.low, kBits), _mm256_srai_epi32(a.high, kBits)}; }
static inline I subtract_8(I a, I b) { return {_mm256_sub_epi8(a.low, b.low), _mm256_sub_epi8(a.high, b.high)}; }
static inline I multiply_16(I a, I b) {
  return {_mm256_mullo_epi16(a.low, b.low), _mm256_mullo_epi16(a.high, b.high)};
}
static inline I magnitude_32(I a) { return {_mm256_abs_epi32(a.low), _mm256_abs_epi32(a.high)}; }
static inline I signs_32(I a) {
  const __m256i ones = _mm256_set1_epi8(1);
  return {_mm256_or_si256(_mm256_srai_epi32(a.low, 31), ones), _mm256_or_si256(_mm256_srai_epi32(a.high, 31), ones)};
}
static inline I negate_8(I a, I signs) {
  return {_mm256_sign_epi8(a.low, signs.low), _mm256_sign_epi8(a.high, signs.high)};
}
static inline I multiply_32(I a, I b) {
  return {_mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high)};
}
static inline I add_dot(I sum, I a, I b) {
  return add(sum, I{_mm256_madd_epi16(a.low, b.low), _mm256_madd_epi16(a.high, b.high)});
}
static inline V to_floats(I a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
static inline I to_integers(V a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }
static inline I load_signed_bytes(const int8_t* p) {
  __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
}
static inline __m256i to_16_bits(I a) { return _mm256_permute4x64_epi64(_mm256_packs_epi32(a.low, a.high), 0xd8); }
static inline I greater(I a, I b) { return {_mm256_max_epi32(a.low, b.low), _mm256_max_epi32(a.high, b.high)}; }
static inline int32_t greatest(I a) {
  alignas(32) int32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), _mm256_max_epi32(a.low, a.high));
  int32_t result = lanes[0];
  for (int i = 1; i < 8; i++) result = lanes[i] > result ? lanes[i] : result;
  return result;
}
static inline int32_t total(I a) {
  alignas(32) int32_t lanes[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), _mm256_add_epi32(a.low, a.high));
  int32_t result = 0;
  for (int i = 0; i < 8; i++) result += lanes[i];
  return result;
}
static inline I bits_of(V a) { return {_mm256_castps_si256(a.low), _mm256_castps_si256(a.high)}; }

#endif

}  // namespace LULLM_ISA
}  // namespace lullm
