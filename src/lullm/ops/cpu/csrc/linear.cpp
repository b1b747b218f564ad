// Linear layers over packed weights, one panel of 32 outputs at a time, with vectors; and packing itself.
//
// With one row of activations the weights are read once, in order, and nothing else costs: what counts is the prefetch.

#include "kernel_table.h"
#include "simd.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

// Far enough to cover the memory's latency at full speed. Into the second-level cache: 33 GB/s, against 30 into the
// first, 28 from twice as far, and 23 to 28 without.
constexpr int64_t kPrefetchBytes = 4096;

#if defined(__AVX512F__)
constexpr int kMaxRows = 8;  // accumulators of 8 rows by 2 tiles fill half of the 32 registers
#else
constexpr int kMaxRows = 2;
#endif

#if defined(__AVX512BF16__)
constexpr bool kHasBf16Dot = true;
#else
constexpr bool kHasBf16Dot = false;
#endif

// What the activations are read as: pairs of bf16 for the dot product, floats otherwise.
template <class T>
struct Activation {
  using Type = float;
};
#if defined(__AVX512BF16__)
template <>
struct Activation<Bf16> {
  using Type = Bf16;
};
#endif

// acc + the 16 weights (or pairs) at `w` times unit `unit` of x.
inline V multiply_unit(V acc, const float* w, const float* x, int64_t unit) { return fma(load(w), set1(x[unit]), acc); }
#if defined(__AVX512BF16__)
inline V multiply_unit(V acc, const Bf16* w, const Bf16* x, int64_t unit) {
  int32_t pair;
  std::memcpy(&pair, x + 2 * unit, 4);
  return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_loadu_si512(w), (__m512bh)_mm512_set1_epi32(pair));
}
#else
inline V multiply_unit(V acc, const Bf16* w, const float* x, int64_t unit) {
  return fma(odd(w), set1(x[2 * unit + 1]), fma(even(w), set1(x[2 * unit]), acc));
}
#endif

// The products of kRows rows at `x` with a panel, bias included.
template <class T, int kRows>
inline void multiply_panel(const LinearArgs& a, const typename Activation<T>::Type* x, int64_t x_stride, int64_t panel,
                           V (*totals)[2]) {
  constexpr int kSplit = kRows == 1 ? 4 : kRows == 2 ? 2 : 1;  // enough independent sums to hide the latency
  constexpr int64_t kTileElements = kTileBytes / sizeof(T);
  constexpr int64_t kLine = 64 / sizeof(T);
  const T* w = static_cast<const T*>(a.weight) + panel * kPanelRows * a.in;
  V acc[kRows][2][kSplit];
  LULLM_UNROLL for (int r = 0; r < kRows; r++)
    LULLM_UNROLL for (int s = 0; s < kSplit; s++) acc[r][0][s] = acc[r][1][s] = zero();
  const int64_t num_units = units_of(a.in, sizeof(T) == 4 ? kFloat32 : kBFloat16);
  for (int64_t first = 0; first < num_units; first += kTileUnits) {
    for (int unit = 0; unit < kTileUnits; unit += kSplit) {
      LULLM_UNROLL for (int s = 0; s < kSplit; s++) {
        const T* line = w + (unit + s) * kLine;
        _mm_prefetch(reinterpret_cast<const char*>(line) + kPrefetchBytes, _MM_HINT_T1);
        _mm_prefetch(reinterpret_cast<const char*>(line + kTileElements) + kPrefetchBytes, _MM_HINT_T1);
        LULLM_UNROLL for (int r = 0; r < kRows; r++) {
          acc[r][0][s] = multiply_unit(acc[r][0][s], line, x + r * x_stride, first + unit + s);
          acc[r][1][s] = multiply_unit(acc[r][1][s], line + kTileElements, x + r * x_stride, first + unit + s);
        }
      }
    }
    w += 2 * kTileElements;
  }
  LULLM_UNROLL for (int r = 0; r < kRows; r++) {
    LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
      V total = acc[r][tile][0];
      LULLM_UNROLL for (int s = 1; s < kSplit; s++) total = add(total, acc[r][tile][s]);
      if (a.bias != nullptr)
        total = add(total, load(static_cast<const T*>(a.bias) + panel * kPanelRows + tile * kTileRows));
      totals[r][tile] = total;
    }
  }
}

template <class T, int kRows>
void linear_panel(const LinearArgs& a, const typename Activation<T>::Type* x, int64_t x_stride, int64_t row,
                  int64_t panel) {
  V totals[2][kRows][2];
  x += row * x_stride;
  multiply_panel<T, kRows>(a, x, x_stride, panel, totals[0]);
  if (a.silu_mul) multiply_panel<T, kRows>(a, x, x_stride, panel + a.out_of_side() / kPanelRows, totals[1]);
  LULLM_UNROLL for (int r = 0; r < kRows; r++) {
    LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
      V result = a.silu_mul ? silu_mul(totals[0][r][tile], totals[1][r][tile]) : totals[0][r][tile];
      const int64_t at = (row + r) * a.y_stride + panel * kPanelRows + tile * kTileRows;
      if (a.y_is_float) store(static_cast<float*>(a.y) + at, result);
      else store(static_cast<T*>(a.y) + at, result);
    }
  }
}

