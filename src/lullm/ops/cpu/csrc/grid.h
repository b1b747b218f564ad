// Grids: quantized weights whose scales belong to groups of 16 or 32 inputs, as GGUF, AWQ and GPTQ files hold them.
//
// A weight is digit * scale - minimum, of its group. A panel is 32 rows in blocks of 64 inputs, as in `quantized.h`: the
// digits of a block lie as those of 8 or 4 bits do there. Behind them stand the scales of the block's groups, either
// float16 [groups][32], or, of grids with codes, one byte each [groups][32]; then bytes of minimums, the same. Codes are
// integers: times a float16 of the row's span of 256 inputs they are scales and minimums. These stand at the end of the
// panel: [spans][32], or [spans][2][32] with those of the minimums. Without codes a minimum is a float16, or one byte, a
// zero point: times the group's scale it is the minimum.
//
// The products of a group's digits and a row's 16-bit integers are summed exactly. Without codes, groups are then added in
// order, in float32, each with one rounding for the scale and one for the minimum. With codes, the sums of a span are
// integers as well, since a digit times its code is one: they are exact, and spans are added in order, each with a
// rounding of its sum, one for its float16, and the same for its minimums. So a row has the same bits in any batch and in
// any instruction set. A digit times its code is at most 4096, so that the sums of a group fit 32 bits. `quantized.h` includes this file once its sizes are known.
#pragma once


namespace lullm {

struct Grid {
  int digit_bits;       // 8: signed; 4: from 0, or with 8 added (`is_biased`)
  int64_t group_inputs;
  bool has_codes;
  int min_bytes;  // of a group: 0: nothing is subtracted; 1: a code or a zero point; 2: a float16
  bool is_biased;

  constexpr bool has_mins() const { return min_bytes > 0; }
  constexpr int64_t groups() const { return kBlockInputs / group_inputs; }  // of a block
  constexpr int64_t digit_bytes() const { return kPanelRows * kBlockInputs * digit_bits / 8; }
  constexpr int64_t scale_bytes() const { return groups() * kPanelRows * (has_codes ? 1 : 2); }
  constexpr int64_t block_bytes() const { return digit_bytes() + scale_bytes() + groups() * kPanelRows * min_bytes; }
  constexpr int64_t span_bytes() const { return has_codes ? (has_mins() ? 2 : 1) * kPanelRows * 2 : 0; }
};

constexpr int64_t kSpanBlocks = 4;
constexpr int kFirstGrid = 16;
constexpr Grid kGrids[] = {
    {4, 32, false, 0, true},  // Q4_0
    {8, 32, false, 0, false}, // Q8_0
    {4, 32, true, 1, false},  // Q4_K
    {8, 32, true, 1, false},  // Q5_K
    {8, 16, true, 0, false},  // Q6_K
    {8, 16, true, 1, false},  // any K
    {4, 32, false, 1, false}, // zero points, of AWQ and GPTQ
    {4, 32, false, 2, false}, // Q4_1
    {8, 32, false, 2, false}, // any of 32
};
constexpr int kNumGrids = sizeof(kGrids) / sizeof(Grid);

inline bool is_grid(int format) { return format >= kFirstGrid && format < kFirstGrid + kNumGrids; }
inline const Grid& grid_of(int format) { return kGrids[format - kFirstGrid]; }
inline int64_t grid_panel_bytes(int format, int64_t in) {
  const Grid& grid = grid_of(format);
  const int64_t blocks = num_blocks(in);
  return blocks * grid.block_bytes() + (blocks + kSpanBlocks - 1) / kSpanBlocks * grid.span_bytes();
}

}  // namespace lullm
