// V and I with AVX2, in two registers each; what the functions do is said in simd.h.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "../dtype.h"

namespace lullm {
namespace LULLM_ISA {

constexpr int kRegisters = 8;  // of two each

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
static inline __m256i to_bf16(V v) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded_bf16(v.low), rounded_bf16(v.high)), 0xd8);
}
static inline __m256i nearest_bf16(__m256 v) {  // in the low half of each 32 bits
  const __m256i bits = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
}
static inline void store_numbers(Bf16* p, V v) {
  const __m256i halves = _mm256_packus_epi32(nearest_bf16(v.low), nearest_bf16(v.high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(halves, 0xd8));
}
static inline void store(Bf16* p, V v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(v)); }
static inline void stream(float* p, V v) {
  _mm256_stream_ps(p, v.low);
  _mm256_stream_ps(p + 8, v.high);
}
static inline void stream(Bf16* p, V v) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), to_bf16(v)); }
#define LULLM_LANEWISE(name, op) \
  static inline V name(V a, V b) { return {op(a.low, b.low), op(a.high, b.high)}; }
LULLM_LANEWISE(add, _mm256_add_ps)
LULLM_LANEWISE(sub, _mm256_sub_ps)
LULLM_LANEWISE(mul, _mm256_mul_ps)
LULLM_LANEWISE(div, _mm256_div_ps)
static inline V sqrt(V a) { return {_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)}; }
LULLM_LANEWISE(max, _mm256_max_ps)
LULLM_LANEWISE(min, _mm256_min_ps)
#undef LULLM_LANEWISE
static inline V fma(V a, V b, V c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
static inline void add_product(V& sum, V a, V b) {
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum.low) : "x"(a.low), "x"(b.low));
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum.high) : "x"(a.high), "x"(b.high));
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
  // By a shuffle, since a shift would take a place of the products'.
  const __m256i moved = _mm256_set_epi8(13, 12, -1, -1, 9, 8, -1, -1, 5, 4, -1, -1, 1, 0, -1, -1,  //
                                        13, 12, -1, -1, 9, 8, -1, -1, 5, 4, -1, -1, 1, 0, -1, -1);
  const __m256i* bits = reinterpret_cast<const __m256i*>(p);
  return {_mm256_castsi256_ps(_mm256_shuffle_epi8(_mm256_loadu_si256(bits), moved)),
          _mm256_castsi256_ps(_mm256_shuffle_epi8(_mm256_loadu_si256(bits + 1), moved))};
}
static inline V odd(const Bf16* p) {
  const __m256i* bits = reinterpret_cast<const __m256i*>(p);
  __m256i mask = _mm256_set1_epi32(0xffff0000);
  return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(bits), mask)),
          _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(bits + 1), mask))};
}
static inline void interleave(V even, V odd, V& first, V& second) {
  auto half = [](__m256 a, __m256 b) -> V {
    const __m256 low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);
    return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
  };
  first = half(even.low, odd.low), second = half(even.high, odd.high);
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

