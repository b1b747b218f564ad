// Shares of pieces, folded from first to last into a row's result: the same few operations wherever they were computed.
#pragma once

#include <cmath>
#include <type_traits>

#include "../simd.h"
#include "arguments.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

// Where a row's sums lie: 16 elements of the head side by side, the next 16 `stride` floats further.
struct Sums {
  const float* values;
  int64_t stride;
};

// Calls body(d, elements d to d + 15 of the head). E: the order of the sums; of Bf16 the even of 32 elements of the head lie
// before the odd ones (`packed.h`).
template <class E, class Body>
inline void for_elements(int64_t head_size, Sums sums, Body&& body) {
  int64_t d = 0;
  for (; std::is_same_v<E, Bf16> && d + 2 * kLanes <= head_size; d += 2 * kLanes, sums.values += 2 * sums.stride) {
    V first, second;
    interleave(load(sums.values), load(sums.values + sums.stride), first, second);
    body(d, first);
    body(d + kLanes, second);
  }
  for (; d < head_size; d += kLanes, sums.values += sums.stride) body(d, load(sums.values));
}

inline float& base_of(float* share, int64_t head_size) { return share[head_size]; }
inline float& total_of(float* share, int64_t head_size) { return share[head_size + 1]; }

inline void clear(float* share, int64_t head_size) {
  base_of(share, head_size) = -INFINITY;
  total_of(share, head_size) = 0;
}

// Adds what comes later in the sequence; a base of minus infinity stands for a piece in which the row sees nothing.
template <class E>
void fold(float* share, int64_t head_size, float base, float total, Sums sums) {
  if (base == -INFINITY) return;
  float& own_base = base_of(share, head_size);
  float& own_total = total_of(share, head_size);
  if (own_base == -INFINITY) {
    own_base = base, own_total = total;
    for_elements<E>(head_size, sums, [&](int64_t d, V own) { store(share + d, own); });
    return;
  }
  const float top = std::fmax(own_base, base), before = std::exp2(own_base - top), now = std::exp2(base - top);
  own_base = top;
  own_total = std::fma(total, now, own_total * before);
  for_elements<E>(head_size, sums, [&](int64_t d, V own) {
    store(share + d, fma(own, set1(now), mul(load(share + d), set1(before))));
  });
}

// A row's result of all its keys.
template <class E, class T>
void write(T* out, int64_t head_size, float total, Sums sums) {
  const V factor = set1(1.0f / total);
  for_elements<E>(head_size, sums, [&](int64_t d, V own) { store(out + d, mul(own, factor)); });
}

// The result of a row of one query head from its shares of `count` pieces, `stride` floats apart. The first becomes it.
template <class T>
void merge(float* shares, int64_t stride, int64_t count, int64_t head_size, const float* sink, void* out) {
  for (int64_t i = 1; i < count; i++) {
    float* share = shares + i * stride;
    fold<float>(shares, head_size, base_of(share, head_size), total_of(share, head_size), {share, kLanes});
  }
  const float total = with_sink(total_of(shares, head_size), base_of(shares, head_size), sink);
  write<float>(static_cast<T*>(out), head_size, total, {shares, kLanes});
}

}  // namespace
}  // namespace LULLM_ISA
}  // namespace lullm
