// Integers that a checkpoint holds, stored into panels of 8 or 4 bits, or of a grid without codes, as they are. Rows do not
// depend on each other.

#include <algorithm>
#include <cstring>

#include "operation.h"
#include "quantized.h"
#include "thread_pool.h"

using namespace lullm;

namespace {

struct Rows {
  const uint8_t* integers;  // [num_rows, in] signed bytes
  const int8_t* groups;     // [num_rows, ceil(in / 16)] or null: 1 everywhere
  const float* scales;      // [num_rows]
  int64_t in;
};

uint64_t load_8(const uint8_t* row, int64_t at, int64_t in) {
  uint64_t bytes = 0;
  if (at < in) std::memcpy(&bytes, row + at, std::min<int64_t>(8, in - at));
  return bytes;
}

// A block's inputs of one row, as bytes or as digits of 4 bits, which `flip` turns into what is stored.
void place_bytes(const uint8_t* row, int64_t in, int64_t block, uint8_t* to_block, int64_t lane) {
  uint8_t* to = to_block + lane / kTileRows * kTileBytes + lane % kTileRows * 4;
  for (int line = 0; line < 16; line += 2) {
    const uint64_t bytes = load_8(row, block * kBlockInputs + line * 4, in);
    const uint32_t low = static_cast<uint32_t>(bytes), high = static_cast<uint32_t>(bytes >> 32);
    std::memcpy(to + line * 64, &low, 4);
    std::memcpy(to + line * 64 + 64, &high, 4);
  }
}

void place_digits(const uint8_t* row, int64_t in, int64_t block, uint8_t* to_block, int64_t lane, uint64_t flip) {
  uint8_t* to = to_block + lane / kTileRows * kDigitTileBytes + lane % kTileRows * 4;
  for (int line = 0; line < 8; line++) {
    const uint64_t bytes = load_8(row, block * kBlockInputs + line * 8, in);
    const uint64_t digits = (bytes & 0x0f0f0f0f0f0f0f0full) ^ flip;
    const uint32_t pairs = static_cast<uint32_t>(digits) | static_cast<uint32_t>(digits >> 32) << 4;
    std::memcpy(to + line * 64, &pairs, 4);
  }
}

constexpr uint64_t kAddEight = 0x0808080808080808ull;  // to a digit with a sign, in the low half of its byte

// Block by block, since the rows of a panel take turns within it: a block stays in the cache until all have come.
void store_bytes(const Rows& rows, uint8_t* panel, int64_t first_lane, int64_t first, int64_t last) {
  for (int64_t block = 0; block < num_blocks(rows.in); block++)
    for (int64_t row = first; row < last; row++)
      place_bytes(rows.integers + row * rows.in, rows.in, block, panel + block * kByteBlockBytes, first_lane + row - first);
}

void store_digits(const Rows& rows, uint8_t* panel, int64_t first_lane, int64_t first, int64_t last) {
  const int64_t num_groups = (rows.in + kGroupInputs - 1) / kGroupInputs;
  for (int64_t block = 0; block < num_blocks(rows.in); block++) {
    uint8_t* to_block = panel + block * kDigitBlockBytes;
    for (int64_t row = first; row < last; row++) {
      const int64_t lane = first_lane + row - first;
      place_digits(rows.integers + row * rows.in, rows.in, block, to_block, lane, kAddEight);
      for (int64_t i = 0; i < kBlockGroups; i++) {
        const int64_t group = block * kBlockGroups + i;
        int8_t scale = rows.groups == nullptr ? 1 : 0;
        if (rows.groups != nullptr && group < num_groups) scale = rows.groups[row * num_groups + group];
        to_block[2 * kDigitTileBytes + i * kPanelRows + lane] = static_cast<uint8_t>(scale);
      }
    }
  }
}

struct GroupedRows {
  const uint8_t* integers;  // [num_rows, in]
  const uint16_t* scales;   // [num_rows, in / group] float16
  const uint8_t* mins;      // like `scales`, of bytes or float16; or null
  int64_t in;
};

void store_groups(const GroupedRows& rows, const Grid& grid, uint8_t* panel, int64_t first_lane, int64_t first, int64_t last) {
  const int64_t num_groups = rows.in / grid.group_inputs;
  for (int64_t block = 0; block < num_blocks(rows.in); block++) {
    uint8_t* to_block = panel + block * grid.block_bytes();
    for (int64_t row = first; row < last; row++) {
      const int64_t lane = first_lane + row - first;
      const uint8_t* from = rows.integers + row * rows.in;
      if (grid.digit_bits == 8) place_bytes(from, rows.in, block, to_block, lane);
      else place_digits(from, rows.in, block, to_block, lane, grid.is_biased ? kAddEight : 0);
      for (int64_t i = 0; i < grid.groups(); i++) {
        const int64_t group = block * grid.groups() + i, at = row * num_groups + group;
        const uint16_t scale = group < num_groups ? rows.scales[at] : 0;
        std::memcpy(to_block + grid.digit_bytes() + (i * kPanelRows + lane) * 2, &scale, 2);
        if (!grid.has_mins()) continue;
        uint8_t* min = to_block + grid.digit_bytes() + grid.scale_bytes() + (i * kPanelRows + lane) * grid.min_bytes;
        if (rows.mins != nullptr && group < num_groups) std::memcpy(min, rows.mins + at * grid.min_bytes, grid.min_bytes);
        else std::memset(min, 0, grid.min_bytes);
      }
    }
  }
}

// `store`(panel, first lane of it, first row, end) for each panel that the rows from `first_row` on reach.
template <class Store>
void for_panels(void* weight, int64_t panel_bytes, int64_t num_rows, int64_t first_row, const Store& store) {
  const int64_t first_panel = first_row / kPanelRows, panels = (first_row + num_rows - 1) / kPanelRows + 1 - first_panel;
  parallel_for(panels, [&](int64_t item) {
    const int64_t begin = (first_panel + item) * kPanelRows - first_row;
    const int64_t first = std::max<int64_t>(0, begin), last = std::min(num_rows, begin + kPanelRows);
    store(static_cast<uint8_t*>(weight) + (first_panel + item) * panel_bytes, first - begin, first, last);
  });
}

}  // namespace

