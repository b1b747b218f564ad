// What the kernels over grids share: fetching panels, lines of digits, the scales, codes and minimums of groups.
#pragma once

#include "processor.h"
#include "quantized.h"
#include "simd.h"

namespace lullm {
namespace LULLM_ISA {

// Fetches a panel, line after line, into the second-level cache, and from there into the first: a step per line read.
class Ahead {
 public:
  explicit Ahead(const uint8_t* panel) : at(reinterpret_cast<const char*>(panel)) {}
  void step() {
    fetch_far(at + 8192), fetch_near(at + 2048);
    at += 64;
  }
  void step_over(int64_t bytes) {
    for (; bytes > 0; bytes -= 64) step();
  }

 private:
  const char* at;
};

// The pairs of a line of 4 bits, in order; of one of 8 bits.
struct FourPairs {
  I parts[4];
};
static inline FourPairs pairs_of_digits(const uint8_t* line) {
  const I mask = set_integers(0x000f000f), eight = load_integers(line);
  return {both(eight, mask), both(shift_right_16<8>(eight), mask), both(shift_right_16<4>(eight), mask),
          shift_right_16<12>(eight)};
}
struct TwoPairs {
  I parts[2];
};
static inline TwoPairs pairs_of_bytes(const uint8_t* line) {
  const I bytes = load_integers(line);
  return {shift_signed_16<8>(shift_left_16<8>(bytes)), shift_signed_16<8>(bytes)};
}
template <int kGrid>
static inline auto pairs_of_line(const uint8_t* digits, int64_t tile, int64_t line) {
  if constexpr (kGrids[kGrid].digit_bits == 4) return pairs_of_digits(digits + tile * kDigitTileBytes + line * 64);
  else return pairs_of_bytes(digits + tile * kTileBytes + line * 64);
}
template <int kGrid>
constexpr int kPairsOfLine = kGrids[kGrid].digit_bits == 4 ? 4 : 2;

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
