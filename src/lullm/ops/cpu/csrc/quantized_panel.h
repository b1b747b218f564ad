// What the kernels over quantized panels share: the scale of a row of activations, expansion of 4 bits to 8, results.
#pragma once

#include "activation.h"
#include "kernel_table.h"
#include "simd.h"

namespace lullm {
namespace LULLM_ISA {

constexpr int32_t kInfinityBits = 0x7f800000;

// The largest absolute value of `count` elements, as the bits of a float; not below kInfinityBits if one is not finite.
template <class T>
static inline int32_t largest_bits(const T* x, int64_t count) {
  const I magnitude = set_integers(0x7fffffff);
  I largest = zero_integers();
  for (int64_t i = 0; i < count; i += kLanes)
    largest = greater(largest, both(bits_of(load_up_to(x + i, count - i)), magnitude));
  return greatest(largest);
}

static inline float float_of(int32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

#if defined(__AVX512F__)
static inline int32_t largest_bits(const Bf16* x, int64_t count) {
  __m512i largest = _mm512_setzero_si512();
  int64_t i = 0;
  for (; i + 32 <= count; i += 32)
    largest = _mm512_max_epu16(largest, _mm512_and_si512(_mm512_loadu_si512(x + i), _mm512_set1_epi16(0x7fff)));
  const __m512i wide = _mm512_max_epi32(_mm512_slli_epi32(largest, 16), _mm512_and_si512(largest, _mm512_set1_epi32(0x7fff0000)));
  const int32_t rest = i < count ? largest_bits<Bf16>(x + i, count - i) : 0;
  const int32_t found = _mm512_reduce_max_epi32(wide);
  return found > rest ? found : rest;
}
#endif

constexpr float kSmallest = 1e-30f;  // a row of less is zeros: the inverse of its scale might not be finite

// A row of activations as 16-bit integers: x / value, rounded. What is not finite makes the whole row NaN.
struct RowScale {
  V inverse;
  float value;
};

template <class T>
static inline RowScale scale_row(const T* x, int64_t count) {
  const int32_t bits = largest_bits(x, count);
  if (bits >= kInfinityBits) return {zero(), float_of(0x7fc00000)};
  const float largest = float_of(bits);
  if (largest < kSmallest) return {zero(), 0.0f};
  return {set1(32767.0f / largest), largest / 32767.0f};
}

// The exact sum of 32-bit sums, at most 65536 of them: their upper and lower 16 bits by themselves, each of which a float
// holds. It is rounded once.
struct Total {
  I high, low;
};
static inline void start(Total& total) { total.high = total.low = zero_integers(); }
static inline void add_sum(Total& total, I sum) {
  total.high = add(total.high, shift_signed_32<16>(sum));
  total.low = add(total.low, both(sum, set_integers(0xffff)));
}
static inline V value_of(const Total& total) {
  return fma(to_floats(total.high), set1(65536.0f), to_floats(total.low));
}

static inline const uint8_t* panel_of_side(const QuantizedArgs& a, int64_t side, int64_t panel) {
  return a.weight + (side * a.panels_of_side() + panel) * quantized_panel_bytes(a.bits, a.in);
}

// A block of 4 bits as one of 8.
static inline void expand_block(const uint8_t* from, uint8_t* to) {
  const I digit = set_integers(0x0f0f0f0f);
  const int8_t* group_scales = reinterpret_cast<const int8_t*>(from + 2 * kDigitTileBytes);
  for (int group = 0; group < kBlockGroups; group++) {
    LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
      const I scale = load_signed_bytes(group_scales + group * kPanelRows + tile * kTileRows);
      const I size = magnitude_32(scale);
      const I sizes = either(size, shift_left_32<16>(size));  // in both halves of a lane
      const I eightfold = shift_left_16<3>(sizes), offset = either(eightfold, shift_left_16<8>(eightfold));
      const auto signs = signs_32(scale);
      LULLM_UNROLL for (int half = 0; half < 2; half++) {
        const int line = 2 * group + half;
        const I digits = load_integers(from + tile * kDigitTileBytes + line * 64);
        const I halves[2] = {both(digits, digit), both(shift_right_16<4>(digits), digit)};
        // A digit, with its 8, times the scale's size is at most 225: the two bytes of 16 bits do not meet.
        LULLM_UNROLL for (int i = 0; i < 2; i++)
          store_integers(to + tile * kTileBytes + (2 * line + i) * 64,
                         negate_8(subtract_8(multiply_16(halves[i], sizes), offset), signs));
      }
    }
  }
}

static inline void expand_blocks(const char* from, int64_t blocks, char* to) {
  for (int64_t block = 0; block < blocks; block++, from += kDigitBlockBytes, to += kByteBlockBytes)
    expand_block(reinterpret_cast<const uint8_t*>(from), reinterpret_cast<uint8_t*>(to));
}

template <class T>
static inline void add_bias(const QuantizedArgs& a, int64_t side, int64_t panel, V (&results)[2]) {
  const int64_t out = panel * kPanelRows, left = a.out_of_side() - out;
  for (int tile = 0; tile < 2; tile++) {
    const int64_t tile_left = left - tile * kTileRows;
    const T* bias = static_cast<const T*>(a.bias) + side * a.out_of_side() + out + tile * kTileRows;
    results[tile] = add(results[tile], a.bias == nullptr || tile_left <= 0 ? zero() : load_up_to(bias, tile_left));
  }
}

// Sums of a panel's 32 integers times a row's, to results: times both scales, plus the bias.
template <class T>
static inline void scale_outputs(const QuantizedArgs& a, const uint8_t* scales, int64_t side, int64_t panel, V row_scale,
                                 V (&sums)[2]) {
  for (int tile = 0; tile < 2; tile++) {
    const float* weight_scale = reinterpret_cast<const float*>(scales) + tile * kTileRows;
    sums[tile] = mul(sums[tile], mul(load(weight_scale), row_scale));
  }
  add_bias<T>(a, side, panel, sums);
}

// 32 results of one row, gates and ups combined if that is asked for.
template <class T>
static inline void store_outputs(const QuantizedArgs& a, int64_t row, int64_t panel, const V (&results)[2],
                                 const V (&ups)[2]) {
  const int64_t out = panel * kPanelRows, left = a.out_of_side() - out;
  const bool streams = may_stream(a.y, a.y_stride * (a.y_is_float ? 4 : static_cast<int64_t>(sizeof(T))), a.num_rows);
  for (int tile = 0; tile < 2 && tile * kTileRows < left; tile++) {
    const V result = a.num_sides() == 2 ? gate(a, results[tile], ups[tile]) : results[tile];
    const int64_t at = row * a.y_stride + out + tile * kTileRows;
    const auto to = [&](auto* y) {
      if (left >= kPanelRows) put(y, result, streams);
      else store_up_to(y, result, left - tile * kTileRows);
    };
    if (a.y_is_float) to(static_cast<float*>(a.y) + at);
    else to(static_cast<T*>(a.y) + at);
  }
}

}  // namespace LULLM_ISA
}  // namespace lullm
