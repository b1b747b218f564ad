// Experts, a row at a time: which of them a row uses and how much; clamped gates; the sum of their results.
//
// All sums are float32, in an order that the row alone decides.

#include <algorithm>
#include <limits>
#include <numeric>

#include "../activation.h"
#include "../kernel_table.h"
#include "../simd.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

template <class T>
void score(const T* x, int64_t count, bool is_sigmoid, float* scores) {
  if (is_sigmoid) {
    for (int64_t i = 0; i < count; i += kLanes) store(scores + i, sigmoid(load_up_to(x + i, count - i)));
    return;
  }
  constexpr float kLeast = -std::numeric_limits<float>::infinity();
  V most = set1(kLeast), total = zero();
  for (int64_t i = 0; i < count; i += kLanes) most = max(most, keep_below(load_up_to(x + i, count - i), i, count, kLeast));
  const V base = set1(largest(most));
  for (int64_t i = 0; i < count; i += kLanes) {
    const V power = keep_below(exp(sub(load_up_to(x + i, count - i), base)), i, count, 0.0f);
    store(scores + i, power);
    total = add(total, power);
  }
  const V inverse = set1(1.0f / sum(total));
  for (int64_t i = 0; i < count; i += kLanes) store(scores + i, mul(load(scores + i), inverse));
}

// The places of the `most` largest of `count` values, the largest first; of equal ones the first.
void choose(const float* values, int64_t count, int64_t most, float* best, int32_t* chosen) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; i++) {
    if (found == most && !(values[i] > best[most - 1])) continue;
    int64_t at = found < most ? found++ : most - 1;
    for (; at > 0 && values[i] > best[at - 1]; at--) best[at] = best[at - 1], chosen[at] = chosen[at - 1];
    best[at] = values[i], chosen[at] = static_cast<int32_t>(i);
  }
}

// Leaves only the best groups: those whose best experts have the largest sum.
void keep_best_groups(const RouteArgs& a, float* ranked, float* group_scores, float* best, int32_t* chosen) {
  const int64_t size = a.num_experts / a.num_groups, count = std::min(size, a.num_group_scores);
  for (int64_t group = 0; group < a.num_groups; group++) {
    choose(ranked + group * size, size, count, best, chosen);
    group_scores[group] = std::accumulate(best, best + count, 0.0f);
  }
  choose(group_scores, a.num_groups, a.num_used_groups, best, chosen);
  for (int64_t group = 0; group < a.num_groups; group++) {
    if (std::find(chosen, chosen + a.num_used_groups, group) == chosen + a.num_used_groups)
      std::fill_n(ranked + group * size, size, -std::numeric_limits<float>::infinity());
  }
}

template <class T>
void route(const RouteArgs& a, int64_t first_row, int64_t last_row, void* scratch) {
  const int64_t padded = (a.num_experts + kLanes - 1) / kLanes * kLanes;
  float *scores = static_cast<float*>(scratch), *ranked = scores + padded, *best = ranked + padded;
  float* group_scores = best + a.num_used + a.num_experts;  // groups, and their best, are chosen too
  int32_t* chosen = reinterpret_cast<int32_t*>(group_scores + a.num_groups);
  for (int64_t row = first_row; row < last_row; row++) {
    score(static_cast<const T*>(a.products) + row * a.stride, a.num_experts, a.is_sigmoid, scores);
    for (int64_t i = 0; i < a.num_experts; i++) ranked[i] = a.correction == nullptr ? scores[i] : scores[i] + a.correction[i];
    if (a.num_used_groups < a.num_groups) keep_best_groups(a, ranked, group_scores, best, chosen);
    choose(ranked, a.num_experts, a.num_used, best, chosen);
    std::sort(chosen, chosen + a.num_used);
    float whole = 0;
    for (int64_t i = 0; i < a.num_used; i++) whole += scores[chosen[i]];
    for (int64_t i = 0; i < a.num_used; i++) {
      a.experts[row * a.num_used + i] = chosen[i];
      const float share = scores[chosen[i]];
      const float factor = a.factors == nullptr ? a.scale : a.scale * a.factors[chosen[i]];
      a.shares[row * a.num_used + i] = (a.normalizes ? share / (whole + 1e-20f) : share) * factor;
    }
  }
}

template <class T>
void gate_rows(const ClampedGateArgs& a, int64_t first_row, int64_t last_row) {
  for (int64_t row = first_row; row < last_row; row++) {
    const T* x = static_cast<const T*>(a.x) + row * 2 * a.size;
    T* y = static_cast<T*>(a.y) + row * a.size;
    for (int64_t i = 0; i < a.size; i += kLanes) {
      const V gates = load_up_to(x + i, a.size - i), ups = load_up_to(x + a.size + i, a.size - i);
      store_up_to(y + i, clamped_gate(gates, ups, a.alpha, a.limit), a.size - i);
    }
  }
}

template <class T>
void mix(const MixArgs& a, int64_t first_row, int64_t last_row) {
  const T *parts = static_cast<const T*>(a.parts), *shared = static_cast<const T*>(a.shared);
  for (int64_t row = first_row; row < last_row; row++) {
    const int64_t* places = a.places + row * a.num_used;
    const float* shares = a.shares + row * a.num_used;
    V share = set1(1.0f);
    if (a.shared_gate != nullptr) share = sigmoid(set1(to_float(static_cast<const T*>(a.shared_gate)[row])));
    for (int64_t i = 0; i < a.size; i += kLanes) {
      V total = zero();
      for (int64_t k = 0; k < a.num_used; k++) {
        if (places[k] < a.first_place || places[k] >= a.last_place) continue;
        total = fma(load_up_to(parts + places[k] * a.size + i, a.size - i), set1(shares[k]), total);
      }
      if (shared != nullptr) total = fma(load_up_to(shared + row * a.stride + i, a.size - i), share, total);
      store_up_to(static_cast<T*>(a.y) + row * a.stride + i, total, a.size - i);
    }
  }
}

}  // namespace

void fill_experts(Kernels& kernels) {
  kernels.route[kFloat32] = route<float>;
  kernels.route[kBFloat16] = route<Bf16>;
  kernels.clamped_gate[kFloat32] = gate_rows<float>;
  kernels.clamped_gate[kBFloat16] = gate_rows<Bf16>;
  kernels.mix[kFloat32] = mix<float>;
  kernels.mix[kBFloat16] = mix<Bf16>;
}

}  // namespace LULLM_ISA
}  // namespace lullm
