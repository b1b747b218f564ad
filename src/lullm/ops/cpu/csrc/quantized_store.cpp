// Integers that a checkpoint holds, stored into panels of 8 or 4 bits as they are. Rows do not depend on each other.

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

// Block by block, since the rows of a panel take turns within it: a block stays in the cache until all have come.
void store_bytes(const Rows& rows, uint8_t* panel, int64_t first_lane, int64_t first, int64_t last) {
  for (int64_t block = 0; block < num_blocks(rows.in); block++) {
    for (int64_t row = first; row < last; row++) {
      const int64_t lane = first_lane + row - first;
      uint8_t* to = panel + block * kByteBlockBytes + lane / kTileRows * kTileBytes + lane % kTileRows * 4;
      const uint8_t* from = rows.integers + row * rows.in;
      for (int line = 0; line < 16; line += 2) {
        const uint64_t bytes = load_8(from, block * kBlockInputs + line * 4, rows.in);
        const uint32_t low = static_cast<uint32_t>(bytes), high = static_cast<uint32_t>(bytes >> 32);
        std::memcpy(to + line * 64, &low, 4);
        std::memcpy(to + line * 64 + 64, &high, 4);
      }
    }
  }
}

void store_digits(const Rows& rows, uint8_t* panel, int64_t first_lane, int64_t first, int64_t last) {
  const int64_t num_groups = (rows.in + kGroupInputs - 1) / kGroupInputs;
  for (int64_t block = 0; block < num_blocks(rows.in); block++) {
    uint8_t* to_block = panel + block * kDigitBlockBytes;
    for (int64_t row = first; row < last; row++) {
      const int64_t lane = first_lane + row - first;
      uint8_t* to = to_block + lane / kTileRows * kDigitTileBytes + lane % kTileRows * 4;
      const uint8_t* from = rows.integers + row * rows.in;
      for (int line = 0; line < 8; line++) {
        const uint64_t bytes = load_8(from, block * kBlockInputs + line * 8, rows.in);
        const uint64_t biased = (bytes & 0x0f0f0f0f0f0f0f0full) ^ 0x0808080808080808ull;  // digit + 8
        const uint32_t pairs = static_cast<uint32_t>(biased) | static_cast<uint32_t>(biased >> 32) << 4;
        std::memcpy(to + line * 64, &pairs, 4);
      }
      for (int64_t i = 0; i < kBlockGroups; i++) {
        const int64_t group = block * kBlockGroups + i;
        int8_t scale = rows.groups == nullptr ? 1 : 0;
        if (rows.groups != nullptr && group < num_groups) scale = rows.groups[row * num_groups + group];
        to_block[2 * kDigitTileBytes + i * kPanelRows + lane] = static_cast<uint8_t>(scale);
      }
    }
  }
}

}  // namespace

// Rows [num_rows, in] of signed bytes into the rows from `first_row` on of a weight of `bits`.
LULLM_EXPORT void lullm_store_rows(const void* integers, const void* groups, const void* scales, void* weight,
                                   int64_t num_rows, int64_t in, int64_t first_row, int bits) {
  if (num_rows <= 0) return;
  const Rows rows{static_cast<const uint8_t*>(integers), static_cast<const int8_t*>(groups),
                  static_cast<const float*>(scales), in};
  const int64_t first_panel = first_row / kPanelRows, panels = (first_row + num_rows - 1) / kPanelRows + 1 - first_panel;
  parallel_for(panels, [&](int64_t item) {
    const int64_t begin = (first_panel + item) * kPanelRows - first_row;
    const int64_t first = std::max<int64_t>(0, begin), last = std::min(num_rows, begin + kPanelRows);
    const int64_t panel_bytes = quantized_panel_bytes(bits, in);
    uint8_t* panel = static_cast<uint8_t*>(weight) + (first_panel + item) * panel_bytes;
    const int64_t lane = first - begin;
    if (bits == 8) store_bytes(rows, panel, lane, first, last);
    else store_digits(rows, panel, lane, first, last);
    std::memcpy(panel + panel_bytes - kPanelScaleBytes + lane * 4, rows.scales + first, (last - first) * 4);
  });
}
