// V and I with NEON, in four registers each; what the functions do is said in simd.h.
//
// Sums of lanes take the order of AVX2's, so float32 has the same bits on both.
#pragma once

#include <arm_neon.h>

#include <cstring>

#include "../dtype.h"

namespace lullm {
namespace LULLM_ISA {

constexpr int kRegisters = 8;  // of four each

template <class Part>
struct Parts {
  Part part[4];
};
using V = Parts<float32x4_t>;
using I = Parts<int32x4_t>;

// What `of` says of the parts 0 to 3.
template <class Of>
static inline auto parts(Of&& of) {
  return Parts<decltype(of(0))>{{of(0), of(1), of(2), of(3)}};
}
#define LULLM_LANEWISE(type, name, op) \
  static inline type name(type a, type b) { return parts([&](int i) { return op(a.part[i], b.part[i]); }); }

static inline V set1(float value) {
  const float32x4_t part = vdupq_n_f32(value);
  return {{part, part, part, part}};
}
static inline V zero() { return set1(0.0f); }
static inline V load(const float* p) { return parts([&](int i) { return vld1q_f32(p + 4 * i); }); }
static inline float32x4_t widen(uint16x4_t bits) { return vreinterpretq_f32_u32(vshll_n_u16(bits, 16)); }
static inline V load(const Bf16* p) {
  return parts([&](int i) { return widen(vld1_u16(&p->bits + 4 * i)); });
}
static inline void store(float* p, V v) {
  LULLM_UNROLL for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, v.part[i]);
}
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
static inline uint16x4_t to_bf16(float32x4_t v) { return vreinterpret_u16_bf16(vcvt_bf16_f32(v)); }
#else
static inline uint16x4_t to_bf16(float32x4_t v) {
  const uint32x4_t bits = vreinterpretq_u32_f32(v), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, vorrq_u32(bits, vdupq_n_u32(0x400000))), 16);
}
#endif
static inline void store(Bf16* p, V v) {
  LULLM_UNROLL for (int i = 0; i < 4; i++) vst1_u16(&p->bits + 4 * i, to_bf16(v.part[i]));
}
static inline void store_numbers(Bf16* p, V v) { store(p, v); }
template <class T>
static inline void stream(T* p, V v) {
  store(p, v);
}
static inline V round_to_bf16(V v) { return parts([&](int i) { return widen(to_bf16(v.part[i])); }); }
LULLM_LANEWISE(V, add, vaddq_f32)
LULLM_LANEWISE(V, sub, vsubq_f32)
LULLM_LANEWISE(V, mul, vmulq_f32)
LULLM_LANEWISE(V, div, vdivq_f32)
static inline V sqrt(V a) {
  return parts([&](int i) { return vsqrtq_f32(a.part[i]); });
}
// The second where one is NaN, as on x86: what a kernel makes of NaN must not depend on the machine.
static inline float32x4_t greater_part(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline float32x4_t less_part(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
LULLM_LANEWISE(V, max, greater_part)
LULLM_LANEWISE(V, min, less_part)
static inline V fma(V a, V b, V c) {
  return parts([&](int i) { return vfmaq_f32(c.part[i], a.part[i], b.part[i]); });
}
static inline void add_product(V& sum, V a, V b) { sum = fma(a, b, sum); }
static inline V fnma(V a, V b, V c) {
  return parts([&](int i) { return vfmsq_f32(c.part[i], a.part[i], b.part[i]); });
}
static inline V round(V a) {
  return parts([&](int i) { return vrndnq_f32(a.part[i]); });
}
static inline float32x4_t power_of_two(float32x4_t exponent) {  // for -126..127
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(exponent), vdupq_n_s32(127)), 23));
}
static inline V scale_by_power(V a, V exponent) {
  return parts([&](int i) { return vmulq_f32(a.part[i], power_of_two(exponent.part[i])); });
}
static inline float sum(V a) {
  const float32x4_t v = vaddq_f32(vaddq_f32(a.part[0], a.part[2]), vaddq_f32(a.part[1], a.part[3]));
  return vaddv_f32(vadd_f32(vget_low_f32(v), vget_high_f32(v)));
}
static inline float largest(V a) {
  const float32x4_t v = greater_part(greater_part(a.part[0], a.part[2]), greater_part(a.part[1], a.part[3]));
  return vmaxvq_f32(v);
}
static inline V even(const Bf16* p) {
  const uint32_t* units = reinterpret_cast<const uint32_t*>(p);
  return parts([&](int i) { return vreinterpretq_f32_u32(vshlq_n_u32(vld1q_u32(units + 4 * i), 16)); });
}
static inline V odd(const Bf16* p) {
  const uint32_t* units = reinterpret_cast<const uint32_t*>(p);
  const uint32x4_t high = vdupq_n_u32(0xffff0000);
  return parts([&](int i) { return vreinterpretq_f32_u32(vandq_u32(vld1q_u32(units + 4 * i), high)); });
}
static inline void interleave(V even, V odd, V& first, V& second) {
  auto half = [&](int from) {
    return parts([&](int i) {
      const float32x4_t a = even.part[from + i / 2], b = odd.part[from + i / 2];
      return i % 2 == 0 ? vzip1q_f32(a, b) : vzip2q_f32(a, b);
    });
  };
  first = half(0), second = half(2);
}

