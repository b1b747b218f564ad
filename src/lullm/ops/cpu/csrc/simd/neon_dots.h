// What NEON does with pairs of bf16; what the functions do is said in simd.h.
#pragma once

#define LULLM_HAS_DOTS

namespace lullm {
namespace LULLM_ISA {

// BFDOT rounds its sums to odd and flushes denormals (Arm Architecture Reference Manual, BFDotAdd): not the bits of fused
// products, so which of the two serves must not depend on a measurement.
constexpr bool kDotsAreProducts = false;

static inline bfloat16x8_t as_pairs(float32x4_t a) { return vreinterpretq_bf16_f32(a); }
static inline uint16x8_t as_words(float32x4_t a) { return vreinterpretq_u16_f32(a); }
static inline float32x4_t from_words(uint16x8_t a) { return vreinterpretq_f32_u16(a); }

static inline V dot(V sum, V a, V b) {
  return parts([&](int i) { return vbfdotq_f32(sum.part[i], as_pairs(a.part[i]), as_pairs(b.part[i])); });
}
static inline V set_pair(const void* p) {
  float pair;
  std::memcpy(&pair, p, 4);
  return set1(pair);
}
static inline V round_to_pairs(V low, V high) {
  auto both = [](float32x4_t a, float32x4_t b) {
    return vreinterpretq_f32_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(a), b));
  };
  return {{both(low.part[0], low.part[1]), both(low.part[2], low.part[3]), both(high.part[0], high.part[1]),
           both(high.part[2], high.part[3])}};
}
static inline V load_pairs(const Bf16* p, int64_t left) {
  return parts([&](int i) { return i < 2 || left >= 32 ? from_words(vld1q_u16(&p->bits + 8 * i)) : vdupq_n_f32(0); });
}
static inline V pair_even(V a, V b) {
  return parts([&](int i) { return from_words(vtrn1q_u16(as_words(a.part[i]), as_words(b.part[i]))); });
}
static inline V pair_odd(V a, V b) {
  return parts([&](int i) { return from_words(vtrn2q_u16(as_words(a.part[i]), as_words(b.part[i]))); });
}
static inline V pair_first(V a, V b) {
  return parts([&](int i) {
    const uint16x8_t first = as_words(a.part[i / 2]), second = as_words(b.part[i / 2]);
    return from_words(i % 2 == 0 ? vzip1q_u16(first, second) : vzip2q_u16(first, second));
  });
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
static inline V swap_neighbours(V a) { return parts([&](int i) { return vrev64q_f32(a.part[i]); }); }
static inline I to_unsigned(V a) { return parts([&](int i) { return vreinterpretq_s32_u32(vcvtnq_u32_f32(a.part[i])); }); }
static inline I both_or(I a, I b, I c) { return either(both(a, b), c); }
LULLM_LANEWISE(I, sub, vsubq_s32)
static inline V floats_of(I bits) { return parts([&](int i) { return vreinterpretq_f32_s32(bits.part[i]); }); }

}  // namespace LULLM_ISA
}  // namespace lullm
