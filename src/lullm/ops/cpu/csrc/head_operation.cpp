// Every head of some rows times a matrix of its own, behind the C interface.

#include <algorithm>
#include <cstring>

#include "isa.h"
#include "kernel_table.h"
#include "linear_item.h"
#include "operation.h"
#include "thread_pool.h"

using namespace lullm;

namespace {

constexpr int64_t kManyRows = 64;  // from here on a matrix is packed: that takes as long as ten rows do without
constexpr int64_t kItemsPerThread = 4;

// Few rows, whose matrices are read as they lie.
void multiply_few(const HeadProductArgs& a, int64_t num_rows, int dtype) {
  constexpr int64_t kRows = 8;  // that share a reading of a matrix
  const int64_t groups = (num_rows + kRows - 1) / kRows;  // of one head one after the other: its matrix is near then
  parallel_for_runs(a.num_heads * groups, groups, [&](int64_t first, int64_t last) {
    for (int64_t item = first; item < last; item++) {
      const int64_t row = item % groups * kRows;
      kernels().multiply_head[dtype](a, item / groups, row, std::min(num_rows, row + kRows));
    }
  });
}

// All rows of a head as those of a linear layer, whose results lie between those of the other heads.
LinearArgs linear_of(const HeadProductArgs& a, int64_t head, int64_t num_rows, int dtype) {
  const int64_t size = size_of(dtype), result = a.out + a.num_kept;
  return {static_cast<const char*>(a.x) + head * a.x_head_stride * size, nullptr, nullptr,
          static_cast<char*>(a.y) + head * result * size, a.x_row_stride, a.num_heads * result,
          num_rows, a.in, a.out, nullptr, kNoActivation, false};
}

void copy_kept(const HeadProductArgs& a, const LinearArgs& linear, int dtype, int64_t first_row, int64_t last_row) {
  if (a.num_kept == 0) return;
  const int64_t size = size_of(dtype);
  for (int64_t row = first_row; row < last_row; row++)
    std::memcpy(static_cast<char*>(linear.y) + (row * linear.y_stride + a.out) * size,
                static_cast<const char*>(linear.x) + (row * linear.x_stride + a.in) * size, a.num_kept * size);
}

// An item is a head with some blocks of rows: its matrix is packed, and multiplied like a linear layer's.
void multiply_many(const HeadProductArgs& a, int64_t num_rows, int dtype) {
  LinearArgs first_head = linear_of(a, 0, num_rows, dtype);
  const int64_t panels = a.out / kPanelRows, block = rows_of_block(first_head, dtype);
  const int64_t num_blocks = (num_rows + block - 1) / block, wanted = kItemsPerThread * get_num_threads();
  const int64_t parts = std::clamp((wanted + a.num_heads - 1) / a.num_heads, int64_t{1}, num_blocks);
  const bool is_shared = a.x_head_stride == 0;  // all heads have the same inputs, which are prepared once
  if (is_shared) prepare_rows(first_head, dtype);
  parallel_for(a.num_heads * parts, [&](int64_t item) {
    const int64_t head = item / parts, part = item % parts;
    const int64_t begin = num_blocks * part / parts * block, end = std::min(num_rows, num_blocks * (part + 1) / parts * block);
    LinearArgs linear = linear_of(a, head, num_rows, dtype);
    linear.x_prepared = first_head.x_prepared;
    if (!is_shared) prepare_rows_here(linear, dtype, begin, end);
    void* packed = scratch(kGatheredScratch, a.out * a.in * size_of(dtype));
    kernels().pack_head[dtype](a, head, packed);
    linear.weight = packed;
    for (int64_t row = begin; row < end; row += block)
      for (int64_t panel = 0; panel < panels; panel += kLinearPanels)
        multiply_panels(linear, dtype, row, std::min(end, row + block), panel, std::min(panels, panel + kLinearPanels));
    copy_kept(a, linear, dtype, begin, end);
  });
}

}  // namespace

LULLM_EXPORT void lullm_multiply_heads(const void* x, const void* weight, void* y, int64_t x_row_stride,
                                       int64_t x_head_stride, int64_t weight_stride, int64_t num_rows, int64_t num_heads,
                                       int64_t in, int64_t out, int64_t num_kept, int is_by_inputs, int dtype) {
  const HeadProductArgs a = {x,  weight, y,        x_row_stride, x_head_stride, weight_stride, num_heads,
                             in, out,    num_kept, is_by_inputs != 0};
  const bool is_whole_panels = num_panels(out, in, dtype) * kPanelRows == out;
  (num_rows >= kManyRows && is_whole_panels ? multiply_many : multiply_few)(a, num_rows, dtype);
}