// Masks have all bits of a lane.
static inline uint32x4_t lanes_below(int64_t count, int part) {
  const int32_t first[4] = {0, 1, 2, 3};
  const int64_t left = count - 4 * part;
  return vcltq_s32(vld1q_s32(first), vdupq_n_s32(static_cast<int32_t>(left < 0 ? 0 : left > 4 ? 4 : left)));
}
static inline V keep_below(V a, int64_t first, int64_t last, float other) {
  return parts([&](int i) { return vbslq_f32(lanes_below(last - first, i), a.part[i], vdupq_n_f32(other)); });
}
static inline V keep_from(V a, int64_t first, int64_t last, float other) {
  return parts([&](int i) { return vbslq_f32(lanes_below(last - first, i), vdupq_n_f32(other), a.part[i]); });
}
static inline V select_negative(V sign, V if_negative, V otherwise) {
  return parts([&](int i) { return vbslq_f32(vcltzq_s32(vreinterpretq_s32_f32(sign.part[i])), if_negative.part[i], otherwise.part[i]); });
}
static inline uint32x4_t lane_bits(int part) {
  const uint32_t first[4] = {1, 2, 4, 8};
  return vshlq_u32(vld1q_u32(first), vdupq_n_s32(4 * part));
}
static inline V keep(V a, uint64_t mask, float other) {
  const uint32x4_t bits = vdupq_n_u32(static_cast<uint32_t>(mask));
  return parts([&](int i) { return vbslq_f32(vtstq_u32(bits, lane_bits(i)), a.part[i], vdupq_n_f32(other)); });
}
static inline bool any_above(V a, V b) {
  uint32x4_t found = vdupq_n_u32(0);
  LULLM_UNROLL for (int i = 0; i < 4; i++) found = vorrq_u32(found, vcgtq_f32(a.part[i], b.part[i]));
  return vmaxvq_u32(found) != 0;
}
static inline uint32_t at_most(V a, V b) {
  uint32x4_t found = vdupq_n_u32(0);
  LULLM_UNROLL for (int i = 0; i < 4; i++)
    found = vorrq_u32(found, vandq_u32(vcleq_f32(a.part[i], b.part[i]), lane_bits(i)));
  return vaddvq_u32(found);
}
static inline bool has_nan(V v) {
  uint32x4_t fine = vdupq_n_u32(~0u);
  LULLM_UNROLL for (int i = 0; i < 4; i++) fine = vandq_u32(fine, vceqq_f32(v.part[i], v.part[i]));
  return vminvq_u32(fine) == 0;
}
static inline V keep_at_least(V v, float threshold) {
  const float32x4_t t = vdupq_n_f32(threshold);
  return parts([&](int i) { return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(v.part[i]), vcgeq_f32(v.part[i], t))); });
}
static inline void hold(V& v) { asm volatile("" : "+w"(v.part[0]), "+w"(v.part[1]), "+w"(v.part[2]), "+w"(v.part[3])); }

