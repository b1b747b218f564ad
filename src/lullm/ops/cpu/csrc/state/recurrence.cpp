// What recurrent layers do to their states: the gated delta rule, state spaces, and the convolution before them.
//
// Tokens of a sequence come one after the other, in one step as in many, and all sums have one order. So the bits of a
// token follow neither the batch nor the chunks of its prompt. A state stays in the first-level cache for all tokens of a
// step: the columns of a head's matrix do not meet, and an item has 64 of them.

#include <cmath>

#include "../activation.h"
#include "../kernel_table.h"
#include "../simd.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

constexpr int kColumnVectors = kStateColumns / kLanes;
constexpr float kNormEps = 1e-6f;

template <class T>
const T* row_of(const void* base, int64_t row, int64_t stride) {
  return static_cast<const T*>(base) + row * stride;
}

// As floats; the elements behind the last are zeros.
template <class T>
void widen(const T* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += kLanes) store(to + i, load_up_to(from + i, count - i));
}

// Makes it a vector of length `length`.
void normalize(float* x, int64_t padded, float length) {
  V squares = zero();
  for (int64_t i = 0; i < padded; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
  const V factor = set1(length / std::sqrt(sum(squares) + kNormEps));
  for (int64_t i = 0; i < padded; i += kLanes) store(x + i, mul(load(x + i), factor));
}

float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// A row of the columns of an item. Passed by value: a reference would be written and read again beside every store.
struct Columns {
  V v[kColumnVectors];
};

// S^T k, rows in two chains that are added at the end.
inline Columns multiply(const float* state, const float* keys, int64_t key_dim) {
  V held[kColumnVectors], odd[kColumnVectors];
  LULLM_UNROLL for (int j = 0; j < kColumnVectors; j++) held[j] = odd[j] = zero();
  int64_t i = 0;
  for (; i + 1 < key_dim; i += 2) {
    const V key = set1(keys[i]), next_key = set1(keys[i + 1]);
    const float* row = state + i * kStateColumns;
    LULLM_UNROLL for (int j = 0; j < kColumnVectors; j++) {
      held[j] = fma(key, load(row + j * kLanes), held[j]);
      odd[j] = fma(next_key, load(row + kStateColumns + j * kLanes), odd[j]);
    }
  }
  if (i < key_dim) {
    const V key = set1(keys[i]);
    LULLM_UNROLL for (int j = 0; j < kColumnVectors; j++)
      held[j] = fma(key, load(state + i * kStateColumns + j * kLanes), held[j]);
  }
  Columns sums;
  LULLM_UNROLL for (int j = 0; j < kColumnVectors; j++) sums.v[j] = add(held[j], odd[j]);
  return sums;
}

// S <- decay S + k v^T; S^T q.
inline Columns move_on(float* state, const float* queries, const float* keys, int64_t key_dim, float decay,
                       const Columns& written) {
  const V factor = set1(decay);
  V values[kColumnVectors], out[kColumnVectors];
  LULLM_UNROLL for (int j = 0; j < kColumnVectors; j++) values[j] = written.v[j], out[j] = zero();
  for (int64_t i = 0; i < key_dim; i++) {
    const V key = set1(keys[i]), query = set1(queries[i]);
    float* row = state + i * kStateColumns;
    LULLM_UNROLL for (int j = 0; j < kColumnVectors; j++) {
      const V moved = fma(key, values[j], mul(factor, load(row + j * kLanes)));
      store(row + j * kLanes, moved);
      out[j] = fma(query, moved, out[j]);
    }
  }
  Columns read;
  LULLM_UNROLL for (int j = 0; j < kColumnVectors; j++) read.v[j] = out[j];
  return read;
}

template <class T>
void recur(const RecurrenceArgs& a, int64_t span, int64_t head, int64_t block, void* scratch) {
  const int64_t column = block * kStateColumns, count = std::min(kStateColumns, a.value_dim - column);
  float* state = static_cast<float*>(scratch);  // [key_dim, kStateColumns]
  float *queries = state + a.key_dim * kStateColumns, *keys = queries + a.padded_key_dim();
  const int64_t first = head * a.key_dim * a.value_dim + column, group = head / (a.num_heads / a.num_groups);
  for (int64_t i = 0; i < a.key_dim; i++) {
    float* row = state + i * kStateColumns;
    if (count < kStateColumns) std::memset(row, 0, kStateColumns * sizeof(float));
    a.state.read(span, first + i * a.value_dim, count, row);
  }
  const bool is_delta = a.betas != nullptr;
  const float rate = -std::exp(a.a_log[head]);
  const int64_t first_row = a.state.first_row(span), end_row = first_row + a.state.num_rows(span);
  for (int64_t token = first_row; token < end_row; token++) {
    widen(row_of<T>(a.queries, token, a.key_stride) + group * a.key_dim, a.key_dim, queries);
    widen(row_of<T>(a.keys, token, a.key_stride) + group * a.key_dim, a.key_dim, keys);
    const T* from = row_of<T>(a.values, token, a.value_stride) + head * a.value_dim + column;
    Columns given, written;
    LULLM_UNROLL for (int j = 0; j < kColumnVectors; j++) {
      const int64_t left = count - j * kLanes;
      given.v[j] = left > 0 ? load_up_to(from + j * kLanes, left) : zero();
    }
    float step = softplus(to_float(row_of<T>(a.steps, token, a.step_stride)[head]) + a.dt_bias[head]);
    if (!is_delta) step = std::min(std::max(step, a.least_step), a.most_step);
    const float decay = std::exp(rate * step);
    if (is_delta) {
      normalize(queries, a.padded_key_dim(), 1.0f / std::sqrt(static_cast<float>(a.key_dim)));
      normalize(keys, a.padded_key_dim(), 1.0f);
      const float beta = 1.0f / (1.0f + std::exp(-to_float(row_of<T>(a.betas, token, a.step_stride)[head])));
      const Columns held = multiply(state, keys, a.key_dim);
      LULLM_UNROLL for (int j = 0; j < kColumnVectors; j++)
        written.v[j] = mul(set1(beta), fnma(set1(decay), held.v[j], given.v[j]));
    } else {
      LULLM_UNROLL for (int j = 0; j < kColumnVectors; j++) written.v[j] = mul(set1(step), given.v[j]);
    }
    Columns out = move_on(state, queries, keys, a.key_dim, decay, written);
    T* y = static_cast<T*>(a.y) + (token * a.num_heads + head) * a.value_dim + column;
    LULLM_UNROLL for (int j = 0; j < kColumnVectors; j++) {
      const int64_t left = count - j * kLanes;
      if (!is_delta) out.v[j] = fma(set1(a.skip[head]), given.v[j], out.v[j]);
      if (left > 0) store_up_to(y + j * kLanes, out.v[j], left);
    }
  }
  for (int64_t i = 0; i < a.key_dim; i++) a.state.write(span, first + i * a.value_dim, count, state + i * kStateColumns);
}

template <class T>
void convolve(const ConvolutionArgs& a, int64_t span, int64_t block, void* scratch) {
  const int64_t channel = block * kConvolvedChannels, count = std::min(kConvolvedChannels, a.num_channels - channel);
  const int64_t num_before = a.kernel_size - 1, num_rows = a.state.num_rows(span), first_row = a.state.first_row(span);
  float *weights = static_cast<float*>(scratch), *window = weights + a.kernel_size * kConvolvedChannels;
  for (int64_t i = 0; i < count; i++) {
    const T* own = static_cast<const T*>(a.weight) + (channel + i) * a.kernel_size;
    for (int64_t k = 0; k < a.kernel_size; k++) weights[k * kConvolvedChannels + i] = to_float(own[k]);
  }
  // The rows that the next one sees, as floats: row r of the sequence is at r modulo the size of the window.
  for (int64_t k = 0; k < num_before; k++)
    a.state.read(span, k * a.num_channels + channel, count, window + (k + 1) * kConvolvedChannels);
  const T* bias = a.bias == nullptr ? nullptr : static_cast<const T*>(a.bias) + channel;
  int64_t newest = 0;
  for (int64_t row = 0; row < num_rows; row++, newest = newest + 1 == a.kernel_size ? 0 : newest + 1) {
    const T* x = row_of<T>(a.x, first_row + row, a.x_stride) + channel;
    T* y = static_cast<T*>(a.y) + (first_row + row) * a.num_channels + channel;
    for (int64_t i = 0; i < count; i += kLanes) {
      const V own = load_up_to(x + i, count - i);
      store(window + newest * kConvolvedChannels + i, own);
      V total = zero();
      int64_t at = newest;
      for (int64_t k = 0; k < num_before; k++) {
        at = at + 1 == a.kernel_size ? 0 : at + 1;
        total = fma(load(window + at * kConvolvedChannels + i), load(weights + k * kConvolvedChannels + i), total);
      }
      total = fma(own, load(weights + num_before * kConvolvedChannels + i), total);
      if (bias != nullptr) total = add(total, load_up_to(bias + i, count - i));
      store_up_to(y + i, a.activates ? silu(total) : total, count - i);
    }
  }
  for (int64_t k = 0; k < num_before; k++) {
    const int64_t at = (newest + k + 1) % a.kernel_size;
    a.state.write(span, k * a.num_channels + channel, count, window + at * kConvolvedChannels);
  }
}

template <class T>
void gated_norm(const GatedNormArgs& a, int64_t first_row, int64_t last_row) {
  for (int64_t row = first_row; row < last_row; row++) {
    for (int64_t group = 0; group < a.num_groups; group++) {
      const T* x = row_of<T>(a.x, row, a.x_stride) + group * a.size;
      const T* gate = row_of<T>(a.gate, row, a.gate_stride) + group * a.size;
      const T* weight = static_cast<const T*>(a.weight) + group * a.weight_stride;
      T* y = static_cast<T*>(a.y) + (row * a.num_groups + group) * a.size;
      const auto value = [&](int64_t i) {
        const V own = load_up_to(x + i, a.size - i);
        return a.gates_first ? mul(own, silu(load_up_to(gate + i, a.size - i))) : own;
      };
      V squares = zero();
      for (int64_t i = 0; i < a.size; i += kLanes) squares = fma(value(i), value(i), squares);
      const V factor = set1(1.0f / std::sqrt(sum(squares) / static_cast<float>(a.size) + a.eps));
      for (int64_t i = 0; i < a.size; i += kLanes) {
        V normed = mul(rounded<T>(mul(value(i), factor)), load_up_to(weight + i, a.size - i));
        if (!a.gates_first) normed = mul(rounded<T>(normed), silu(load_up_to(gate + i, a.size - i)));
        store_up_to(y + i, normed, a.size - i);
      }
    }
  }
}

template <class T>
void multiply_rows(const MultiplyArgs& a, int64_t first_row, int64_t last_row) {
  for (int64_t row = first_row; row < last_row; row++) {
    T* y = static_cast<T*>(a.y) + row * a.y_stride;
    const T* x = row_of<T>(a.x, row, a.x_stride);
    for (int64_t i = 0; i < a.size; i += kLanes) {
      V factor = load_up_to(x + i, a.size - i);
      if (a.gating == kSiluGating) factor = rounded<T>(silu(factor));
      if (a.gating == kSigmoidGating) factor = rounded<T>(sigmoid(factor));
      store_up_to(y + i, mul(load_up_to(y + i, a.size - i), factor), a.size - i);
    }
  }
}

}  // namespace

void fill_state(Kernels& kernels) {
  kernels.recur[kFloat32] = recur<float>;
  kernels.recur[kBFloat16] = recur<Bf16>;
  kernels.convolve[kFloat32] = convolve<float>;
  kernels.convolve[kBFloat16] = convolve<Bf16>;
  kernels.gated_norm[kFloat32] = gated_norm<float>;
  kernels.gated_norm[kBFloat16] = gated_norm<Bf16>;
  kernels.multiply_rows[kFloat32] = multiply_rows<float>;
  kernels.multiply_rows[kBFloat16] = multiply_rows<Bf16>;
}

}  // namespace LULLM_ISA
}  // namespace lullm