template <class T>
void linear_panels(const LinearArgs& a, int64_t first_row, int64_t last_row, int64_t first_panel, int64_t last_panel,
                   void*) {
  using X = typename Activation<T>::Type;
  const bool as_it_is = a.x_prepared == nullptr;
  const X* x = static_cast<const X*>(as_it_is ? a.x : a.x_prepared);
  const int64_t x_stride = as_it_is ? a.x_stride : a.in;
  for (int64_t panel = first_panel; panel < last_panel; panel++) {
    int64_t row = first_row;
    if constexpr (kMaxRows >= 8) {
      for (; row + 8 <= last_row; row += 8) linear_panel<T, 8>(a, x, x_stride, row, panel);
      if (row + 4 <= last_row) linear_panel<T, 4>(a, x, x_stride, row, panel), row += 4;
    }
    for (; row + 2 <= last_row; row += 2) linear_panel<T, 2>(a, x, x_stride, row, panel);
    if (row < last_row) linear_panel<T, 1>(a, x, x_stride, row, panel);
  }
}

int64_t bytes_of_floats(const LinearArgs& a) { return a.num_rows * a.in * 4; }
int64_t no_bytes(const LinearArgs&) { return 0; }

void rows_to_floats(const LinearArgs& a, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; row++) {
    const Bf16* x = static_cast<const Bf16*>(a.x) + row * a.x_stride;
    float* to = static_cast<float*>(a.x_prepared) + row * a.in;
    for (int64_t i = 0; i < a.in; i += kLanes) store_up_to(to + i, load_up_to(x + i, a.in - i), a.in - i);
  }
}

// Rows of the weight that lie as the checkpoint has them: one dot product each.
template <class T>
void linear_tail(const LinearArgs& a, int64_t first_out, int64_t last_out) {
  for (int64_t out = first_out; out < last_out; out++) {
    const T* w = static_cast<const T*>(a.weight) + out * a.in;
    const float bias = a.bias == nullptr ? 0.0f : to_float(static_cast<const T*>(a.bias)[out]);
    for (int64_t row = 0; row < a.num_rows; row++) {
      const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
      V acc[4] = {zero(), zero(), zero(), zero()};
      int64_t i = 0;
      for (; i + 4 * kLanes <= a.in; i += 4 * kLanes)
        LULLM_UNROLL for (int s = 0; s < 4; s++) acc[s] = fma(load(w + i + s * kLanes), load(x + i + s * kLanes), acc[s]);
      for (; i < a.in; i += kLanes) acc[0] = fma(load_up_to(w + i, a.in - i), load_up_to(x + i, a.in - i), acc[0]);
      float total = sum(add(add(acc[0], acc[1]), add(acc[2], acc[3]))) + bias;
      const int64_t at = row * a.y_stride + out;
      if (a.y_is_float) static_cast<float*>(a.y)[at] = total;
      else store_first(static_cast<T*>(a.y) + at, set1(total), 1);
    }
  }
}

void pack_panel(void* panel, int64_t num_units, void* scratch) {
  char* to = static_cast<char*>(scratch);
  for (int64_t unit = 0; unit < num_units; unit += kTileUnits)
    for (int64_t row = 0; row < kPanelRows; row += kTileRows, to += kTileBytes)
      transpose(static_cast<char*>(panel) + (row * num_units + unit) * 4, num_units * 4, to, kTileUnits * 4);
  std::memcpy(panel, scratch, kPanelRows * num_units * 4);
}

void unpack_panel(void* panel, int64_t num_units, void* scratch) {
  const char* from = static_cast<const char*>(panel);
  for (int64_t unit = 0; unit < num_units; unit += kTileUnits)
    for (int64_t row = 0; row < kPanelRows; row += kTileRows, from += kTileBytes)
      transpose(from, kTileUnits * 4, static_cast<char*>(scratch) + (row * num_units + unit) * 4, num_units * 4);
  std::memcpy(panel, scratch, kPanelRows * num_units * 4);
}

}  // namespace

void fill_linear(Kernels& kernels) {
  kernels.linear_panels[kFloat32] = linear_panels<float>;
  kernels.linear_panels[kBFloat16] = linear_panels<Bf16>;
  kernels.linear_tail[kFloat32] = linear_tail<float>;
  kernels.linear_tail[kBFloat16] = linear_tail<Bf16>;
  kernels.prepared_bytes[kFloat32] = no_bytes;
  kernels.prepared_bytes[kBFloat16] = kHasBf16Dot ? no_bytes : bytes_of_floats;
  kernels.prepare_rows[kFloat32] = nullptr;
  kernels.prepare_rows[kBFloat16] = kHasBf16Dot ? nullptr : rows_to_floats;
  kernels.linear_depth[kFloat32] = kernels.linear_depth[kBFloat16] = 0;
  kernels.linear_scratch_bytes[kFloat32] = kernels.linear_scratch_bytes[kBFloat16] = 0;
  kernels.pack_panel = pack_panel;
  kernels.unpack_panel = unpack_panel;
}

}  // namespace LULLM_ISA
}  // namespace lullm
