// Whole stripes into the sums of a digest, copied or not.
//
// One pass: a core reads memory once and has the words in registers for both. Stores leave the destination in the cache,
// because that of a backup is mostly fresh: the system has just zeroed the page there. There, two cores copied and hashed
// 9.0 GB/s where memcpy did 8.2 without a hash (Xeon with AMX); into memory that has its pages 14.2 beside 13.5.

#if defined(__aarch64__)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

#include "../kernel_table.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

constexpr int64_t kAhead = 1024;  // bytes: the processor's own prefetch ends with each small page

#if defined(__AVX512F__)

using Words = __m512i;
inline Words load_words(const void* p) { return _mm512_loadu_si512(p); }
inline void store_words(void* p, Words v) { _mm512_storeu_si512(p, v); }
inline Words multiplied(Words product, Words words) {
  const Words factor = _mm512_set1_epi64(kSpreadFactor), x = _mm512_xor_si512(product, words);
  const Words mixed = _mm512_xor_si512(x, _mm512_srli_epi64(x, 32));
  const Words high = _mm512_mul_epu32(_mm512_srli_epi64(mixed, 32), factor);
  return _mm512_add_epi64(_mm512_mul_epu32(mixed, factor), _mm512_slli_epi64(high, 32));
}
inline Words turned(Words parity, Words words) { return _mm512_xor_si512(_mm512_rol_epi64(parity, kParityTurn), words); }

#elif defined(__AVX2__)

using Words = __m256i;
inline Words load_words(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void store_words(void* p, Words v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
inline Words multiplied(Words product, Words words) {
  const Words factor = _mm256_set1_epi64x(kSpreadFactor), x = _mm256_xor_si256(product, words);
  const Words mixed = _mm256_xor_si256(x, _mm256_srli_epi64(x, 32));
  const Words high = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), factor);
  return _mm256_add_epi64(_mm256_mul_epu32(mixed, factor), _mm256_slli_epi64(high, 32));
}
inline Words turned(Words parity, Words words) {
  const Words high = _mm256_slli_epi64(parity, kParityTurn), low = _mm256_srli_epi64(parity, 64 - kParityTurn);
  return _mm256_xor_si256(_mm256_xor_si256(high, low), words);
}

#else  // NEON

using Words = uint64x2_t;
inline Words load_words(const void* p) { return vld1q_u64(static_cast<const uint64_t*>(p)); }
inline void store_words(void* p, Words v) { vst1q_u64(static_cast<uint64_t*>(p), v); }
inline Words multiplied(Words product, Words words) {
  const Words x = veorq_u64(product, words), mixed = veorq_u64(x, vshrq_n_u64(x, 32));
  const uint32x2_t factor = vdup_n_u32(kSpreadFactor);
  const Words high = vshlq_n_u64(vmull_u32(vshrn_n_u64(mixed, 32), factor), 32);
  return vmlal_u32(high, vmovn_u64(mixed), factor);
}
inline Words turned(Words parity, Words words) {
  return veorq_u64(vsriq_n_u64(vshlq_n_u64(parity, kParityTurn), parity, 64 - kParityTurn), words);
}

#endif

template <bool kCopies>
void absorb_stripes(DigestSums& sums, const char* from, char* to, int64_t num_stripes) {
  constexpr int kVectors = kStripeBytes / sizeof(Words), kWords = sizeof(Words) / 8;
  Words products[kVectors], parities[kVectors];
  for (int i = 0; i < kVectors; i++) {
    products[i] = load_words(sums.products + i * kWords);
    parities[i] = load_words(sums.parities + i * kWords);
  }
  for (; num_stripes > 0; num_stripes--, from += kStripeBytes) {
    for (int64_t line = 0; line < kStripeBytes; line += 64) __builtin_prefetch(from + kAhead + line);
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; i++) {
      const Words words = load_words(from + i * sizeof(Words));
      if (kCopies) store_words(to + i * sizeof(Words), words);
      products[i] = multiplied(products[i], words);
      parities[i] = turned(parities[i], words);
    }
    if (kCopies) to += kStripeBytes;
  }
  for (int i = 0; i < kVectors; i++) {
    store_words(sums.products + i * kWords, products[i]);
    store_words(sums.parities + i * kWords, parities[i]);
  }
}

void absorb(DigestSums& sums, const char* from, char* to, int64_t num_stripes) {
  to == nullptr ? absorb_stripes<false>(sums, from, to, num_stripes) : absorb_stripes<true>(sums, from, to, num_stripes);
}

}  // namespace

void fill_digest(Kernels& kernels) { kernels.absorb = absorb; }

}  // namespace LULLM_ISA
}  // namespace lullm
