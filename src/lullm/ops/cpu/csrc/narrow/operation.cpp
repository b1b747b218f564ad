// The operations over narrow floats: storing those of a checkpoint, and multiplying; see `narrow.h`.

#include "narrow.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "../isa.h"
#include "../linear_item.h"
#include "../mapped.h"
#include "../operation.h"
#include "../thread_pool.h"

using namespace lullm;

namespace {

void* item_scratch(int dtype) {
  const int64_t bytes = kernels().linear_scratch_bytes[dtype];
  return bytes > 0 ? scratch(kItemScratch, bytes) : nullptr;
}

// The last panel, if it is no whole one: its results are brought to y, those beyond are left out.
void multiply_last(const LinearArgs& a, int dtype, int64_t first_row, int64_t last_row) {
  const int64_t panel = a.out / kPanelRows, outputs = a.out % kPanelRows, element = a.y_is_float ? 4 : size_of(dtype);
  char bias[kPanelRows * 4] = {};
  LinearArgs last = a;
  last.weight = static_cast<const char*>(a.weight) + panel * panel_bytes_of(a, dtype), last.out = kPanelRows;
  if (a.bias != nullptr) {
    const int64_t bytes = size_of(dtype);
    std::memcpy(bias, static_cast<const char*>(a.bias) + panel * kPanelRows * bytes, outputs * bytes);
    last.bias = bias;
  }
  last.y = scratch(kGatheredResults, last_row * kPanelRows * element), last.y_stride = kPanelRows;
  kernels().linear_panels[dtype](last, first_row, last_row, 0, 1, item_scratch(dtype));
  for (int64_t row = first_row; row < last_row; row++)
    std::memcpy(static_cast<char*>(a.y) + (row * a.y_stride + panel * kPanelRows) * element,
                static_cast<const char*>(last.y) + row * kPanelRows * element, outputs * element);
}

// Rows of a checkpoint, [num_rows, in] bytes or pairs of digits, and their scales by group.
struct NarrowRows {
  const uint8_t* codes;
  const void* scales;  // [num_rows, groups], floats or bytes
  int64_t in;
};

bool store_e4m3(const NarrowRows& rows, int format, uint8_t* panel, int64_t lane, int64_t row) {
  const int64_t blocks = rows.in / kNarrowInputs, groups = (blocks + blocks_of_scale(format) - 1) / blocks_of_scale(format);
  const uint8_t* from = rows.codes + row * rows.in;
  uint8_t* to = panel + lane / kTileRows * (kE4m3BlockBytes / 2) + lane % kTileRows * 2;
  bool is_number = true;
  for (int64_t block = 0; block < blocks; block++, from += kNarrowInputs, to += kE4m3BlockBytes) {
    for (int64_t i = 0; i < kNarrowInputs; i++) is_number &= (from[i] & 127) != 127;
    for (int64_t pair = 0; pair < kNarrowInputs / 2; pair++) std::memcpy(to + pair * 32, from + 2 * pair, 2);
  }
  float* scales = reinterpret_cast<float*>(panel + blocks * kE4m3BlockBytes) + lane;
  for (int64_t group = 0; group < groups; group++)
    scales[group * kPanelRows] = static_cast<const float*>(rows.scales)[row * groups + group];
  return is_number;
}

// Eight digits, of four pairs: those of the first inputs in the low half of the word, those of the second ones above.
uint32_t by_side(uint32_t digits) {
  const auto gather = [](uint32_t sides) {
    sides = (sides | sides >> 4) & 0x00ff00ff;
    return (sides | sides >> 8) & 0xffff;
  };
  return gather(digits & 0x0f0f0f0f) | gather(digits >> 4 & 0x0f0f0f0f) << 16;
}

bool store_mxfp4(const NarrowRows& rows, uint8_t* panel, int64_t lane, int64_t row) {
  const int64_t blocks = rows.in / kNarrowInputs;
  const uint8_t* from = rows.codes + row * rows.in / 2;
  const uint8_t* scales = static_cast<const uint8_t*>(rows.scales) + row * blocks;
  for (int64_t block = 0; block < blocks; block++, from += kNarrowInputs / 2, panel += kMxfp4BlockBytes) {
    for (int j = 0; j < 4; j++) {
      uint32_t digits;
      std::memcpy(&digits, from + 4 * j, 4);
      digits = by_side(digits);
      std::memcpy(panel + lane / kTileRows * (kMxfp4DigitBytes / 2) + j * 64 + lane % kTileRows * 4, &digits, 4);
    }
    panel[kMxfp4DigitBytes + lane] = scales[block];
  }
  return true;
}

}  // namespace

namespace lullm {

void multiply_panels(const LinearArgs& a, int dtype, int64_t first_row, int64_t last_row, int64_t first_panel,
                     int64_t last_panel) {
  if (multiply_mapped(a, dtype, first_row, last_row, first_panel, last_panel)) return;
  const int64_t whole = is_narrow(a.format) ? std::min(last_panel, a.out_of_side() / kPanelRows) : last_panel;
  if (first_panel < whole) kernels().linear_panels[dtype](a, first_row, last_row, first_panel, whole, item_scratch(dtype));
  if (whole < last_panel) multiply_last(a, dtype, first_row, last_row);
}

}  // namespace lullm

// Rows into those from `first_row` on of a weight of narrow floats. 0 if a number is NaN.
LULLM_EXPORT int lullm_store_narrow(const void* codes, const void* scales, void* weight, int64_t num_rows, int64_t in,
                                    int64_t first_row, int format) {
  if (num_rows <= 0) return 1;
  const NarrowRows rows{static_cast<const uint8_t*>(codes), scales, in};
  const int64_t first_panel = first_row / kPanelRows, panels = (first_row + num_rows - 1) / kPanelRows + 1 - first_panel;
  std::atomic<bool> are_numbers{true};
  parallel_for(panels, [&](int64_t item) {
    const int64_t begin = (first_panel + item) * kPanelRows - first_row;
    uint8_t* panel = static_cast<uint8_t*>(weight) + (first_panel + item) * narrow_panel_bytes(format, in);
    for (int64_t row = std::max<int64_t>(0, begin); row < std::min(num_rows, begin + kPanelRows); row++) {
      const bool is_number = is_mxfp4(format) ? store_mxfp4(rows, panel, row - begin, row) : store_e4m3(rows, format, panel, row - begin, row);
      if (!is_number) are_numbers = false;
    }
  });
  return are_numbers;
}
