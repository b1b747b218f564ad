// The two products of a low-rank adapter. Every sum is a chain of fused products in the order of the inputs (sixteen chains,
// which are added at the end) or of the ranks, however many rows and outputs are taken at once: so a row's bits follow from the
// row and its adapter. The second sum is added to the layer's result, and rounded once.

#include <algorithm>

#include "../kernel_table.h"
#include "arguments.h"
#include "../simd.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

// Rows and ranks of a pass of the first product; a single row takes more ranks, to hide how long a product takes.
constexpr int kInnerRows = kRegisters >= 32 ? 4 : 2, kInnerRanks = kRegisters >= 32 ? 4 : 2, kRanksOfOne = 2 * kInnerRanks;

template <class T, int kNumRows, int kNumRanks>
void inner_block(const LoraArgs& a, const LoraGroup& group, int64_t part, int64_t row, int64_t rank) {
  const int64_t width = a.num_parts * a.max_rank, first = part * a.max_rank + rank;
  const T *w[kNumRanks], *x[kNumRows];
  for (int k = 0; k < kNumRanks; k++) w[k] = static_cast<const T*>(a.a) + (group.place * width + first + k) * a.in;
  for (int r = 0; r < kNumRows; r++) x[r] = static_cast<const T*>(a.x) + group.rows[row + r] * a.x_stride;
  V sums[kNumRows][kNumRanks];
  LULLM_UNROLL for (int i = 0; i < kNumRows * kNumRanks; i++) sums[i / kNumRanks][i % kNumRanks] = zero();
  const auto add_products = [&](auto&& load_lanes) {
    V numbers[kNumRanks];
    LULLM_UNROLL for (int k = 0; k < kNumRanks; k++) numbers[k] = load_lanes(w[k]);
    LULLM_UNROLL for (int r = 0; r < kNumRows; r++) {
      const V number = load_lanes(x[r]);
      LULLM_UNROLL for (int k = 0; k < kNumRanks; k++) sums[r][k] = fma(numbers[k], number, sums[r][k]);
    }
  };
  int64_t i = 0;
  for (; i + kLanes <= a.in; i += kLanes) add_products([&](const T* from) { return load(from + i); });
  if (i < a.in) add_products([&](const T* from) { return load_first(from + i, a.in - i); });
  for (int r = 0; r < kNumRows; r++)
    for (int k = 0; k < kNumRanks; k++) group.inner[(row + r) * width + first + k] = sum(sums[r][k]);
}

template <class T, int kNumRows, int kNumRanks>
void inner_rows(const LoraArgs& a, const LoraGroup& group, int64_t part, int64_t row, int64_t first, int64_t last) {
  int64_t rank = first;
  for (; rank + kNumRanks <= last; rank += kNumRanks) inner_block<T, kNumRows, kNumRanks>(a, group, part, row, rank);
  for (; rank < last; rank++) inner_block<T, kNumRows, 1>(a, group, part, row, rank);
}

template <class T>
void inner(const LoraArgs& a, const LoraGroup& group, int64_t part, int64_t first_row, int64_t last_row, int64_t first,
           int64_t last) {
  int64_t row = first_row;
  for (; row + kInnerRows <= last_row; row += kInnerRows)
    inner_rows<T, kInnerRows, kInnerRanks>(a, group, part, row, first, last);
  for (; row < last_row; row++) inner_rows<T, 1, kRanksOfOne>(a, group, part, row, first, last);
}

// Rows and lines of 16 outputs of a pass of the second; as accumulators they fill half of the registers.
constexpr int kRows = kRegisters >= 32 ? 4 : 2, kLines = kRegisters >= 32 ? 4 : 2;

template <class T, int kNumRows, int kNumLines>
void outer_block(const LoraArgs& a, const LoraGroup& group, int64_t part, int64_t row, int64_t out, int64_t left) {
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
void outer_rows(const LoraArgs& a, const LoraGroup& group, int64_t part, int64_t row, int64_t first, int64_t last) {
  int64_t out = first;
  for (; out + kLines * kLanes <= last; out += kLines * kLanes)
    outer_block<T, kNumRows, kLines>(a, group, part, row, out, kLines * kLanes);
  for (; out < last; out += kLanes)
    outer_block<T, kNumRows, 1>(a, group, part, row, out, std::min<int64_t>(kLanes, last - out));
}

template <class T>
void outer(const LoraArgs& a, const LoraGroup& group, int64_t part, int64_t first_row, int64_t last_row, int64_t first,
           int64_t last) {
  int64_t row = first_row;
  for (; row + kRows <= last_row; row += kRows) outer_rows<T, kRows>(a, group, part, row, first, last);
  for (; row < last_row; row++) outer_rows<T, 1>(a, group, part, row, first, last);
}

}  // namespace

void fill_lora(Kernels& kernels) {
  kernels.lora_inner[kFloat32] = inner<float>;
  kernels.lora_inner[kBFloat16] = inner<Bf16>;
  kernels.lora_outer[kFloat32] = outer<float>;
  kernels.lora_outer[kBFloat16] = outer<Bf16>;
}

}  // namespace LULLM_ISA
}  // namespace lullm
