// The rows of a weight behind its last whole panel, which lie as the checkpoint has them. A panel of them and zeros is packed
// for each product: reading them is the most of that, and a dot product for each of many rows takes longer.

#include <algorithm>
#include <cstring>

#include "isa.h"
#include "linear_item.h"
#include "thread_pool.h"

using namespace lullm;

void lullm::multiply_last_rows(const LinearArgs& a, int dtype) {
  const int64_t size = size_of(dtype), y_size = a.y_is_float ? 4 : size, panel_bytes = kPanelRows * a.in * size;
  const int64_t count = tail_of(a, dtype), first = a.out - count, y_bytes = kPanelRows * y_size;
  char* panel = static_cast<char*>(scratch(kPartialScratch, panel_bytes + kPanelRows * size + a.num_rows * y_bytes));
  char *bias = panel + panel_bytes, *y = bias + kPanelRows * size;
  char* rows_of_panel = static_cast<char*>(scratch(kItemScratch, panel_bytes));
  std::memcpy(rows_of_panel, static_cast<const char*>(a.weight) + first * a.in * size, count * a.in * size);
  std::memset(rows_of_panel + count * a.in * size, 0, (kPanelRows - count) * a.in * size);
  std::memset(bias, 0, kPanelRows * size);
  if (a.bias != nullptr) std::memcpy(bias, static_cast<const char*>(a.bias) + first * size, count * size);
  kernels().pack_panel(rows_of_panel, units_of(a.in, dtype), panel);
  LinearArgs last = a;
  last.weight = panel, last.bias = a.bias == nullptr ? nullptr : bias, last.y = y, last.y_stride = last.out = kPanelRows;
  const int64_t rows = rows_of_block(a, dtype);
  parallel_for((a.num_rows + rows - 1) / rows, [&](int64_t item) {
    const int64_t begin = item * rows, end = std::min(a.num_rows, begin + rows);
    multiply_panels(last, dtype, begin, end, 0, 1);
    for (int64_t row = begin; row < end; row++)
      std::memcpy(static_cast<char*>(a.y) + (row * a.y_stride + first) * y_size, y + row * y_bytes, count * y_size);
  });
}
