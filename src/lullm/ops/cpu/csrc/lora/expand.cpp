// The second product of a low-rank adapter, added to the results of its layer. Every sum is one chain of fused products over
// the ranks, in their order, and is added to the result and rounded once: so a row's bits follow from the row and its adapter.

#include <algorithm>

#include "../kernel_table.h"
#include "arguments.h"
#include "../simd.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

// Rows and lines of 16 outputs of a pass; as accumulators they fill half of the registers.
constexpr int kRows = kRegisters >= 32 ? 4 : 2, kLines = kRegisters >= 32 ? 4 : 2;

template <class T, int kNumRows, int kNumLines>
void expand_block(const LoraArgs& a, const LoraGroup& group, int64_t part, int64_t row, int64_t out, int64_t left) {
  const int64_t rank = a.ranks[group.place * a.num_parts + part], width = a.num_parts * a.max_rank;
  const T* b = static_cast<const T*>(a.b) + group.place * a.max_rank * a.out + out;
  const float* inner = group.inner + row * width + part * a.max_rank;
  V sums[kNumRows][kNumLines];
  LULLM_UNROLL for (int i = 0; i < kNumRows * kNumLines; i++) sums[i / kNumLines][i % kNumLines] = zero();
  for (int64_t k = 0; k < rank; k++, b += a.out) {
    V lines[kNumLines];
    LULLM_UNROLL for (int i = 0; i < kNumLines; i++) lines[i] = left < kLanes ? load_first(b, left) : load(b + i * kLanes);
    LULLM_UNROLL for (int r = 0; r < kNumRows; r++) {
      const V factor = set1(inner[r * width + k]);
      LULLM_UNROLL for (int i = 0; i < kNumLines; i++) sums[r][i] = fma(lines[i], factor, sums[r][i]);
    }
  }
  for (int r = 0; r < kNumRows; r++) {
    T* y = static_cast<T*>(a.y) + group.rows[row + r] * a.y_stride + out;
    for (int i = 0; i < kNumLines; i++) {
      T* at = y + i * kLanes;
      const int64_t count = kNumLines == 1 ? left : kLanes;
      store_up_to(at, add(load_up_to(at, count), sums[r][i]), count);
    }
  }
}

template <class T, int kNumRows>
void expand_rows(const LoraArgs& a, const LoraGroup& group, int64_t part, int64_t row, int64_t first, int64_t last) {
  int64_t out = first;
  for (; out + kLines * kLanes <= last; out += kLines * kLanes)
    expand_block<T, kNumRows, kLines>(a, group, part, row, out, kLines * kLanes);
  for (; out < last; out += kLanes)
    expand_block<T, kNumRows, 1>(a, group, part, row, out, std::min<int64_t>(kLanes, last - out));
}

template <class T>
void expand(const LoraArgs& a, const LoraGroup& group, int64_t part, int64_t first_row, int64_t last_row, int64_t first,
            int64_t last) {
  int64_t row = first_row;
  for (; row + kRows <= last_row; row += kRows) expand_rows<T, kRows>(a, group, part, row, first, last);
  for (; row < last_row; row++) expand_rows<T, 1>(a, group, part, row, first, last);
}

}  // namespace

void fill_lora(Kernels& kernels) {
  kernels.expand_lora[kFloat32] = expand<float>;
  kernels.expand_lora[kBFloat16] = expand<Bf16>;
}

}  // namespace LULLM_ISA
}  // namespace lullm
