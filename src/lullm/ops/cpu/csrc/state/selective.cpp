// Mamba 1's selective scan and Griffin's gated units: every element of a state decays at a rate of its own, channel by
// channel.
//
// As in `recurrence.cpp`, tokens come one after the other, and an item has 64 channels, whose states stay in the
// first-level cache. All sums are along the state, so that channels do not meet.

#include "../activation.h"
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

template <class T>
void gate_units(const GatedUnitArgs& a, int64_t span, int64_t block, void* scratch) {
  const int64_t channel = block * kStateColumns, count = std::min(kStateColumns, a.num_channels - channel);
  float* states = static_cast<float*>(scratch);  // [kStateColumns]
  float* rates = states + kStateColumns;         // the same
  std::memset(states, 0, kStateColumns * sizeof(float));
  a.state.read(span, channel, count, states);
  for (int64_t i = 0; i < count; i += kLanes)
    store(rates + i, mul(set1(-8.0f), softplus(load_up_to(a.rate + channel + i, count - i))));
  const int64_t first = a.state.first_row(span), begin = a.state.begins(span) ? first : -1;
  for (int64_t row = first, end = first + a.state.num_rows(span); row < end; row++) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride + channel;
    const T* inputs = static_cast<const T*>(a.inputs) + row * a.input_stride + channel;
    const T* decays = static_cast<const T*>(a.decays) + row * a.decay_stride + channel;
    T* y = static_cast<T*>(a.y) + row * a.num_channels + channel;
    for (int64_t i = 0; i < count; i += kLanes) {
      const int64_t left = count - i;
      const V gate = sigmoid(add(load_up_to(inputs + i, left), load_up_to(a.input_bias + channel + i, left)));
      V written = mul(load_up_to(x + i, left), gate);
      if (row != begin) {  // a sequence's first token is written as it is
        const V forgotten = sigmoid(add(load_up_to(decays + i, left), load_up_to(a.decay_bias + channel + i, left)));
        const V passed = mul(load(rates + i), forgotten);
        const V left_over = max(sub(set1(1.0f), exp(add(passed, passed))), zero());
        written = fma(exp(passed), load(states + i), mul(written, sqrt(left_over)));
      }
      store(states + i, written);
      store_up_to(y + i, written, left);
    }
  }
  a.state.write(span, channel, count, states);
}

}  // namespace

void fill_selective(Kernels& kernels) {
  kernels.select[kFloat32] = select<float>;
  kernels.select[kBFloat16] = select<Bf16>;
  kernels.gate_units[kFloat32] = gate_units<float>;
  kernels.gate_units[kBFloat16] = gate_units<Bf16>;
}

}  // namespace LULLM_ISA
}  // namespace lullm
