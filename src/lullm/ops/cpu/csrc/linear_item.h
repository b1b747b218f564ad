// Items of linear layers: some panels times some rows on one thread, as they are packed, or expanded before.
#pragma once

#include "kernel_table.h"
#include "narrow/narrow.h"

namespace lullm {

// Of one side. Rows of a packed weight that fill no panel are its tail.
inline int64_t panels_of(const LinearArgs& a, int dtype) {
  return is_narrow(a.format) ? (a.out_of_side() + kPanelRows - 1) / kPanelRows : num_panels(a.out_of_side(), a.in, dtype);
}
inline int64_t panel_bytes_of(const LinearArgs& a, int dtype) {
  return is_narrow(a.format) ? narrow_panel_bytes(a.format, a.in) : kPanelRows * a.in * size_of(dtype);
}
inline int64_t tail_of(const LinearArgs& a, int dtype) {
  return is_narrow(a.format) ? 0 : a.out - a.num_sides() * panels_of(a, dtype) * kPanelRows;
}

// `Kernels::linear_panels` of any format.
void multiply_panels(const LinearArgs& a, int dtype, int64_t first_row, int64_t last_row, int64_t first_panel,
                     int64_t last_panel);

// Rows of a block that stays in the cache beside two panels: equal blocks of whole pairs of groups.
int64_t rows_of_block(const LinearArgs& a, int dtype);

// Fill `x_prepared`, whose memory is valid until the thread's next call of either: with some rows, a multiple of the group
// first, on this thread; with all rows, on all threads.
void prepare_rows_here(LinearArgs& a, int dtype, int64_t first, int64_t last);
void prepare_rows(LinearArgs& a, int dtype);

// The rows of the weight behind its last whole panel, on all threads. `x_prepared` is filled.
void multiply_last_rows(const LinearArgs& a, int dtype);

// All of a linear layer, on all threads.
void linear(LinearArgs a, int dtype);

}  // namespace lullm
