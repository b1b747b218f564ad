// What recurrent layers do row by row: the convolution before the recurrence, and gates and norms behind it.

#include <cmath>
#include <type_traits>

#include "../activation.h"
#include "../kernel_table.h"
#include "../simd.h"
#include "softplus.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

template <class T>
const T* row_of(const void* base, int64_t row, int64_t stride) {
  return static_cast<const T*>(base) + row * stride;
}

// Sixteen channels, from `i` on, of a row of an item's span; negative rows are those before the step.
template <class T>
struct ConvolvedRows {
  const T* x;
  int64_t stride, count;  // channels of the item
  const float* before;    // [kernel_size - 1, kConvolvedChannels]
  int64_t num_before;

  V in_step(int64_t row, int64_t i) const { return load_up_to(x + row * stride + i, count - i); }
  V load_any(int64_t row, int64_t i) const {
    return row < 0 ? load(before + (num_before + row) * kConvolvedChannels + i) : in_step(row, i);
  }
};

template <class T>
ConvolvedRows<T> rows_of(const ConvolutionArgs& a, const ConvolutionItem& item, float* before) {
  const int64_t channel = item.first_channel, count = item.last_channel - channel, num_before = a.kernel_size - 1;
  if (item.first_row < num_before)
    for (int64_t k = 0; k < num_before; k++)
      a.state.read(item.span, k * a.num_channels + channel, count, before + k * kConvolvedChannels);
  return {row_of<T>(a.x, a.state.first_row(item.span), a.x_stride) + channel, a.x_stride, count, before, num_before};
}

// Leaves in the state the rows before the next step. The item ends with the span's last row.
template <class T>
void keep_rows(const ConvolutionArgs& a, const ConvolutionItem& item, const ConvolvedRows<T>& rows) {
  alignas(64) float kept[kConvolvedChannels];
  for (int64_t k = 0; k < rows.num_before; k++) {
    for (int64_t i = 0; i < rows.count; i += kLanes) store(kept + i, rows.load_any(item.last_row - rows.num_before + k, i));
    a.state.write(item.span, k * a.num_channels + item.first_channel, rows.count, kept);
  }
}

template <class T>
void keep_rows_of(const ConvolutionArgs& a, const ConvolutionItem& item, void* scratch) {
  keep_rows(a, item, rows_of<T>(a, item, static_cast<float*>(scratch)));
}

// Four rows at a time, which share the rows that they see and the weights. kKernel: `kernel_size`, or 0 for any.
template <int kKernel, class T>
void convolve_rows(const ConvolutionArgs& a, const ConvolutionItem& item, const ConvolvedRows<T>& rows, const float* weights) {
  constexpr int kRows = 4;
  const int64_t size = kKernel > 0 ? kKernel : a.kernel_size;
  const T* bias = a.bias == nullptr ? nullptr : static_cast<const T*>(a.bias) + item.first_channel;
  T* first_y = static_cast<T*>(a.y) + a.state.first_row(item.span) * a.num_channels + item.first_channel;
  const auto convolve_some = [&](int64_t row, auto count, int64_t i, auto&& value) {
    V totals[count()];
    LULLM_UNROLL for (int r = 0; r < count(); r++) totals[r] = zero();
    for (int64_t k = 0; k < size; k++) {
      const V weight = load(weights + k * kConvolvedChannels + i);
      LULLM_UNROLL for (int r = 0; r < count(); r++) totals[r] = fma(value(row + r - rows.num_before + k), weight, totals[r]);
    }
    LULLM_UNROLL for (int r = 0; r < count(); r++) {
      if (bias != nullptr) totals[r] = add(totals[r], load_up_to(bias + i, rows.count - i));
      store_up_to(first_y + (row + r) * a.num_channels + i, a.activates ? silu(totals[r]) : totals[r], rows.count - i);
    }
  };
  const std::integral_constant<int, 1> one;
  int64_t row = item.first_row;
  for (; row < std::min(item.last_row, rows.num_before); row++)
    for (int64_t i = 0; i < rows.count; i += kLanes) convolve_some(row, one, i, [&](int64_t of) { return rows.load_any(of, i); });
  const int64_t whole = rows.count / kLanes * kLanes;
  for (; row + kRows <= item.last_row; row += kRows) {
    for (int64_t i = 0; i < whole; i += kLanes)
      convolve_some(row, std::integral_constant<int, kRows>(), i, [&](int64_t of) { return load(rows.x + of * rows.stride + i); });
    for (int r = 0; r < kRows && whole < rows.count; r++)
      convolve_some(row + r, one, whole, [&](int64_t of) { return rows.in_step(of, whole); });
  }
  for (; row < item.last_row; row++)
    for (int64_t i = 0; i < rows.count; i += kLanes) convolve_some(row, one, i, [&](int64_t of) { return rows.in_step(of, i); });
}