static inline void transpose_four(const float32x4_t* r, char* to, int64_t to_stride) {
  const float32x4_t a = vzip1q_f32(r[0], r[2]), b = vzip2q_f32(r[0], r[2]);
  const float32x4_t c = vzip1q_f32(r[1], r[3]), d = vzip2q_f32(r[1], r[3]);
  const float32x4_t columns[4] = {vzip1q_f32(a, c), vzip2q_f32(a, c), vzip1q_f32(b, d), vzip2q_f32(b, d)};
  LULLM_UNROLL for (int i = 0; i < 4; i++) vst1q_u8(reinterpret_cast<uint8_t*>(to + i * to_stride), vreinterpretq_u8_f32(columns[i]));
}
static inline void transpose(V* rows, char* to) {
  LULLM_UNROLL for (int i = 0; i < 4; i++) {
    LULLM_UNROLL for (int j = 0; j < 4; j++) {
      const float32x4_t four[4] = {rows[4 * i].part[j], rows[4 * i + 1].part[j], rows[4 * i + 2].part[j],
                                   rows[4 * i + 3].part[j]};
      transpose_four(four, to + 4 * j * 64 + 16 * i, 64);
    }
  }
}
static inline void transpose(const char* from, int64_t from_stride, char* to, int64_t to_stride) {
  for (int i = 0; i < 4; i++) {
    for (int j = 0; j < 4; j++) {
      float32x4_t four[4];
      LULLM_UNROLL for (int r = 0; r < 4; r++)
        four[r] = vreinterpretq_f32_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(from + (4 * i + r) * from_stride + 16 * j)));
      transpose_four(four, to + 4 * j * to_stride + 16 * i, to_stride);
    }
  }
}

static inline float32x4_t widen_halves(uint16x4_t bits) { return vcvt_f32_f16(vreinterpret_f16_u16(bits)); }
static inline V load_halves(const void* p) {
  uint16_t bits[kLanes];
  std::memcpy(bits, p, sizeof bits);
  return parts([&](int i) { return widen_halves(vld1_u16(bits + 4 * i)); });
}
static inline void store_halves(void* p, V v) {
  uint16_t bits[kLanes];
  LULLM_UNROLL for (int i = 0; i < 4; i++) vst1_u16(bits + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(v.part[i])));
  std::memcpy(p, bits, sizeof bits);
}
static inline uint16_t half_of(float x) {
  const __fp16 half = static_cast<__fp16>(x);
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}
static inline float float_of_half(uint16_t bits) {
  __fp16 half;
  std::memcpy(&half, &bits, 2);
  return static_cast<float>(half);
}
template <bool kIsFinite>
static inline V load_float8(const uint8_t* p) {
  const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
  uint16x8_t halves[2] = {vreinterpretq_u16_s16(vmovl_s8(vget_low_s8(bytes))), vreinterpretq_u16_s16(vmovl_high_s8(bytes))};
  const uint16x8_t magnitude = vdupq_n_u16(0x3f80), exponent = vdupq_n_u16(0x7c00);
  LULLM_UNROLL for (int i = 0; i < 2; i++) {
    halves[i] = vandq_u16(vshlq_n_u16(halves[i], 7), vdupq_n_u16(0xbfff));
    if constexpr (kIsFinite) continue;
    const uint16x8_t is_nan = vceqq_u16(vandq_u16(halves[i], magnitude), magnitude);
    halves[i] = vorrq_u16(halves[i], vandq_u16(is_nan, exponent));
  }
  return parts([&](int i) {
    return widen_halves(i % 2 == 0 ? vget_low_u16(halves[i / 2]) : vget_high_u16(halves[i / 2]));
  });
}
static inline V load(const Float8* p) { return load_float8<false>(&p->bits); }
static inline V load(const FiniteFloat8* p) { return load_float8<true>(&p->bits); }

}  // namespace LULLM_ISA
}  // namespace lullm

#include "neon_integers.h"
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include "neon_dots.h"
#endif
