// Elements of a KV cache of 8 bits, and the scales beside them. Floats and bf16 hold all their values exactly.
#pragma once

#include "simd.h"

namespace lullm {
namespace LULLM_ISA {

// Sixteen half-precision numbers.
static inline V from_halves(__m256i bits) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(bits);
#else
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(bits)), _mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1))};
#endif
}

static inline V load(const Int8* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
#if defined(__AVX512F__)
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
#else
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
#endif
}

// By way of half precision, whose exponent counts from 15 instead of 7, a factor of 256: neither small numbers nor a
// processor that flushes denormals take a step of their own. The only NaN of e4m3 is all ones.
static inline V load(const Float8* p) {
  const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(words, 7), _mm256_set1_epi16(static_cast<short>(0xbfff)));
  const __m256i magnitude = _mm256_set1_epi16(0x3f80), exponent = _mm256_set1_epi16(0x7c00);
  const __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(halves, magnitude), magnitude);
  return mul(from_halves(_mm256_or_si256(halves, _mm256_and_si256(is_nan, exponent))), set1(256.0f));
}

#if defined(__AVX512BF16__)
// Thirty-two elements, or 16 and zeros.
static inline __m512i as_bf16(const Bf16* p, int64_t left) {
  return left >= 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16(0xffff, p);
}
static inline __m512i as_bf16(const Int8* p, int64_t left) {
  return (__m512i)_mm512_cvtne2ps_pbh(left >= 32 ? load(p + kLanes) : zero(), load(p));
}
// The exponent counts from 127 instead of 7. Numbers below 2**-6 are 0 to 7 times 2**-9, by a table.
static inline __m512i as_bf16(const Float8* p, int64_t left) {
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
  return _mm512_ternarylogic_epi32(bits, words, sign, 0xf8);  // bits | (words & sign)
}
#endif

}  // namespace LULLM_ISA
}  // namespace lullm
