// The operations over quantized weights, behind the C interface: quantizing, linear layers, embedding.

#include <algorithm>
#include <atomic>
#include <cstring>

#include "isa.h"
#include "kernel_table.h"
#include "linear_item.h"
#include "operation.h"
#include "thread_pool.h"

using namespace lullm;

namespace {

constexpr int64_t kItemBytes = 64 * 1024;
constexpr int64_t kItemsPerThread = 6;
constexpr int64_t kRunBytes = 8 * kItemBytes;  // of a weight, on one thread: starting anew costs a microsecond
constexpr int64_t kRowBlockBytes = 640 * 1024;
constexpr int64_t kPreparedRows = 16;

void linear(QuantizedArgs a, int dtype) {
  if (is_narrow(a.bits)) {
    LinearArgs narrow = {a.x, a.weight, a.bias, a.y, a.x_stride, a.y_stride, a.num_rows, a.in, a.out, nullptr, a.activation, a.y_is_float};
    narrow.format = a.bits;
    return lullm::linear(narrow, dtype);
  }
  const QuantizedKernels& k = kernels().quantized;
  a.x_prepared = static_cast<char*>(scratch(kSharedScratch, k.prepared_bytes[dtype](a)));
  const int64_t groups = (a.num_rows + kPreparedRows - 1) / kPreparedRows;
  auto prepare = [&](int64_t item) {
    k.prepare_rows[dtype](a, item * kPreparedRows, std::min(a.num_rows, (item + 1) * kPreparedRows));
  };
  if (groups == 1) prepare(0);
  else parallel_for(groups, prepare);
  // Rows whose activations fit into half a megabyte, in equal blocks of whole tiles.
  const int64_t most = std::clamp(kRowBlockBytes / k.cached_row_bytes[dtype](a) / 32 * 32, int64_t{64}, kQuantizedRows);
  const int64_t row_blocks = (a.num_rows + most - 1) / most;
  const int64_t rows = ((a.num_rows + row_blocks - 1) / row_blocks + 31) / 32 * 32;
  const int64_t panels = a.panels_of_side(), panel_bytes = quantized_panel_bytes(a.bits, a.in) * a.num_sides();
  const int64_t items = kItemsPerThread * get_num_threads();
  const int64_t item_panels = std::max({int64_t{1}, kItemBytes / panel_bytes,
                                        a.num_rows > kFewRows
                                            ? std::min(kQuantizedPanels / a.num_sides(), panels * row_blocks / items)
                                            : 1});
  const int64_t columns = (panels + item_panels - 1) / item_panels;
  const int64_t scratch_bytes = k.scratch_bytes[dtype](a);
  const int64_t most_items = a.num_rows > kFewRows ? 1 : std::max<int64_t>(1, kRunBytes / (item_panels * panel_bytes));
  parallel_for_runs((a.num_rows + rows - 1) / rows * columns, most_items, [&](int64_t first, int64_t last) {
    const int64_t row = first / columns * rows, panel = first % columns * item_panels;
    k.multiply_panels[dtype](a, row, std::min(a.num_rows, row + rows), panel, std::min(panels, panel + (last - first) * item_panels),
                             scratch_bytes > 0 ? scratch(kItemScratch, scratch_bytes) : nullptr);
  });
}

void store(float value, float* to) { *to = value; }
void store(float value, Bf16* to) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (value != value) bits |= 0x400000;
  else bits += 0x7fff + (bits >> 16 & 1);
  to->bits = static_cast<uint16_t>(bits >> 16);
}

template <class T>
void gather_row(const uint8_t* weight, int64_t row, int64_t in, T* y) {
  const uint8_t* panel = weight + row / kPanelRows * quantized_panel_bytes(8, in);
  float scale;
  std::memcpy(&scale, panel + quantized_panel_bytes(8, in) - kPanelScaleBytes + row % kPanelRows * 4, 4);
  const uint8_t* lane = panel + row % kPanelRows / kTileRows * kTileBytes + row % kTileRows * 4;
  for (int64_t i = 0; i < in; i++) {
    const int8_t integer = static_cast<int8_t>(lane[i / kBlockInputs * kByteBlockBytes + i % kBlockInputs / 4 * 64 + i % 4]);
    store(static_cast<float>(integer) * scale, y + i);
  }
}

float float_of_half(uint16_t half) {
  const uint32_t magnitude = half & 0x7fff, exponent_bias = magnitude < 0x7c00 ? 112 : 224;
  const uint32_t bits = (magnitude << 13) + (exponent_bias << 23);
  float value;
  std::memcpy(&value, &bits, 4);
  if (magnitude < 0x400) value = static_cast<float>(magnitude) * 0x1p-24f;  // denormal
  return half & 0x8000 ? -value : value;
}

float half_at(const uint8_t* halves, int64_t index) {
  uint16_t half;
  std::memcpy(&half, halves + 2 * index, 2);
  return float_of_half(half);
}

