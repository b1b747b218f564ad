// Rows of a checkpoint into panels of 8 or 4 bits. A row depends on nothing but itself, and always comes out the same.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel_table.h"
#include "quantized_panel.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

// A place in a panel: the row's first four bytes of a tile of the block.
uint8_t* lane_of(uint8_t* panel, int64_t row, int64_t block, int64_t block_bytes, int64_t tile_bytes) {
  return panel + block * block_bytes + row / kTileRows * tile_bytes + row % kTileRows * 4;
}

template <class T>
float quantize_to_bytes(const T* x, int64_t in, float largest, uint8_t* panel, int64_t row) {
  const V inverse = set1(largest < kSmallest ? 0.0f : 127.0f / largest);
  for (int64_t i = 0; i < num_blocks(in) * kBlockInputs; i += kLanes) {
    const V integers = i < in ? round(mul(load_up_to(x + i, in - i), inverse)) : zero();
    alignas(16) uint8_t bytes[16];
    store_bytes(bytes, to_integers(integers));
    uint8_t* to = lane_of(panel, row, i / kBlockInputs, kByteBlockBytes, kTileBytes) + i % kBlockInputs / 4 * 64;
    for (int unit = 0; unit < 4; unit++) std::memcpy(to + unit * 64, bytes + 4 * unit, 4);
  }
  return largest < kSmallest ? 0.0f : largest / 127.0f;
}

constexpr int kGroups = kLanes;  // a lane each
constexpr int kTried = 3;

inline V digits_of(V x, V inverse) {
  return min(max(round(mul(x, inverse)), set1(-kLargestDigit)), set1(kLargestDigit - 1));
}

// Of sixteen groups, x[i] holding input i of each: the scale that leaves the least squared error, of those whose range
// ends near the group's largest value. Digits reach from -8 to 7, so the sign of the scale decides which side has the
// longer range. A group of zeros has scale 0.
void choose_scales(const V (&x)[kGroupInputs], float unit, float (&scales)[kGroups]) {
  V largest = zero();
  for (const V& input : x) largest = max(largest, max(input, sub(zero(), input)));
  float reach[kGroups], widest[kGroups], least[kGroups];
  store(reach, largest);
  for (int g = 0; g < kGroups; g++) {
    widest[g] = unit == 0.0f ? 0.0f : std::min<float>(std::ceil(reach[g] / (kLargestDigit * unit)), kLargestGroupScale);
    scales[g] = 0.0f, least[g] = std::numeric_limits<float>::infinity();
  }
  for (int tried = 0; tried < 2 * kTried; tried++) {
    float scale[kGroups], step[kGroups], inverse[kGroups], error[kGroups];
    for (int g = 0; g < kGroups; g++) {
      const float size = widest[g] - tried / 2;
      scale[g] = tried % 2 == 0 ? size : -size;
      step[g] = scale[g] * unit;
      inverse[g] = size > 0.0f ? 1.0f / step[g] : 0.0f;
    }
    const V steps = load(step), inverses = load(inverse);
    V squares = zero();
    for (const V& input : x) {
      const V off = sub(input, mul(digits_of(input, inverses), steps));
      squares = add(squares, mul(off, off));
    }
    store(error, squares);
    for (int g = 0; g < kGroups; g++) {
      const bool is_better = inverse[g] != 0.0f && error[g] < least[g];
      least[g] = is_better ? error[g] : least[g];
      scales[g] = is_better ? scale[g] : scales[g];
    }
  }
}

template <class T>
float quantize_to_digits(const T* x, int64_t in, float largest, uint8_t* panel, int64_t row) {
  const float unit = largest < kSmallest ? 0.0f : largest / (kLargestDigit * kLargestGroupScale);
  const int64_t num_groups = num_blocks(in) * kBlockGroups;
  alignas(64) float by_group[kGroups][kGroupInputs], by_input[kGroupInputs][kGroups];
  for (int64_t first = 0; first < num_groups; first += kGroups) {
    for (int g = 0; g < kGroups; g++) {
      const int64_t at = (first + g) * kGroupInputs;
      store(by_group[g], at < in ? load_up_to(x + at, in - at) : zero());
    }
    transpose(reinterpret_cast<const char*>(by_group), 64, reinterpret_cast<char*>(by_input), 64);
    V inputs[kGroupInputs];
    for (int i = 0; i < kGroupInputs; i++) inputs[i] = load(by_input[i]);
    float scales[kGroups], inverse[kGroups];
    choose_scales(inputs, unit, scales);
    for (int g = 0; g < kGroups; g++) inverse[g] = scales[g] == 0.0f ? 0.0f : 1.0f / (scales[g] * unit);
    for (int i = 0; i < kGroupInputs; i++)
      store(by_input[i], add(digits_of(inputs[i], load(inverse)), set1(kLargestDigit)));
    transpose(reinterpret_cast<const char*>(by_input), 64, reinterpret_cast<char*>(by_group), 64);
    for (int g = 0; g < kGroups && first + g < num_groups; g++) {
      const int64_t block = (first + g) / kBlockGroups, group = (first + g) % kBlockGroups;
      alignas(16) uint32_t digits[4];
      store_bytes(digits, to_integers(load(by_group[g])));
      uint8_t* to = lane_of(panel, row, block, kDigitBlockBytes, kDigitTileBytes) + group * 128;
      const uint32_t halves[2] = {digits[0] | digits[1] << 4, digits[2] | digits[3] << 4};
      std::memcpy(to, &halves[0], 4);
      std::memcpy(to + 64, &halves[1], 4);
      panel[block * kDigitBlockBytes + 2 * kDigitTileBytes + group * kPanelRows + row] =
          static_cast<uint8_t>(static_cast<int8_t>(scales[g]));
    }
  }
  return unit;
}

template <class T>
bool is_finite(const void* values, int64_t count) {
  return largest_bits(static_cast<const T*>(values), count) < kInfinityBits;
}

template <class T>
void quantize_rows(const void* rows, int64_t in, int bits, uint8_t* weight, int64_t first_row, int64_t first,
                   int64_t last) {
  for (int64_t i = first; i < last; i++) {
    const T* x = static_cast<const T*>(rows) + i * in;
    const int64_t row = (first_row + i) % kPanelRows, panel_bytes = quantized_panel_bytes(bits, in);
    uint8_t* panel = weight + (first_row + i) / kPanelRows * panel_bytes;
    const float largest = float_of(largest_bits(x, in));
    const float scale = bits == 8 ? quantize_to_bytes(x, in, largest, panel, row)
                                  : quantize_to_digits(x, in, largest, panel, row);
    std::memcpy(panel + panel_bytes - kPanelScaleBytes + row * 4, &scale, 4);
  }
}

}  // namespace

void fill_quantized_weight(Kernels& kernels) {
  kernels.quantized.is_finite[kFloat32] = is_finite<float>;
  kernels.quantized.is_finite[kBFloat16] = is_finite<Bf16>;
  kernels.quantized.quantize_rows[kFloat32] = quantize_rows<float>;
  kernels.quantized.quantize_rows[kBFloat16] = quantize_rows<Bf16>;
}

}  // namespace LULLM_ISA
}  // namespace lullm
