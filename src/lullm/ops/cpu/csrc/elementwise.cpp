// RMSNorm (with residual), LayerNorm, norm + rotation + cache, activations, changes in place: one pass over the rows,
// float32 inside, rounded where the reference rounds.

#include <cmath>
#include <type_traits>

#include "activation.h"
#include "cache_row.h"
#include "kernel_table.h"
#include "simd.h"
#include "thread_pool.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

template <class T>
void rms_norm(const NormArgs& a, int64_t first_row, int64_t last_row) {
  const T* weight = static_cast<const T*>(a.weight);
  for (int64_t row = first_row; row < last_row; row++) {
    for (int64_t head = 0; head < a.num_heads; head++) {
      const T* x = static_cast<const T*>(a.x) + row * a.x_stride + head * a.size;
      T* y = static_cast<T*>(a.y) + row * a.y_stride + head * a.size;
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
void sum_squares(const SharedNormArgs& a, int64_t first_row, int64_t last_row) {
  for (int64_t row = first_row; row < last_row; row++) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    V squares = zero();
    for (int64_t i = 0; i < a.size; i += kLanes) {
      V v = load_up_to(x + i, a.size - i);
      squares = fma(v, v, squares);
    }
    a.squares[row * a.squares_stride] = sum(squares);
  }
}

template <class T>
void norm_by_squares(const SharedNormArgs& a, int64_t first_row, int64_t last_row) {
  const T* weight = static_cast<const T*>(a.weight);
  const float whole_size = static_cast<float>(a.num_shares * a.size);
  for (int64_t row = first_row; row < last_row; row++) {
    T* x = static_cast<T*>(a.x) + row * a.x_stride;
    const V factor = set1(1.0f / std::sqrt(a.squares[row * a.squares_stride] / whole_size + a.eps));
    for (int64_t i = 0; i < a.size; i += kLanes) {
      V normed = rounded<T>(mul(load_up_to(x + i, a.size - i), factor));
      store_up_to(x + i, mul(normed, load_up_to(weight + i, a.size - i)), a.size - i);
    }
  }
}

// One head on its way from the projection to q or the cache, or in place: normed (if there is a weight) with the roundings of
// `rms_norm`, then rotated in pairs (i, i + half).
template <class T>
void rotate(const T* x, const T* weight, float eps, const float* cos, const float* sin, int64_t half, T* y) {
  V factor = set1(1.0f);
  if (weight != nullptr) {
    V squares = zero();
    for (int64_t i = 0; i < 2 * half; i += kLanes) {
      V v = load_up_to(x + i, 2 * half - i);
      squares = fma(v, v, squares);
    }
    factor = set1(1.0f / std::sqrt(sum(squares) / static_cast<float>(2 * half) + eps));
  }
  auto normed = [&](int64_t i, int64_t left) {
    V v = load_up_to(x + i, left);
    if (weight == nullptr) return v;
    return rounded<T>(mul(rounded<T>(mul(v, factor)), load_up_to(weight + i, left)));
  };
  for (int64_t i = 0; i < half; i += kLanes) {
    V c = load_up_to(cos + i, half - i), s = load_up_to(sin + i, half - i);
    V first = normed(i, half - i), second = normed(half + i, half - i);
    store_up_to(y + i, fnma(second, s, mul(first, c)), half - i);
    store_up_to(y + half + i, fma(first, s, mul(second, c)), half - i);
  }
}

// C: of the cache.
template <class T, class C>
void rope_and_cache(const RopeAndCacheArgs& a, int64_t first_row, int64_t last_row) {
  const int64_t half = a.head_size / 2, slot_bytes = a.num_kv_heads * a.row_bytes;
  T* rotated = static_cast<T*>(scratch(kItemScratch, a.head_size * sizeof(T)));
  const T *q_weight = static_cast<const T*>(a.q_weight), *k_weight = static_cast<const T*>(a.k_weight);
  for (int64_t row = first_row; row < last_row; row++) {
    const float* cos = a.cos_sin + a.positions[row] * a.head_size;
    const T* x = static_cast<const T*>(a.qkv) + row * a.qkv_stride;
    T* q = static_cast<T*>(a.q) + row * a.num_q_heads * a.head_size;
    for (int64_t head = 0; head < a.num_q_heads; head++, x += a.head_size, q += a.head_size)
      rotate(x, q_weight, a.eps, cos, cos + half, half, q);
    if (a.slots[row] < 0) continue;
    auto write = [&](char* side, const float* scales, auto&& values_of) {
      char* to = side + a.slots[row] * slot_bytes;
      for (int64_t head = 0; head < a.num_kv_heads; head++, x += a.head_size, to += a.row_bytes)
        write_row(values_of(to), a.head_size, scales == nullptr ? nullptr : scales + head, reinterpret_cast<C*>(to));
    };
    write(a.key_cache, a.key_scales, [&](char* place) -> const T* {
      T* k = std::is_same_v<T, C> ? reinterpret_cast<T*>(place) : rotated;
      rotate(x, k_weight, a.eps, cos, cos + half, half, k);
      return k;
    });
    write(a.value_cache, a.value_scales, [&](char*) { return x; });
  }
}

template <class T, class C>
void write_cache(const WriteCacheArgs& a, int64_t first_row, int64_t last_row) {
  for (int64_t row = first_row; row < last_row; row++) {
    if (a.slots[row] < 0) continue;
    const T* x = static_cast<const T*>(a.x) + row * a.stride;
    char* to = a.side + a.slots[row] * a.num_heads * a.row_bytes;
    for (int64_t head = 0; head < a.num_heads; head++, x += a.head_size, to += a.row_bytes)
      write_row(x, a.head_size, a.scales == nullptr ? nullptr : a.scales + head, reinterpret_cast<C*>(to));
  }
}

template <class T>
void fill_write_cache(WriteCache (&by_format)[kNumCacheFormats]) {
  by_format[kPlainCache] = write_cache<T, T>;
  by_format[kInt8Cache] = write_cache<T, Int8>;
  by_format[kFloat8Cache] = write_cache<T, Float8>;
}

template <class T>
void fill_rope_and_cache(RopeAndCache (&by_format)[kNumCacheFormats]) {
  by_format[kPlainCache] = rope_and_cache<T, T>;
  by_format[kInt8Cache] = rope_and_cache<T, Int8>;
  by_format[kFloat8Cache] = rope_and_cache<T, Float8>;
}

// Two passes: the mean, then the mean square of what is left; rounded once.
template <class T>
void layer_norm(const LayerNormArgs& a, int64_t first_row, int64_t last_row) {
  const T *weight = static_cast<const T*>(a.weight), *bias = static_cast<const T*>(a.bias);
  for (int64_t row = first_row; row < last_row; row++) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    T* y = static_cast<T*>(a.y) + row * a.size;
    V total = zero(), squares = zero();
    for (int64_t i = 0; i < a.size; i += kLanes) total = add(total, load_up_to(x + i, a.size - i));
    const V mean = set1(sum(total) / static_cast<float>(a.size));
    for (int64_t i = 0; i < a.size; i += kLanes) {
      const V left = keep_below(sub(load_up_to(x + i, a.size - i), mean), i, a.size, 0.0f);
      squares = fma(left, left, squares);
    }
    const V factor = set1(1.0f / std::sqrt(sum(squares) / static_cast<float>(a.size) + a.eps));
    for (int64_t i = 0; i < a.size; i += kLanes) {
      const V normed = mul(sub(load_up_to(x + i, a.size - i), mean), factor);
      const V scaled = mul(normed, load_up_to(weight + i, a.size - i));
      store_up_to(y + i, bias == nullptr ? scaled : add(scaled, load_up_to(bias + i, a.size - i)), a.size - i);
    }
  }
}

template <class T>
void activate_rows(const ActivationArgs& a, int64_t first_row, int64_t last_row) {
  for (int64_t row = first_row; row < last_row; row++) {
    const T* x = static_cast<const T*>(a.x) + row * a.stride;
    T* y = static_cast<T*>(a.y) + row * a.size;
    for (int64_t i = 0; i < a.size; i += kLanes) {
      V v = activate(a.activation, load_up_to(x + i, a.size - i));
      if (a.has_ups) v = mul(v, load_up_to(x + a.size + i, a.size - i));
      store_up_to(y + i, v, a.size - i);
    }
  }
}

template <class T, class Change>
void change(T* y, int64_t first, int64_t last, Change&& changed) {
  for (int64_t i = first; i < last; i += kLanes) store_up_to(y + i, changed(load_up_to(y + i, last - i), i), last - i);
}

template <class T>
void xielu(const XieluArgs& a, int64_t first, int64_t last) {
  const auto number = [](const void* at) { return to_float(*static_cast<const T*>(at)); };
  const auto log1p_exp = [](float x) { return std::max(x, 0.0f) + std::log1p(std::exp(-std::abs(x))); };
  const float least = number(a.beta);
  const V p = set1(log1p_exp(number(a.alpha_p))), n = set1(least + log1p_exp(number(a.alpha_n)));
  const V beta = set1(least), eps = set1(number(a.eps));
  change(static_cast<T*>(a.y), first, last, [&](V x, int64_t) {
    const V below = mul(n, sub(sub(exp(min(x, eps)), set1(1.0f)), x));
    return fma(beta, x, select_negative(x, below, mul(p, mul(x, x))));
  });
}

template <class T>
void add_elements(const InPlaceArgs& a, int64_t first, int64_t last) {
  const T* x = static_cast<const T*>(a.x);
  change(static_cast<T*>(a.y), first, last, [&](V y, int64_t i) { return add(y, load_up_to(x + i, last - i)); });
}

template <class T>
void scale_elements(const InPlaceArgs& a, int64_t first, int64_t last) {
  const V factor = set1(a.value);
  change(static_cast<T*>(a.y), first, last, [&](V y, int64_t) { return mul(y, factor); });
}

template <class T>
void soft_cap_elements(const InPlaceArgs& a, int64_t first, int64_t last) {
  const V cap = set1(a.value);
  change(static_cast<T*>(a.y), first, last, [&](V y, int64_t) { return soft_cap(y, cap); });
}

template <class T>
void scale_elements_by(const InPlaceArgs& a, int64_t first, int64_t last) {
  const V factor = set1(to_float(*static_cast<const T*>(a.x)));
  change(static_cast<T*>(a.y), first, last, [&](V y, int64_t) { return mul(y, factor); });
}

template <class T>
void rotate_rows(const RotateArgs& a, int64_t first_row, int64_t last_row) {
  const int64_t half = a.head_size / 2;
  for (int64_t row = first_row; row < last_row; row++) {
    const float* cos = a.cos_sin + a.positions[row] * a.head_size;
    T* x = static_cast<T*>(a.x) + row * a.row_stride;
    for (int64_t head = 0; head < a.num_heads; head++, x += a.head_stride)
      rotate(x, static_cast<const T*>(a.weight), a.eps, cos, cos + half, half, x);
  }
}

}  // namespace

