// The kernels of one instruction set, collected.

#include "kernel_table.h"

namespace lullm {
namespace LULLM_ISA {

void fill_elementwise(Kernels&);
void fill_linear(Kernels&);
void fill_attention(Kernels&);

void fill(Kernels& kernels) {
  fill_elementwise(kernels);
  fill_linear(kernels);
  fill_attention(kernels);
}

}  // namespace LULLM_ISA
}  // namespace lullm
