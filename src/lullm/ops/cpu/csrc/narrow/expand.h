// Some blocks of a panel of narrow floats, expanded to those of a packed panel; see `narrow.h`.
#pragma once

#include "../dtype.h"

namespace lullm {
namespace LULLM_ISA {

// Blocks [first, first + count) of 32 inputs of a panel with `in` inputs.
void expand_narrow(const uint8_t* panel, int format, int64_t in, int64_t first, int64_t count, float* to);
void expand_narrow(const uint8_t* panel, int format, int64_t in, int64_t first, int64_t count, Bf16* to);

}  // namespace LULLM_ISA
}  // namespace lullm