void fill_elementwise(Kernels& kernels) {
  kernels.scale_by[kFloat32] = scale_elements_by<float>;
  kernels.scale_by[kBFloat16] = scale_elements_by<Bf16>;
  kernels.rotate[kFloat32] = rotate_rows<float>;
  kernels.rotate[kBFloat16] = rotate_rows<Bf16>;
  kernels.add[kFloat32] = add_elements<float>;
  kernels.add[kBFloat16] = add_elements<Bf16>;
  kernels.scale[kFloat32] = scale_elements<float>;
  kernels.scale[kBFloat16] = scale_elements<Bf16>;
  kernels.soft_cap[kFloat32] = soft_cap_elements<float>;
  kernels.soft_cap[kBFloat16] = soft_cap_elements<Bf16>;
  kernels.rms_norm[kFloat32] = rms_norm<float>;
  kernels.rms_norm[kBFloat16] = rms_norm<Bf16>;
  kernels.sum_squares[kFloat32] = sum_squares<float>;
  kernels.sum_squares[kBFloat16] = sum_squares<Bf16>;
  kernels.norm_by_squares[kFloat32] = norm_by_squares<float>;
  kernels.norm_by_squares[kBFloat16] = norm_by_squares<Bf16>;
  fill_write_cache<float>(kernels.write_cache[kFloat32]);
  fill_write_cache<Bf16>(kernels.write_cache[kBFloat16]);
  fill_rope_and_cache<float>(kernels.rope_and_cache[kFloat32]);
  fill_rope_and_cache<Bf16>(kernels.rope_and_cache[kBFloat16]);
  kernels.layer_norm[kFloat32] = layer_norm<float>;
  kernels.layer_norm[kBFloat16] = layer_norm<Bf16>;
  kernels.xielu[kFloat32] = xielu<float>;
  kernels.xielu[kBFloat16] = xielu<Bf16>;
  kernels.activate[kFloat32] = activate_rows<float>;
  kernels.activate[kBFloat16] = activate_rows<Bf16>;
}

}  // namespace LULLM_ISA
}  // namespace lullm
