// Weights that still lie in a mapped checkpoint. A panel is packed at its place (it settles) some time after the first steps,
// which so need not wait for memory for all weights: until then a step packs it for itself. The bits are the same.
#pragma once

#include "kernel_table.h"

namespace lullm {

// Where the rows lie of the panel whose place this is; null: at that place, packed.
const char* mapped_rows(const void* place);

// `multiply_panels`, if some of these panels are mapped; false, and nothing done, if none is.
bool multiply_mapped(const LinearArgs& a, int dtype, int64_t first_row, int64_t last_row, int64_t first_panel,
                     int64_t last_panel);

}  // namespace lullm
