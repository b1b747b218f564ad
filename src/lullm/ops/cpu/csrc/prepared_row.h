// A row of activations as the vector kernels read it: for each 8 inputs the pairs (0, 2), (1, 3), (4, 6), (5, 7) of 16-bit
// integers; then, as 32 bits, -8 times the sum of each 16, which takes the 8 back that is in every digit; then its scale.
#pragma once

#include "quantized.h"
#include "simd.h"

namespace lullm {
namespace LULLM_ISA {

static inline int64_t pairs_bytes(int64_t blocks) { return blocks * kBlockInputs * 2; }
static inline int64_t row_bytes(int64_t blocks) {
  return pairs_bytes(blocks) + (blocks * kBlockGroups * 4 + 4 + 63) / 64 * 64;
}
static inline float* scale_of(char* row, int64_t blocks) {
  return reinterpret_cast<float*>(row + pairs_bytes(blocks) + blocks * kBlockGroups * 4);
}

static inline I pair_at(const char* x, int64_t index) {
  int32_t pair;
  std::memcpy(&pair, x + 4 * index, 4);
  return set_integers(pair);
}

// The bias of a group of so many inputs of a block.
template <int64_t kInputs>
static inline int32_t bias_of_group(const char* bias, int64_t group) {
  int32_t total = 0;
  for (int64_t i = 0; i < kInputs / kGroupInputs; i++) {
    int32_t one;
    std::memcpy(&one, bias + (group * (kInputs / kGroupInputs) + i) * 4, 4);
    total += one;
  }
  return total;
}

}  // namespace LULLM_ISA
}  // namespace lullm
