// Every head of some rows times a matrix of its own, whose rows lie as a checkpoint has them. Where rows are few, reading
// the matrices is what takes time: sums are float32, in an order that the row alone decides. For many rows a matrix is
// packed as one of a linear layer.

#include <algorithm>
#include <cstring>

#include "kernel_table.h"
#include "simd.h"
#include "thread_pool.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

constexpr int64_t kInputs = 4;  // that one pass over the sums takes

// sums [rows, padded_out] += x [rows, in] times w [in, out].
template <class T>
void add_by_inputs(const float* x, int64_t num_rows, int64_t in, int64_t out, int64_t padded_out, const T* w, float* sums) {
  for (int64_t i = 0; i < in; i += kInputs) {
    const int64_t count = std::min(kInputs, in - i);
    for (int64_t o = 0; o < out; o += kLanes) {
      V columns[kInputs];
      for (int64_t k = 0; k < kInputs; k++) columns[k] = k < count ? load_up_to(w + (i + k) * out + o, out - o) : zero();
      for (int64_t row = 0; row < num_rows; row++) {
        const float* own = x + row * (in + kInputs) + i;
        V total = load(sums + row * padded_out + o);
        for (int64_t k = 0; k < kInputs; k++) total = fma(columns[k], set1(own[k]), total);
        store(sums + row * padded_out + o, total);
      }
    }
  }
}

// sums [rows, padded_out] = x [rows, in] times w [out, in].
template <class T>
void add_by_outputs(const float* x, int64_t num_rows, int64_t in, int64_t out, int64_t padded_out, const T* w, float* sums) {
  constexpr int64_t kOutputs = 4;
  for (int64_t o = 0; o < out; o += kOutputs) {
    const int64_t count = std::min(kOutputs, out - o);
    for (int64_t row = 0; row < num_rows; row++) {
      const float* own = x + row * (in + kInputs);
      V totals[kOutputs] = {zero(), zero(), zero(), zero()};
      for (int64_t i = 0; i < in; i += kLanes) {
        const V inputs = load_up_to(own + i, in - i);
        for (int64_t k = 0; k < kOutputs; k++) {
          const T* matrix_row = w + (o + std::min(k, count - 1)) * in;
          totals[k] = fma(load_up_to(matrix_row + i, in - i), inputs, totals[k]);
        }
      }
      for (int64_t k = 0; k < count; k++) sums[row * padded_out + o + k] = sum(totals[k]);
    }
  }
}

template <class T>
void multiply_head(const HeadProductArgs& a, int64_t head, int64_t first_row, int64_t last_row) {
  const int64_t num_rows = last_row - first_row, padded_out = (a.out + kLanes - 1) / kLanes * kLanes;
  float* x = static_cast<float*>(scratch(kItemScratch, num_rows * (a.in + kInputs + padded_out) * sizeof(float)));
  float* sums = x + num_rows * (a.in + kInputs);
  for (int64_t row = 0; row < num_rows; row++) {
    const T* from = static_cast<const T*>(a.x) + (first_row + row) * a.x_row_stride + head * a.x_head_stride;
    for (int64_t i = 0; i < a.in; i++) x[row * (a.in + kInputs) + i] = to_float(from[i]);
    std::fill_n(x + row * (a.in + kInputs) + a.in, kInputs, 0.0f);
  }
  const T* w = static_cast<const T*>(a.weight) + head * a.weight_stride;
  std::fill_n(sums, num_rows * padded_out, 0.0f);
  (a.is_by_inputs ? add_by_inputs<T> : add_by_outputs<T>)(x, num_rows, a.in, a.out, padded_out, w, sums);
  for (int64_t row = 0; row < num_rows; row++) {
    const T* kept = static_cast<const T*>(a.x) + (first_row + row) * a.x_row_stride + head * a.x_head_stride + a.in;
    T* y = static_cast<T*>(a.y) + ((first_row + row) * a.num_heads + head) * (a.out + a.num_kept);
    for (int64_t o = 0; o < a.out; o += kLanes) store_up_to(y + o, load(sums + row * padded_out + o), a.out - o);
    std::copy_n(kept, a.num_kept, y + a.out);
  }
}

// A line of a tile: 16 outputs of `w` [inputs, out], four bytes of inputs each.
void join_inputs(const float* w, int64_t, float* line) { std::memcpy(line, w, 64); }
void join_inputs(const Bf16* w, int64_t out, Bf16* line) {
  for (int i = 0; i < kTileRows; i++) line[2 * i] = w[i], line[2 * i + 1] = w[out + i];
}

template <class T>
void pack_head(const HeadProductArgs& a, int64_t head, void* packed) {
  constexpr int64_t kUnit = 4 / sizeof(T);
  const T* w = static_cast<const T*>(a.weight) + head * a.weight_stride;
  T* to = static_cast<T*>(packed);
  for (int64_t panel = 0; panel < a.out; panel += kPanelRows) {
    for (int64_t i = 0; i < a.in; i += kTileUnits * kUnit) {
      for (int64_t o = panel; o < panel + kPanelRows; o += kTileRows, to += kTileBytes / sizeof(T)) {
        if (!a.is_by_inputs) {
          transpose(reinterpret_cast<const char*>(w + o * a.in + i), a.in * sizeof(T), reinterpret_cast<char*>(to), kTileUnits * 4);
        } else {
          for (int64_t unit = 0; unit < kTileUnits; unit++)
            join_inputs(w + (i + unit * kUnit) * a.out + o, a.out, to + unit * kTileRows * kUnit);
        }
      }
    }
  }
}

}  // namespace

void fill_head_products(Kernels& kernels) {
  kernels.multiply_head[kFloat32] = multiply_head<float>;
  kernels.multiply_head[kBFloat16] = multiply_head<Bf16>;
  kernels.pack_head[kFloat32] = pack_head<float>;
  kernels.pack_head[kBFloat16] = pack_head<Bf16>;
}

}  // namespace LULLM_ISA
}  // namespace lullm
