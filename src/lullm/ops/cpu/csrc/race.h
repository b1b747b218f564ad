// The noise of a draw: one Gumbel number per token id, a function of the draw's key and the id alone.
//
// The bits are SplitMix64's (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): the key
// starts a stream, and token i takes its i-th number. The logarithms have one order of operations in float64 here, in
// `sampling/race.py` and in the Triton kernel, so that all give the same bits; libms differ in the last place.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd.h"

namespace lullm {
namespace LULLM_ISA {

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15, kMix1 = 0xBF58476D1CE4E5B9, kMix2 = 0x94D049BB133111EB;

static inline uint64_t random_bits(uint64_t key, int64_t id) {
  uint64_t x = key + static_cast<uint64_t>(id + 1) * kGamma;
  x = (x ^ (x >> 30)) * kMix1;
  x = (x ^ (x >> 27)) * kMix2;
  return x ^ (x >> 31);
}

// ln(y) of a normal y > 0, within 1e-15 of it, near 1 too: 2 artanh((f - 1) / (f + 1)) for y = f 2**e, f near 1.
static inline double natural_log(double y) {
  constexpr int64_t kRootOfHalf = 0x3FE6A09E667F3BCD, kOne = int64_t{1} << 52;
  int64_t bits;
  std::memcpy(&bits, &y, 8);
  const int64_t exponent = (bits - kRootOfHalf) >> 52;
  bits -= exponent * kOne;
  double f;
  std::memcpy(&f, &bits, 8);
  const double s = (f - 1.0) / (f + 1.0), square = s * s;
  double sum = 1.0 / 17;
  for (int odd = 15; odd >= 1; odd -= 2) sum = sum * square + 1.0 / odd;
  return static_cast<double>(exponent) * 0x1.62e42fefa39efp-1 + 2.0 * s * sum;
}

// -ln(-ln(1 - x)) for the uniform number x = (52 bits + a half) / 2**52: between -3.6 and 36.8.
static inline double gumbel_noise(uint64_t key, int64_t id) {
  const double x = (static_cast<double>(random_bits(key, id) >> 12) + 0.5) * 0x1p-52;
  return -natural_log(-natural_log(1.0 - x));
}

// Of sixteen tokens from `first` on: the upper 31 random bits, as floats.
#if defined(__AVX512F__)
static inline __m512i upper_bits(__m512i x) {
  x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 30)), _mm512_set1_epi64(kMix1));
  x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 27)), _mm512_set1_epi64(kMix2));
  return _mm512_srli_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 31)), 33);
}
static inline V random_heads(uint64_t key, int64_t first) {
  const __m512i lanes = _mm512_setr_epi64(1, 2, 3, 4, 5, 6, 7, 8);
  const __m512i low_steps = _mm512_mullo_epi64(lanes, _mm512_set1_epi64(kGamma));
  const __m512i start = _mm512_set1_epi64(key + static_cast<uint64_t>(first) * kGamma);
  const __m512i low = _mm512_add_epi64(start, low_steps);
  const __m512i high = _mm512_add_epi64(low, _mm512_set1_epi64(8 * kGamma));
  const __m256i a = _mm512_cvtepi64_epi32(upper_bits(low)), b = _mm512_cvtepi64_epi32(upper_bits(high));
  return _mm512_cvtepi32_ps(_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1));
}
#elif defined(__AVX2__)
static inline __m256i multiply(__m256i a, uint64_t factor) {
  const __m256i b = _mm256_set1_epi64x(factor), b_high = _mm256_set1_epi64x(factor >> 32);
  const __m256i cross = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(a, 32), b), _mm256_mul_epu32(a, b_high));
  return _mm256_add_epi64(_mm256_mul_epu32(a, b), _mm256_slli_epi64(cross, 32));
}
static inline __m256i upper_bits(uint64_t start) {  // of four tokens
  __m256i x = _mm256_setr_epi64x(start + kGamma, start + 2 * kGamma, start + 3 * kGamma, start + 4 * kGamma);
  x = multiply(_mm256_xor_si256(x, _mm256_srli_epi64(x, 30)), kMix1);
  x = multiply(_mm256_xor_si256(x, _mm256_srli_epi64(x, 27)), kMix2);
  return _mm256_srli_epi64(_mm256_xor_si256(x, _mm256_srli_epi64(x, 31)), 33);
}
static inline __m256 eight_heads(uint64_t start) {
  const __m256 a = _mm256_castsi256_ps(upper_bits(start)), b = _mm256_castsi256_ps(upper_bits(start + 4 * kGamma));
  const __m256i packed = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
  return _mm256_cvtepi32_ps(_mm256_permute4x64_epi64(packed, 0xd8));
}
static inline V random_heads(uint64_t key, int64_t first) {
  const uint64_t start = key + static_cast<uint64_t>(first) * kGamma;
  return {eight_heads(start), eight_heads(start + 8 * kGamma)};
}
#else
static inline V random_heads(uint64_t key, int64_t first) {
  float heads[kLanes];
  for (int lane = 0; lane < kLanes; lane++) heads[lane] = static_cast<float>(random_bits(key, first + lane) >> 33);
  return load(heads);
}
#endif

}  // namespace LULLM_ISA
}  // namespace lullm
