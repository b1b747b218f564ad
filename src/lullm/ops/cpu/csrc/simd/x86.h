// What AVX2 and AVX-512 do in the same way, for either's V and I; what the functions do is said in simd.h.
#pragma once

#include <immintrin.h>

#include "../dtype.h"

namespace lullm {
namespace LULLM_ISA {

static inline V load_halves(const void* p) { return from_halves(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
static inline uint16_t half_of(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
static inline float float_of_half(uint16_t bits) { return _cvtsh_ss(bits); }

static inline __m256i halves_of(const FiniteFloat8* p) {
  const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_and_si256(_mm256_slli_epi16(words, 7), _mm256_set1_epi16(static_cast<short>(0xbfff)));
}
static inline V load(const FiniteFloat8* p) { return from_halves(halves_of(p)); }
static inline V load(const Float8* p) {
  const __m256i halves = halves_of(static_cast<const FiniteFloat8*>(p));
  const __m256i magnitude = _mm256_set1_epi16(0x3f80), exponent = _mm256_set1_epi16(0x7c00);
  const __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(halves, magnitude), magnitude);
  return from_halves(_mm256_or_si256(halves, _mm256_and_si256(is_nan, exponent)));
}

static inline void store_bytes(void* p, I integers) {
  const __m256i halves = to_16_bits(integers);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
  _mm_storeu_si128(static_cast<__m128i*>(p), bytes);
}
static inline void store_crossed(void* p, I integers) {
  const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_shuffle_epi8(to_16_bits(integers), order));
}

}  // namespace LULLM_ISA
}  // namespace lullm
