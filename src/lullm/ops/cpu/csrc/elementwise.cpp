// RMSNorm (with residual), rotation, silu-mul: one pass over the rows, float32 inside, rounded where the reference rounds.

#include <cmath>

#include "kernel_table.h"
#include "simd.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

template <class T>
void rms_norm(const NormArgs& a, int64_t first_row, int64_t last_row) {
  const T* weight = static_cast<const T*>(a.weight);
  for (int64_t row = first_row; row < last_row; row++) {
    for (int64_t head = 0; head < a.num_heads; head++) {
      const T* x = static_cast<const T*>(a.x) + row * a.x_stride + head * a.size;
      T* y = static_cast<T*>(a.y) + (row * a.num_heads + head) * a.size;
      V squares = zero();
      if (a.residual != nullptr) {
        const T* residual = static_cast<const T*>(a.residual) + row * a.size;
        T* total = static_cast<T*>(a.total) + row * a.size;
        for (int64_t i = 0; i < a.size; i += kLanes) {
          V v = rounded<T>(add(load_up_to(x + i, a.size - i), load_up_to(residual + i, a.size - i)));
          store_up_to(total + i, v, a.size - i);
          squares = fma(v, v, squares);
        }
        x = total;
      } else {
        for (int64_t i = 0; i < a.size; i += kLanes) {
          V v = load_up_to(x + i, a.size - i);
          squares = fma(v, v, squares);
        }
      }
      V factor = set1(1.0f / std::sqrt(sum(squares) / static_cast<float>(a.size) + a.eps));
      for (int64_t i = 0; i < a.size; i += kLanes) {
        V normed = rounded<T>(mul(load_up_to(x + i, a.size - i), factor));
        store_up_to(y + i, mul(normed, load_up_to(weight + i, a.size - i)), a.size - i);
      }
    }
  }
}

template <class T>
void rotate(T* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i += kLanes) {
    V c = load_up_to(cos + i, half - i), s = load_up_to(sin + i, half - i);
    V first = load_up_to(x + i, half - i), second = load_up_to(x + half + i, half - i);
    store_up_to(x + i, fnma(second, s, mul(first, c)), half - i);
    store_up_to(x + half + i, fma(first, s, mul(second, c)), half - i);
  }
}

template <class T>
void rope(const RopeArgs& a, int64_t first_row, int64_t last_row) {
  const int64_t half = a.head_size / 2;
  for (int64_t row = first_row; row < last_row; row++) {
    const float* cos = a.cos_sin + a.positions[row] * a.head_size;
    T* q = static_cast<T*>(a.q) + row * a.q_stride;
    T* k = static_cast<T*>(a.k) + row * a.k_stride;
    for (int64_t head = 0; head < a.num_q_heads; head++) rotate(q + head * a.head_size, cos, cos + half, half);
    for (int64_t head = 0; head < a.num_kv_heads; head++) rotate(k + head * a.head_size, cos, cos + half, half);
  }
}

template <class T>
void silu_mul(const SiluMulArgs& a, int64_t first_row, int64_t last_row, int64_t first, int64_t last) {
  for (int64_t row = first_row; row < last_row; row++) {
    const T* gate = static_cast<const T*>(a.gate_up) + row * a.stride;
    const T* up = gate + a.size;
    T* y = static_cast<T*>(a.y) + row * a.size;
    for (int64_t i = first; i < last; i += kLanes) {
      V g = load_up_to(gate + i, last - i);
      V grown = min(sub(zero(), g), set1(88.0f));  // e**-g, kept finite: g / (1 + e**88) is 0 to every digit
      store_up_to(y + i, mul(div(g, add(set1(1.0f), exp(grown))), load_up_to(up + i, last - i)), last - i);
    }
  }
}

}  // namespace

void fill_elementwise(Kernels& kernels) {
  kernels.rms_norm[kFloat32] = rms_norm<float>;
  kernels.rms_norm[kBFloat16] = rms_norm<Bf16>;
  kernels.rope[kFloat32] = rope<float>;
  kernels.rope[kBFloat16] = rope<Bf16>;
  kernels.silu_mul[kFloat32] = silu_mul<float>;
  kernels.silu_mul[kBFloat16] = silu_mul<Bf16>;
}

}  // namespace LULLM_ISA
}  // namespace lullm
