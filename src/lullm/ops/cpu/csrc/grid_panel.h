// What the kernels over grids share: the scales, codes and minimums of groups.
#pragma once

#include "quantized.h"
#include "simd.h"

namespace lullm {
namespace LULLM_ISA {

// The scales of a grid without codes, of one block.
template <int kGrid>
struct GroupScales {
  static constexpr Grid kOf = kGrids[kGrid];
  const uint8_t* at;

  GroupScales(const uint8_t* panel, int64_t block) : at(panel + block * kOf.block_bytes() + kOf.digit_bytes()) {}

  V scale(int64_t group, int64_t tile) const { return load_halves(at + 2 * (group * kPanelRows + tile * kTileRows)); }
  V minimum(int64_t group, int64_t tile) const {
    const uint8_t* minimums = at + kOf.scale_bytes() + kOf.min_bytes * (group * kPanelRows + tile * kTileRows);
    if constexpr (kOf.min_bytes == 2) return load_halves(minimums);
    return mul(to_floats(load_signed_bytes(reinterpret_cast<const int8_t*>(minimums))), scale(group, tile));
  }
};

// The codes of a grid, by block, and the factors of its spans.
template <int kGrid>
struct GroupCodes {
  static constexpr Grid kOf = kGrids[kGrid];
  const uint8_t* panel;
  int64_t blocks;

  const int8_t* at(int64_t block, int64_t group, int64_t tile) const {
    const uint8_t* codes = panel + block * kOf.block_bytes() + kOf.digit_bytes();
    return reinterpret_cast<const int8_t*>(codes) + group * kPanelRows + tile * kTileRows;
  }
  const int8_t* minimums_at(int64_t block, int64_t group, int64_t tile) const {  // of six bits
    return at(block, group, tile) + kOf.scale_bytes();
  }
  V factor(int64_t span, int64_t tile) const { return load_halves(span_at(span) + tile * kTileRows * 2); }
  V min_factor(int64_t span, int64_t tile) const {
    return load_halves(span_at(span) + (kPanelRows + tile * kTileRows) * 2);
  }
  const uint8_t* span_at(int64_t span) const { return panel + blocks * kOf.block_bytes() + span * kOf.span_bytes(); }
};

}  // namespace LULLM_ISA
}  // namespace lullm