template <class T>
void gather_grid_row(const uint8_t* weight, int64_t row, int64_t in, int format, T* y) {
  const Grid& grid = grid_of(format);
  const int64_t lane = row % kPanelRows, place = lane % kTileRows * 4;
  const uint8_t* panel = weight + row / kPanelRows * grid_panel_bytes(format, in);
  const uint8_t* spans = panel + num_blocks(in) * grid.block_bytes();
  for (int64_t first = 0; first < in; first += grid.group_inputs) {
    const int64_t group = first % kBlockInputs / grid.group_inputs;
    const uint8_t* block = panel + first / kBlockInputs * grid.block_bytes();
    const uint8_t* codes = block + grid.digit_bytes() + group * kPanelRows * (grid.has_codes ? 1 : 2);
    const uint8_t* span = spans + first / (kBlockInputs * kSpanBlocks) * grid.span_bytes();
    float scale = grid.has_codes ? 0 : half_at(codes, lane), minimum = 0;
    if (grid.has_codes) scale = static_cast<float>(static_cast<int8_t>(codes[lane])) * half_at(span, lane);
    if (grid.has_mins()) {
      const uint8_t* mins = block + grid.digit_bytes() + grid.scale_bytes() + group * kPanelRows * grid.min_bytes;
      if (grid.min_bytes == 2) minimum = half_at(mins, lane);
      else minimum = static_cast<float>(mins[lane]) * (grid.has_codes ? half_at(span, kPanelRows + lane) : scale);
    }
    const uint8_t* tile = block + lane / kTileRows * (grid.digit_bytes() / 2) + place;
    for (int64_t i = first; i < std::min(in, first + grid.group_inputs); i++) {
      const int64_t at = i % kBlockInputs;
      int digit;
      if (grid.digit_bits == 8) digit = static_cast<int8_t>(tile[at / 4 * 64 + at % 4]);
      else digit = (tile[at / 8 * 64 + at % 4] >> (at % 8 / 4 * 4) & 15) - (grid.is_biased ? kLargestDigit : 0);
      store(static_cast<float>(digit) * scale - minimum, y + i);
    }
  }
}

template <class T>
void gather(const uint8_t* weight, int64_t row, int64_t in, int format, T* y) {
  if (is_grid(format)) gather_grid_row(weight, row, in, format, y);
  else gather_row(weight, row, in, y);
}

}  // namespace

// Rows [num_rows, in] of `dtype`, contiguous, into the rows from `first_row` on of a weight of `bits`. 0, and nothing
// done, if a value is not finite.
LULLM_EXPORT int lullm_quantize_rows(const void* rows, void* weight, int64_t num_rows, int64_t in, int64_t first_row,
                                     int bits, int dtype) {
  if (num_rows <= 0) return 1;
  const QuantizedKernels& k = kernels().quantized;
  // Items are whole panels, so that no two threads write to one cache line.
  const int64_t first_panel = first_row / kPanelRows, panels = (first_row + num_rows - 1) / kPanelRows + 1 - first_panel;
  auto for_panels = [&](auto&& body) {
    parallel_for(panels, [&](int64_t item) {
      const int64_t begin = (first_panel + item) * kPanelRows - first_row;
      body(std::max<int64_t>(0, begin), std::min(num_rows, begin + kPanelRows));
    });
  };
  std::atomic<bool> is_finite{true};
  for_panels([&](int64_t first, int64_t last) {
    const char* values = static_cast<const char*>(rows) + first * in * size_of(dtype);
    if (!k.is_finite[dtype](values, (last - first) * in)) is_finite = false;
  });
  if (!is_finite) return 0;
  for_panels([&](int64_t first, int64_t last) {
    k.quantize_rows[dtype](rows, in, bits, static_cast<uint8_t*>(weight), first_row, first, last);
  });
  return 1;
}

LULLM_EXPORT void lullm_quantized_linear(const void* x, const void* weight, const void* bias, void* y, int64_t x_stride,
                                         int64_t y_stride, int64_t num_rows, int64_t in, int64_t out, int bits,
                                         int activation, int dtype) {
  if (num_rows > 0)
    linear({x, static_cast<const uint8_t*>(weight), bias, y, x_stride, y_stride, num_rows, in, out, bits,
            static_cast<Activation>(activation), false, nullptr},
           dtype);
}

LULLM_EXPORT void lullm_quantized_logits(const void* x, const void* weight, void* y, int64_t x_stride, int64_t num_rows,
                                         int64_t in, int64_t out, int bits, int dtype) {
  if (num_rows > 0)
    linear({x, static_cast<const uint8_t*>(weight), nullptr, y, x_stride, out, num_rows, in, out, bits, kNoActivation,
            true, nullptr},
           dtype);
}

// Rows of a weight [V, H] of 8 bits or of a grid. 0, and nothing done, if a token id is out of range.
LULLM_EXPORT int lullm_quantized_embedding(const int64_t* token_ids, const void* weight, void* y, int64_t num_tokens,
                                           int64_t vocab_size, int64_t hidden_size, int bits, int dtype) {
  for (int64_t i = 0; i < num_tokens; i++)
    if (token_ids[i] < 0 || token_ids[i] >= vocab_size) return 0;
  constexpr int64_t kRows = 8;
  parallel_for((num_tokens + kRows - 1) / kRows, [&](int64_t item) {
    for (int64_t i = item * kRows; i < std::min(num_tokens, (item + 1) * kRows); i++) {
      const uint8_t* from = static_cast<const uint8_t*>(weight);
      if (dtype == kFloat32) gather(from, token_ids[i], hidden_size, bits, static_cast<float*>(y) + i * hidden_size);
      else gather(from, token_ids[i], hidden_size, bits, static_cast<Bf16*>(y) + i * hidden_size);
    }
  });
  return 1;
}
