// Narrow floats: weights of 8 or 4 bits that are floating point numbers, with scales of groups of inputs.
//
// A panel is 32 rows in blocks of 32 inputs; a block is two tiles of 16 rows. A tile holds pairs of neighbouring inputs as
// a tile of packed bf16 does (`dtype.h`): the pair u of row r is the element 16 u + r.
//
// - e4m3: a byte a number, pair after pair; at the end of the panel floats [groups][32], the scales of the rows.
// - MXFP4 (e2m1): four pairs u = 4 j + k lie in one line of 64 bytes. The number s of the pairs of row r is the 16-bit word
//   2 r + s of the line j, pair k in its bits 4 k and up. Behind both tiles stand 32 bytes, the scales of the rows: a
//   power of two each, its exponent with 127 added. It lies within 2 and 240, so that every product is a normal bf16.
//
// A panel is expanded to one of packed numbers, each rounded once, as a checkpoint that is decoded while it is loaded would
// have them. The linear layers of packed weights then multiply it: so bits are theirs.
#pragma once

#include "../dtype.h"

namespace lullm {

constexpr int64_t kNarrowInputs = 32;  // of a block
constexpr int kE4m3 = 32;              // the low byte of a format; above it the blocks that share a scale
constexpr int kMxfp4 = 33;
constexpr int64_t kE4m3BlockBytes = kPanelRows * kNarrowInputs;
constexpr int64_t kMxfp4DigitBytes = kPanelRows * kNarrowInputs / 2;
constexpr int64_t kMxfp4BlockBytes = kMxfp4DigitBytes + kPanelRows;

inline bool is_mxfp4(int format) { return (format & 255) == kMxfp4; }
inline bool is_narrow(int format) { return (format & 255) == kE4m3 || is_mxfp4(format); }
inline int64_t blocks_of_scale(int format) { return format >> 8; }
inline int64_t narrow_panel_bytes(int format, int64_t in) {
  const int64_t blocks = in / kNarrowInputs;
  if (is_mxfp4(format)) return blocks * kMxfp4BlockBytes;
  return blocks * kE4m3BlockBytes + (blocks + blocks_of_scale(format) - 1) / blocks_of_scale(format) * kPanelRows * 4;
}

}  // namespace lullm
