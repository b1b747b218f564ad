// Mamba 1's selective scan: every element of a state decays at a rate of its own, channel by channel.
//
// As in `recurrence.cpp`, tokens come one after the other, and an item has 64 channels, whose states stay in the
// first-level cache. All sums are along the state, so that channels do not meet.

#include "../kernel_table.h"
#include "../simd.h"
#include "softplus.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

template <class T>
void select(const SelectiveArgs& a, int64_t span, int64_t block, void* scratch) {
  const int64_t channel = block * kStateColumns, count = std::min(kStateColumns, a.num_channels - channel);
  float* states = static_cast<float*>(scratch);           // [state_size, kStateColumns]
  float* rates = states + a.state_size * kStateColumns;  // the same
  for (int64_t n = 0; n < a.state_size; n++) {
    float *state = states + n * kStateColumns, *rate = rates + n * kStateColumns;
    if (count < kStateColumns) std::memset(state, 0, kStateColumns * sizeof(float)), std::memset(rate, 0, kStateColumns * sizeof(float));
    a.state.read(span, n * a.num_channels + channel, count, state);
    for (int64_t i = 0; i < count; i++) rate[i] = a.a_log[(channel + i) * a.state_size + n];
    for (int64_t i = 0; i < count; i += kLanes) store(rate + i, sub(zero(), exp(min(load(rate + i), set1(88.0f)))));
  }
  for (int64_t row = a.state.first_row(span), end = row + a.state.num_rows(span); row < end; row++) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride + channel;
    const T* steps = static_cast<const T*>(a.steps) + row * a.step_stride + channel;
    const T* b = static_cast<const T*>(a.bc) + row * a.bc_stride;
    T* y = static_cast<T*>(a.y) + row * a.num_channels + channel;
    for (int64_t i = 0; i < count; i += kLanes) {
      const int64_t left = count - i;
      const V value = load_up_to(x + i, left);
      const V step = softplus(add(load_up_to(steps + i, left), load_up_to(a.dt_bias + channel + i, left)));
      const V written = mul(step, value);
      V out = zero();
      for (int64_t n = 0; n < a.state_size; n++) {
        float* state = states + n * kStateColumns + i;
        const V decay = exp(mul(step, load(rates + n * kStateColumns + i)));
        const V moved = fma(decay, load(state), mul(set1(to_float(b[n])), written));
        store(state, moved);
        out = fma(set1(to_float(b[a.state_size + n])), moved, out);
      }
      store_up_to(y + i, fma(load_up_to(a.skip + channel + i, left), value, out), left);
    }
  }
  for (int64_t n = 0; n < a.state_size; n++)
    a.state.write(span, n * a.num_channels + channel, count, states + n * kStateColumns);
}

}  // namespace

void fill_selective(Kernels& kernels) {
  kernels.select[kFloat32] = select<float>;
  kernels.select[kBFloat16] = select<Bf16>;
}

}  // namespace LULLM_ISA
}  // namespace lullm
