// The instruction sets of ARM64.

#include <sys/auxv.h>

#include "isa.h"

namespace lullm {

namespace neon { void fill(Kernels&); }
namespace neon_bf16 { void fill(Kernels&); }

namespace {

bool has_neon() { return true; }  // every ARM64 processor has it

bool has_neon_bf16() {
  constexpr unsigned long kBf16 = 1ul << 14;  // HWCAP2_BF16 of asm/hwcap.h, which older systems do not name
  return (getauxval(AT_HWCAP2) & kBf16) != 0;
}

}  // namespace

const Isa kIsas[] = {{"neon", has_neon, neon::fill}, {"neon_bf16", has_neon_bf16, neon_bf16::fill}};
const int kNumIsas = 2;

}  // namespace lullm
