// The kernels of one instruction set, collected.

#include "kernel_table.h"

namespace lullm {
namespace LULLM_ISA {

void fill_elementwise(Kernels&);
void fill_head_products(Kernels&);
void fill_linear(Kernels&);
void fill_attention(Kernels&);
void fill_draw(Kernels&);
void fill_experts(Kernels&);
void fill_quantized_linear(Kernels&);
void fill_quantized_weight(Kernels&);
void fill_grid(Kernels&);
void fill_recurrence(Kernels&);
void fill_selective(Kernels&);
void fill_state_rows(Kernels&);
void fill_collective(Kernels&);
void fill_digest(Kernels&);
void fill_lora(Kernels&);

void fill(Kernels& kernels) {
  fill_elementwise(kernels);
  fill_head_products(kernels);
  fill_linear(kernels);
  fill_attention(kernels);
  fill_draw(kernels);
  fill_experts(kernels);
  fill_quantized_linear(kernels);
  fill_quantized_weight(kernels);
  fill_grid(kernels);
  fill_recurrence(kernels);
  fill_selective(kernels);
  fill_state_rows(kernels);
  fill_collective(kernels);
  fill_digest(kernels);
  fill_lora(kernels);
}

}  // namespace LULLM_ISA
}  // namespace lullm
