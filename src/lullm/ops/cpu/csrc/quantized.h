// Quantized weights: how they lie in memory, and the kernels that read them.
//
// A weight [out, in] is a sequence of panels of 32 rows; `out` is padded to whole panels and `in` to whole blocks of 64
// inputs, with zeros. A panel is, for each block of 64 inputs, the integers of its 32 rows, and at its end 32 floats: the
// scale of each row. A weight is its integer times the scale of its row, whatever the format:
//
// - 8 bits: a block is two tiles of 16 rows. A tile is 16 cache lines; line i holds the inputs 4 i to 4 i + 3 of the 16
//   rows, a row's four bytes together. That is the second operand of AMX, and of a vector product with a broadcast x.
// - 4 bits: the integer is a digit of -8..7 times the scale of its group of 16 inputs, an integer of -15..15, so that
//   it fits 8 bits again and a panel expands to one of the other format, exactly. A block is two tiles of 8 cache lines,
//   then the group scales as [4][32] bytes. Line i of a tile holds the inputs 8 i to 8 i + 7 of 16 rows, 32 bits each;
//   byte j is digit j in its low half and digit j + 4 in its high half, for j below 4, each with 8 added.
//
// Activations become 16-bit integers, with a scale per row of x, before they are multiplied: at most max|x| / 65534 from
// what they were, which is nearer than bf16 would be for all but the smallest. Products are summed as integers,
// exactly, and the whole sum is rounded to a float once: so its order does not matter, and a row has the same bits in any
// batch and in any instruction set.
#pragma once

#include <cstddef>

#include "dtype.h"

namespace lullm {

constexpr int64_t kBlockInputs = 64;
constexpr int64_t kGroupInputs = 16;
constexpr int64_t kBlockGroups = kBlockInputs / kGroupInputs;
constexpr int64_t kByteBlockBytes = kPanelRows * kBlockInputs;
constexpr int64_t kDigitTileBytes = kTileRows * kBlockInputs / 2;
constexpr int64_t kDigitBlockBytes = 2 * kDigitTileBytes + kBlockGroups * kPanelRows;
constexpr int64_t kPanelScaleBytes = kPanelRows * 4;
constexpr int kLargestDigit = 8;          // of a digit's absolute value
constexpr int kLargestGroupScale = 15;


inline int64_t num_blocks(int64_t in) { return (in + kBlockInputs - 1) / kBlockInputs; }

}  // namespace lullm

#include "grid.h"

namespace lullm {

inline int64_t quantized_panel_bytes(int bits, int64_t in) {
  if (is_grid(bits)) return grid_panel_bytes(bits, in);
  return num_blocks(in) * (bits == 8 ? kByteBlockBytes : kDigitBlockBytes) + kPanelScaleBytes;
}

struct QuantizedArgs {
  const void* x;          // [num_rows, in]
  const uint8_t* weight;  // panels
  const void* bias;       // [out] or null
  void* y;                // [num_rows, out], or [num_rows, out / 2] with an activation
  int64_t x_stride, y_stride;
  int64_t num_rows, in, out;
  int bits;               // 8 or 4; or the number of a grid (`grid.h`), which has no scales of rows
  Activation activation;  // see `LinearArgs`
  bool y_is_float;        // whatever the dtype of the rest
  char* x_prepared;       // what `prepare_rows` wrote
  float alpha = 0, limit = 0;  // of kClampedSilu

  int64_t num_sides() const { return activation != kNoActivation ? 2 : 1; }
  int64_t out_of_side() const { return out / num_sides(); }
  int64_t panels_of_side() const { return (out_of_side() + kPanelRows - 1) / kPanelRows; }
};

constexpr int64_t kQuantizedRows = 256;   // in an item of `multiply_panels`, at most
constexpr int64_t kQuantizedPanels = 8;   // the same, where rows are more than kFewRows; half as many with an activation
constexpr int64_t kFewRows = 32;

struct QuantizedKernels {
  // Rows [first, last) of x, `first` a multiple of 16, into `x_prepared`. Sizes in bytes for all rows.
  int64_t (*prepared_bytes[2])(const QuantizedArgs&);
  void (*prepare_rows[2])(const QuantizedArgs&, int64_t first, int64_t last);
  int64_t (*cached_row_bytes[2])(const QuantizedArgs&);  // what an item wants to have of each of its rows in the cache
  int64_t (*scratch_bytes[2])(const QuantizedArgs&);
  void (*multiply_panels[2])(const QuantizedArgs&, int64_t first_row, int64_t last_row, int64_t first_panel,
                             int64_t last_panel, void* scratch);
  bool (*is_finite[2])(const void* values, int64_t count);
  // Rows [first, last) of a new weight [num_rows, in], which are the rows first + first_row, ... of the panels.
  void (*quantize_rows[2])(const void* rows, int64_t in, int bits, uint8_t* weight, int64_t first_row, int64_t first,
                           int64_t last);
};

}  // namespace lullm