template <class T>
void convolve(const ConvolutionArgs& a, const ConvolutionItem& item, void* scratch) {
  float *before = static_cast<float*>(scratch), *weights = before + (a.kernel_size - 1) * kConvolvedChannels;
  const ConvolvedRows<T> rows = rows_of<T>(a, item, before);
  for (int64_t i = 0; i < rows.count; i++) {
    const T* own = static_cast<const T*>(a.weight) + (item.first_channel + i) * a.kernel_size;
    for (int64_t k = 0; k < a.kernel_size; k++) weights[k * kConvolvedChannels + i] = to_float(own[k]);
  }
  if (a.kernel_size == 4) convolve_rows<4>(a, item, rows, weights);
  else if (a.kernel_size == 3) convolve_rows<3>(a, item, rows, weights);
  else convolve_rows<0>(a, item, rows, weights);
  if (item.is_whole) keep_rows(a, item, rows);
}

template <class T>
void gated_norm(const GatedNormArgs& a, int64_t first_row, int64_t last_row, float* values) {
  for (int64_t row = first_row; row < last_row; row++) {
    for (int64_t group = 0; group < a.num_groups; group++) {
      const T* x = row_of<T>(a.x, row, a.x_stride) + group * a.size;
      const T* gate = row_of<T>(a.gate, row, a.gate_stride) + group * a.size;
      const T* weight = static_cast<const T*>(a.weight) + group * a.weight_stride;
      T* y = static_cast<T*>(a.y) + (row * a.num_groups + group) * a.size;
      V squares = zero();
      for (int64_t i = 0; i < a.size; i += kLanes) {
        V value = load_up_to(x + i, a.size - i);
        if (a.gates_first) value = mul(value, silu(load_up_to(gate + i, a.size - i)));
        squares = fma(value, value, squares);
        store(values + i, value);
      }
      const V factor = set1(1.0f / std::sqrt(sum(squares) / static_cast<float>(a.size) + a.eps));
      for (int64_t i = 0; i < a.size; i += kLanes) {
        V normed = mul(rounded<T>(mul(load(values + i), factor)), load_up_to(weight + i, a.size - i));
        if (!a.gates_first) normed = mul(rounded<T>(normed), silu(load_up_to(gate + i, a.size - i)));
        store_up_to(y + i, normed, a.size - i);
      }
    }
  }
}

template <class T>
V gated(V x, int gating) {
  if (gating == kSiluGating) return rounded<T>(silu(x));
  if (gating == kSigmoidGating) return rounded<T>(sigmoid(x));
  return gating == kSoftplusGating ? rounded<T>(softplus(x)) : x;
}

template <class T>
void multiply_rows(const MultiplyArgs& a, int64_t first_row, int64_t last_row) {
  for (int64_t row = first_row; row < last_row; row++) {
    T* y = static_cast<T*>(a.y) + row * a.y_stride;
    const T* x = row_of<T>(a.x, row, a.x_stride);
    const auto multiply = [&](int64_t i, int64_t left, V factor) {
      store_up_to(y + i, mul(load_up_to(y + i, left), factor), left);
    };
    if (a.stretch == 1) {
      for (int64_t i = 0; i < a.size; i += kLanes)
        multiply(i, a.size - i, gated<T>(load_up_to(x + i, a.size - i), a.gating));
      continue;
    }
    for (int64_t first = 0; first < a.size; first += a.stretch, x++) {
      const V factor = gated<T>(set1(to_float(*x)), a.gating);
      for (int64_t i = 0; i < a.stretch; i += kLanes) multiply(first + i, a.stretch - i, factor);
    }
  }
}

}  // namespace

void fill_state_rows(Kernels& kernels) {
  kernels.convolve[kFloat32] = convolve<float>;
  kernels.convolve[kBFloat16] = convolve<Bf16>;
  kernels.keep_rows[kFloat32] = keep_rows_of<float>;
  kernels.keep_rows[kBFloat16] = keep_rows_of<Bf16>;
  kernels.gated_norm[kFloat32] = gated_norm<float>;
  kernels.gated_norm[kBFloat16] = gated_norm<Bf16>;
  kernels.multiply_rows[kFloat32] = multiply_rows<float>;
  kernels.multiply_rows[kBFloat16] = multiply_rows<Bf16>;
}

}  // namespace LULLM_ISA
}  // namespace lullm
