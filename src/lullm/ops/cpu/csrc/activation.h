// The activations of an MLP, of vectors: each element by itself, in float32.
#pragma once

#include "simd.h"

namespace lullm {
namespace LULLM_ISA {

// e**x for the denominators below, kept finite: x / (1 + e**88) is 0 to every digit.
static inline V bounded_exp(V x) { return exp(min(x, set1(88.0f))); }

static inline V silu(V x) { return div(x, add(set1(1.0f), bounded_exp(sub(zero(), x)))); }

// x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x**3), which is x / (1 + e**-2u).
static inline V gelu_tanh(V x) {
  const V cubic = fma(mul(x, x), set1(0.044715f), set1(1.0f));
  return div(x, add(set1(1.0f), bounded_exp(mul(mul(x, cubic), set1(-2 * 0.7978845608f)))));
}

// x erfc(-x / sqrt(2)) / 2; erfc by the rational Chebyshev fit of Numerical Recipes (6.2.2), within 1.2e-7 of its value.
static inline V gelu(V x) {
  const V scaled = mul(x, set1(0.7071067812f)), z = max(scaled, sub(zero(), scaled));
  const V t = div(set1(1.0f), fma(z, set1(0.5f), set1(1.0f)));
  constexpr float kTerms[] = {0.17087277f, -0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f,
                              -0.18628806f, 0.09678418f, 0.37409196f, 1.00002368f, -1.26551223f};
  V power = zero();
  for (const float term : kTerms) power = fma(power, t, set1(term));
  const V upper = mul(mul(t, exp(fnma(z, z, power))), set1(0.5f));  // of the normal distribution, beyond |x|
  // Phi(x) is that for negative x, and what it leaves of 1 otherwise.
  return mul(x, select_negative(x, upper, sub(set1(1.0f), upper)));
}

static inline V relu(V x) { return max(zero(), x); }  // in this order NaN stays

static inline V relu2(V x) { return mul(relu(x), relu(x)); }

[[gnu::noinline]] static V activate_otherwise(Activation activation, V x) {
  return activation == kGelu ? gelu(x) : activation == kGeluTanh ? gelu_tanh(x) : activation == kRelu2 ? relu2(x) : relu(x);
}
// Only the commonest one is inlined, because gates are applied between the products of tiles.
static inline V activate(Activation activation, V x) {
  return activation == kSilu ? silu(x) : activate_otherwise(activation, x);
}

// cap tanh(y / cap); tanh(u) is (1 - e**-2|u|) / (1 + e**-2|u|) with the sign of u, within 1e-7.
static inline V soft_cap(V y, V cap) {
  const V u = div(y, cap), size = max(sub(zero(), u), u);
  const V power = exp(mul(size, set1(-2.0f)));
  // No tanh is larger than its argument; and in this order NaN stays.
  const V capped = mul(cap, min(div(sub(set1(1.0f), power), add(set1(1.0f), power)), size));
  return select_negative(u, sub(zero(), capped), capped);
}

static inline V sigmoid(V x) { return div(set1(1.0f), add(set1(1.0f), bounded_exp(sub(zero(), x)))); }

// (up + 1) gate sigmoid(alpha gate), gates at most `limit`, ups within it on both sides. The limit comes first: NaN stays.
[[gnu::noinline, maybe_unused]] static V clamped_gate(V gates, V ups, float alpha, float limit) {
  gates = min(set1(limit), gates);
  ups = max(set1(-limit), min(set1(limit), ups));
  return mul(add(ups, set1(1.0f)), mul(gates, sigmoid(mul(gates, set1(alpha)))));
}

// As the arguments of a product say.
template <class Args>
static inline V gate(const Args& a, V gates, V ups) {
  if (a.activation == kClampedSilu) return clamped_gate(gates, ups, a.alpha, a.limit);
  return mul(activate(a.activation, gates), ups);
}

}  // namespace LULLM_ISA
}  // namespace lullm
