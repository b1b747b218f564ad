// What NEON does with I: integers, and floats by their bits; what the functions do is said in simd.h.
#pragma once

namespace lullm {
namespace LULLM_ISA {

static inline int16x8_t as_16(int32x4_t a) { return vreinterpretq_s16_s32(a); }
static inline int8x16_t as_8(int32x4_t a) { return vreinterpretq_s8_s32(a); }

static inline I set_integers(int32_t value) {
  const int32x4_t part = vdupq_n_s32(value);
  return {{part, part, part, part}};
}
static inline void hold(I& v) { asm volatile("" : "+w"(v.part[0]), "+w"(v.part[1]), "+w"(v.part[2]), "+w"(v.part[3])); }
static inline I zero_integers() { return set_integers(0); }
static inline I load_integers(const void* p) {
  const uint8_t* from = static_cast<const uint8_t*>(p);
  return parts([&](int i) { return vreinterpretq_s32_u8(vld1q_u8(from + 16 * i)); });
}
static inline void store_integers(void* p, I v) {
  LULLM_UNROLL for (int i = 0; i < 4; i++) vst1q_u8(static_cast<uint8_t*>(p) + 16 * i, vreinterpretq_u8_s32(v.part[i]));
}
LULLM_LANEWISE(I, add, vaddq_s32)
LULLM_LANEWISE(I, both, vandq_s32)
LULLM_LANEWISE(I, either, vorrq_s32)
LULLM_LANEWISE(I, multiply_32, vmulq_s32)
LULLM_LANEWISE(I, greater, vmaxq_s32)
static inline int32x4_t subtract_8_part(int32x4_t a, int32x4_t b) { return vreinterpretq_s32_s8(vsubq_s8(as_8(a), as_8(b))); }
static inline int32x4_t multiply_16_part(int32x4_t a, int32x4_t b) { return vreinterpretq_s32_s16(vmulq_s16(as_16(a), as_16(b))); }
static inline int32x4_t add_16_part(int32x4_t a, int32x4_t b) { return vreinterpretq_s32_s16(vaddq_s16(as_16(a), as_16(b))); }
LULLM_LANEWISE(I, add_16, add_16_part)
LULLM_LANEWISE(I, subtract_8, subtract_8_part)
LULLM_LANEWISE(I, multiply_16, multiply_16_part)

template <int kBits>
static inline I shift_left_32(I a) { return parts([&](int i) { return vshlq_n_s32(a.part[i], kBits); }); }
template <int kBits>
static inline I shift_left_16(I a) { return parts([&](int i) { return vreinterpretq_s32_s16(vshlq_n_s16(as_16(a.part[i]), kBits)); }); }
template <int kBits>
static inline I shift_right_16(I a) {
  return parts([&](int i) { return vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_s32(a.part[i]), kBits)); });
}
template <int kBits>
static inline I shift_signed_16(I a) { return parts([&](int i) { return vreinterpretq_s32_s16(vshrq_n_s16(as_16(a.part[i]), kBits)); }); }
template <int kBits>
static inline I shift_signed_32(I a) { return parts([&](int i) { return vshrq_n_s32(a.part[i], kBits); }); }

static inline I magnitude_32(I a) { return parts([&](int i) { return vabsq_s32(a.part[i]); }); }
static inline I signs_32(I a) { return shift_signed_32<31>(a); }
static inline int32x4_t negate_8_part(int32x4_t a, int32x4_t sign) {
  return vreinterpretq_s32_s8(vsubq_s8(veorq_s8(as_8(a), as_8(sign)), as_8(sign)));
}
LULLM_LANEWISE(I, negate_8, negate_8_part)

static inline int32x4_t dot_part(int32x4_t a, int32x4_t b) {
  const int32x4_t low = vmull_s16(vget_low_s16(as_16(a)), vget_low_s16(as_16(b)));
  return vpaddq_s32(low, vmull_high_s16(as_16(a), as_16(b)));
}
static inline I add_dot(I sum, I a, I b) {
  return parts([&](int i) { return vaddq_s32(sum.part[i], dot_part(a.part[i], b.part[i])); });
}
static inline V to_floats(I a) { return parts([&](int i) { return vcvtq_f32_s32(a.part[i]); }); }
static inline I to_integers(V a) { return parts([&](int i) { return vcvtnq_s32_f32(a.part[i]); }); }
static inline I load_signed_bytes(const int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  return {{vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)}};
}
static inline int16x8_t narrow(int32x4_t low, int32x4_t high) { return vqmovn_high_s32(vqmovn_s32(low), high); }
static inline void store_bytes(void* p, I v) {
  const int16x8_t low = narrow(v.part[0], v.part[1]), high = narrow(v.part[2], v.part[3]);
  vst1q_s8(static_cast<int8_t*>(p), vqmovn_high_s16(vqmovn_s16(low), high));
}
static inline void store_crossed(void* p, I v) {
  const uint8_t places[16] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
  const uint8x16_t order = vld1q_u8(places);
  uint8_t* to = static_cast<uint8_t*>(p);
  vst1q_u8(to, vqtbl1q_u8(vreinterpretq_u8_s16(narrow(v.part[0], v.part[1])), order));
  vst1q_u8(to + 16, vqtbl1q_u8(vreinterpretq_u8_s16(narrow(v.part[2], v.part[3])), order));
}
static inline int32_t greatest(I a) {
  return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.part[0], a.part[1]), vmaxq_s32(a.part[2], a.part[3])));
}
static inline int32_t total(I a) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(a.part[0], a.part[1]), vaddq_s32(a.part[2], a.part[3])));
}
static inline I note_nan(I most, I bytes) {
  return parts([&](int i) {
    const uint8x16_t own = vreinterpretq_u8_s32(bytes.part[i]);
    return vreinterpretq_s32_u8(vmaxq_u8(vreinterpretq_u8_s32(most.part[i]), vaddq_u8(own, own)));
  });
}
static inline bool holds_nan(I most) {
  uint8x16_t all = vreinterpretq_u8_s32(most.part[0]);
  LULLM_UNROLL for (int i = 1; i < 4; i++) all = vmaxq_u8(all, vreinterpretq_u8_s32(most.part[i]));
  return vmaxvq_u8(all) == 0xfe;
}
static inline void split_bytes(const void* from, void* to) {
  const uint8x16x4_t runs = vld4q_u8(static_cast<const uint8_t*>(from));
  LULLM_UNROLL for (int i = 0; i < 4; i++) vst1q_u8(static_cast<uint8_t*>(to) + 16 * i, runs.val[i]);
}
static inline I bits_of(V a) { return parts([&](int i) { return vreinterpretq_s32_f32(a.part[i]); }); }

}  // namespace LULLM_ISA
}  // namespace lullm