static inline void transpose(const char* from, int64_t from_stride, char* to, int64_t to_stride) {
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 16; j++) std::memcpy(to + j * to_stride + 4 * i, from + i * from_stride + 4 * j, 4);
}
static inline void transpose(V* rows, char* to) {
  auto quarter = [](const __m256* r, char* out) {  // eight rows of eight
    __m256 t[8], u[8];
    LULLM_UNROLL for (int i = 0; i < 4; i++) {
      t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    LULLM_UNROLL for (int i = 0; i < 2; i++) {
      LULLM_UNROLL for (int j = 0; j < 2; j++) {
        u[4 * i + 2 * j] = _mm256_shuffle_ps(t[4 * i + j], t[4 * i + 2 + j], 0x44);
        u[4 * i + 2 * j + 1] = _mm256_shuffle_ps(t[4 * i + j], t[4 * i + 2 + j], 0xee);
      }
    }
    LULLM_UNROLL for (int i = 0; i < 4; i++) {
      _mm256_storeu_ps(reinterpret_cast<float*>(out + 64 * i), _mm256_permute2f128_ps(u[i], u[4 + i], 0x20));
      _mm256_storeu_ps(reinterpret_cast<float*>(out + 64 * (4 + i)), _mm256_permute2f128_ps(u[i], u[4 + i], 0x31));
    }
  };
  __m256 part[8];
  for (int half = 0; half < 2; half++) {
    for (int i = 0; i < 8; i++) part[i] = rows[8 * half + i].low;
    quarter(part, to + 32 * half);
    for (int i = 0; i < 8; i++) part[i] = rows[8 * half + i].high;
    quarter(part, to + 8 * 64 + 32 * half);
  }
}

static inline V round_to_bf16(V v) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(rounded_bf16(v.low), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(rounded_bf16(v.high), 16))};
}
static inline V keep(V a, uint64_t mask, float other) {
  const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  auto half = [&](__m256 part, uint64_t part_mask) {
    const __m256i own = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(part_mask & 0xff)), bits);
    return _mm256_blendv_ps(_mm256_set1_ps(other), part, _mm256_castsi256_ps(_mm256_cmpeq_epi32(own, bits)));
  };
  return {half(a.low, mask), half(a.high, mask >> 8)};
}
static inline bool any_above(V a, V b) {
  return (_mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_GT_OQ)) |
          _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_GT_OQ))) != 0;
}
static inline uint32_t at_most(V a, V b) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_LE_OQ)) |
         _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_LE_OQ)) << 8;
}
static inline bool has_nan(V v) {
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(v.low, v.low, _CMP_UNORD_Q),
                                         _mm256_cmp_ps(v.high, v.high, _CMP_UNORD_Q))) != 0;
}
static inline V keep_at_least(V v, float threshold) {
  const __m256 t = _mm256_set1_ps(threshold);
  return {_mm256_and_ps(v.low, _mm256_cmp_ps(v.low, t, _CMP_GE_OQ)),
          _mm256_and_ps(v.high, _mm256_cmp_ps(v.high, t, _CMP_GE_OQ))};
}
static inline void hold(V& v) { asm volatile("" : "+x"(v.low), "+x"(v.high)); }

static inline V from_halves(__m256i bits) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(bits)), _mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1))};
}
static inline void store_halves(void* p, V v) {
  __m128i* halves = static_cast<__m128i*>(p);
  _mm_storeu_si128(halves, _mm256_cvtps_ph(v.low, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(halves + 1, _mm256_cvtps_ph(v.high, _MM_FROUND_TO_NEAREST_INT));
}

struct I {
  __m256i low, high;
};

static inline void hold(I& v) { asm volatile("" : "+x"(v.low), "+x"(v.high)); }
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
static inline I add_16(I a, I b) { return {_mm256_add_epi16(a.low, b.low), _mm256_add_epi16(a.high, b.high)}; }
static inline I add_to_numbers(I bf16, I powers) {
  const auto half = [](__m256i bits, __m256i power) {
    const __m256i is_zero = _mm256_cmpeq_epi16(_mm256_add_epi16(bits, bits), _mm256_setzero_si256());
    return _mm256_add_epi16(bits, _mm256_andnot_si256(is_zero, power));
  };
  return {half(bf16.low, powers.low), half(bf16.high, powers.high)};
}
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
  const __m128i* bytes = reinterpret_cast<const __m128i*>(p);
  const __m128i* last = reinterpret_cast<const __m128i*>(p + 8);
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(bytes)), _mm256_cvtepi8_epi32(_mm_loadl_epi64(last))};
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

static inline I note_nan(I most, I bytes) {
  return {_mm256_max_epu8(most.low, _mm256_add_epi8(bytes.low, bytes.low)),
          _mm256_max_epu8(most.high, _mm256_add_epi8(bytes.high, bytes.high))};
}
static inline bool holds_nan(I most) {
  const __m256i doubled = _mm256_cmpeq_epi8(_mm256_max_epu8(most.low, most.high), _mm256_set1_epi8(-2));
  return _mm256_movemask_epi8(doubled) != 0;
}
static inline void split_bytes(const void* from, void* to) {
  const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m256i fours = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const I four = load_integers(from);
  const __m256i low = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(four.low, order), fours);
  const __m256i high = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(four.high, order), fours);
  const __m256i even = _mm256_unpacklo_epi64(low, high), odd = _mm256_unpackhi_epi64(low, high);
  store_integers(to, {_mm256_permute2x128_si256(even, odd, 0x20), _mm256_permute2x128_si256(even, odd, 0x31)});
}

}  // namespace LULLM_ISA
}  // namespace lullm
