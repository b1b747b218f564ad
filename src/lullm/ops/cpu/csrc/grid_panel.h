// What the kernels over grids share: the scales and minimums of groups as floats.
#pragma once

#include "quantized.h"
#include "integer_simd.h"

namespace lullm {
namespace LULLM_ISA {

static inline V load_halves(const uint8_t* p) {  // sixteen float16
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#else
  const __m128i* from = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(from)), _mm256_cvtph_ps(_mm_loadu_si128(from + 1))};
#endif
}

// The scales of a panel, block by block. Codes times a float16 are exact in float32.
template <int kGrid>
class GroupScales {
 public:
  GroupScales(const uint8_t* panel, int64_t blocks) : panel_(panel), spans_(panel + blocks * kOf.block_bytes()) {}

  void enter(int64_t block) {  // in their order
    codes_ = panel_ + block * kOf.block_bytes() + kOf.digit_bytes();
    if (kOf.has_codes && block % kSpanBlocks == 0) {
      const uint8_t* span = spans_ + block / kSpanBlocks * kOf.span_bytes();
      for (int tile = 0; tile < 2; tile++) {
        factors_[tile] = load_halves(span + tile * kTileRows * 2);
        if (kOf.has_mins) min_factors_[tile] = load_halves(span + (kPanelRows + tile * kTileRows) * 2);
      }
    }
  }

  V scale(int64_t group, int64_t tile) const {
    const int64_t at = group * kPanelRows + tile * kTileRows;
    if (!kOf.has_codes) return load_halves(codes_ + 2 * at);
    return mul(to_floats(load_signed_bytes(reinterpret_cast<const int8_t*>(codes_ + at))), factors_[tile]);
  }

  V minimum(int64_t group, int64_t tile) const {  // codes of six bits, zero points of four
    const uint8_t* at = codes_ + kOf.scale_bytes() + group * kPanelRows + tile * kTileRows;
    const V factor = kOf.has_codes ? min_factors_[tile] : scale(group, tile);
    return mul(to_floats(load_signed_bytes(reinterpret_cast<const int8_t*>(at))), factor);
  }

 private:
  static constexpr Grid kOf = kGrids[kGrid];
  const uint8_t* panel_;
  const uint8_t* spans_;
  const uint8_t* codes_ = nullptr;
  V factors_[2], min_factors_[2];
};

}  // namespace LULLM_ISA
}  // namespace lullm