// Rows [num_rows, in] of signed bytes into the rows from `first_row` on of a weight of `bits`.
LULLM_EXPORT void lullm_store_rows(const void* integers, const void* groups, const void* scales, void* weight,
                                   int64_t num_rows, int64_t in, int64_t first_row, int bits) {
  if (num_rows <= 0) return;
  const Rows rows{static_cast<const uint8_t*>(integers), static_cast<const int8_t*>(groups),
                  static_cast<const float*>(scales), in};
  const int64_t panel_bytes = quantized_panel_bytes(bits, in);
  for_panels(weight, panel_bytes, num_rows, first_row, [&](uint8_t* panel, int64_t lane, int64_t first, int64_t last) {
    if (bits == 8) store_bytes(rows, panel, lane, first, last);
    else store_digits(rows, panel, lane, first, last);
    std::memcpy(panel + panel_bytes - kPanelScaleBytes + lane * 4, rows.scales + first, (last - first) * 4);
  });
}

// The same into a grid without codes; `in` is a multiple of its groups.
LULLM_EXPORT void lullm_store_groups(const void* integers, const void* scales, const void* mins, void* weight,
                                     int64_t num_rows, int64_t in, int64_t first_row, int format) {
  if (num_rows <= 0) return;
  const GroupedRows rows{static_cast<const uint8_t*>(integers), static_cast<const uint16_t*>(scales),
                         static_cast<const uint8_t*>(mins), in};
  for_panels(weight, grid_panel_bytes(format, in), num_rows, first_row,
             [&](uint8_t* panel, int64_t lane, int64_t first, int64_t last) {
               store_groups(rows, grid_of(format), panel, lane, first, last);
             });
}
