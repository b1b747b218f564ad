// Linear layers over quantized weights, one panel of 32 outputs at a time, with vectors of integers.
//
// With one row of activations the weights are read once, in order, and unpacking them must be quicker than reading.

#include "kernel_table.h"
#include "prepared_row.h"
#include "processor.h"
#include "quantized_panel.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

constexpr int64_t kPrefetchBytes = 6144;

constexpr int kMaxRows = kRegisters >= 32 ? 8 : 2;

// 4 blocks of 64 products of at most 127 * 32767: their sum fits 32 bits.
constexpr int64_t kBlocksPerSum = 4;

int64_t prepared_bytes(const QuantizedArgs& a) { return a.num_rows * row_bytes(num_blocks(a.in)); }

template <class T>
void prepare_rows(const QuantizedArgs& a, int64_t first, int64_t last) {
  const int64_t blocks = num_blocks(a.in);
  for (int64_t row = first; row < last; row++) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    char* to = a.x_prepared + row * row_bytes(blocks);
    const RowScale scale = scale_row(x, a.in);
    int32_t* sums = reinterpret_cast<int32_t*>(to + pairs_bytes(blocks));
    for (int64_t i = 0; i < blocks * kBlockInputs; i += kGroupInputs) {
      const I integers = i < a.in ? to_integers(mul(load_up_to(x + i, a.in - i), scale.inverse)) : zero_integers();
      store_crossed(to + 2 * i, integers);
      sums[i / kGroupInputs] = -kLargestDigit * total(integers);
    }
    *scale_of(to, blocks) = scale.value;
  }
}

template <int kRows>
void multiply_bytes(const uint8_t* w, const char* x, int64_t x_stride, int64_t blocks, Total (&totals)[kRows][2]) {
  constexpr int kSplit = kRows == 1 ? 2 : 1;
  LULLM_UNROLL for (int r = 0; r < kRows; r++) start(totals[r][0]), start(totals[r][1]);
  for (int64_t first = 0; first < blocks; first += kBlocksPerSum) {
    const int64_t last = first + kBlocksPerSum < blocks ? first + kBlocksPerSum : blocks;
    I sums[kRows][2][kSplit];
    LULLM_UNROLL for (int r = 0; r < kRows; r++)
      LULLM_UNROLL for (int s = 0; s < kSplit; s++) sums[r][0][s] = sums[r][1][s] = zero_integers();
    for (int64_t block = first; block < last; block++, w += kByteBlockBytes) {
      const char* pairs = x + block * kBlockInputs * 2;
      for (int line = 0; line < 16; line++) {
        LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
          const uint8_t* at = w + tile * kTileBytes + line * 64;
          fetch_near(reinterpret_cast<const char*>(at) + kPrefetchBytes);
          const I bytes = load_integers(at);
          const I even = shift_signed_16<8>(shift_left_16<8>(bytes)), odd = shift_signed_16<8>(bytes);
          LULLM_UNROLL for (int r = 0; r < kRows; r++) {
            I& even_sum = sums[r][tile][0];
            even_sum = add_dot(even_sum, even, pair_at(pairs + r * x_stride, 2 * line));
            I& odd_sum = sums[r][tile][kSplit - 1];
            odd_sum = add_dot(odd_sum, odd, pair_at(pairs + r * x_stride, 2 * line + 1));
          }
        }
      }
    }
    LULLM_UNROLL for (int r = 0; r < kRows; r++) {
      LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
        I sum = sums[r][tile][0];
        if (kSplit == 2) sum = add(sum, sums[r][tile][kSplit - 1]);
        add_sum(totals[r][tile], sum);
      }
    }
  }
}

template <int kRows>
void multiply_digits(const uint8_t* w, const char* x, int64_t x_stride, int64_t blocks, Total (&totals)[kRows][2]) {
  const I mask = set_integers(0x000f000f);
  LULLM_UNROLL for (int r = 0; r < kRows; r++) start(totals[r][0]), start(totals[r][1]);
  for (int64_t first = 0; first < blocks; first += kBlocksPerSum) {
    const int64_t last = first + kBlocksPerSum < blocks ? first + kBlocksPerSum : blocks;
    I sums[kRows][2];
    LULLM_UNROLL for (int r = 0; r < kRows; r++) sums[r][0] = sums[r][1] = zero_integers();
    for (int64_t block = first; block < last; block++, w += kDigitBlockBytes) {
      const char* pairs = x + block * kBlockInputs * 2;
      const char* bias = x + pairs_bytes(blocks) + block * kBlockGroups * 4;
      const int8_t* group_scales = reinterpret_cast<const int8_t*>(w + 2 * kDigitTileBytes);
      fetch_near(reinterpret_cast<const char*>(group_scales) + kPrefetchBytes);
      fetch_near(reinterpret_cast<const char*>(group_scales) + 64 + kPrefetchBytes);
      for (int group = 0; group < kBlockGroups; group++) {
        I of_group[kRows][2];
        LULLM_UNROLL for (int r = 0; r < kRows; r++)
          of_group[r][0] = of_group[r][1] = pair_at(bias + r * x_stride, group);
        LULLM_UNROLL for (int half = 0; half < 2; half++) {
          const int line = 2 * group + half;
          LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
            const uint8_t* at = w + tile * kDigitTileBytes + line * 64;
            fetch_near(reinterpret_cast<const char*>(at) + kPrefetchBytes);
            const I digits = load_integers(at);
            const I parts[4] = {both(digits, mask), both(shift_right_16<8>(digits), mask),
                                both(shift_right_16<4>(digits), mask), shift_right_16<12>(digits)};
            LULLM_UNROLL for (int r = 0; r < kRows; r++)
              LULLM_UNROLL for (int part = 0; part < 4; part++)
                of_group[r][tile] = add_dot(of_group[r][tile], parts[part], pair_at(pairs + r * x_stride, 4 * line + part));
          }
        }
        LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
          const I scale = load_signed_bytes(group_scales + group * kPanelRows + tile * kTileRows);
          LULLM_UNROLL for (int r = 0; r < kRows; r++)
            sums[r][tile] = add(sums[r][tile], multiply_32(of_group[r][tile], scale));
        }
      }
    }
    LULLM_UNROLL for (int r = 0; r < kRows; r++)
      LULLM_UNROLL for (int tile = 0; tile < 2; tile++) add_sum(totals[r][tile], sums[r][tile]);
  }
}

// Panels of 4 bits are read as they are for so many rows, and expanded once for more.
constexpr int64_t kDigitRows = 2;

int64_t scratch_bytes(const QuantizedArgs& a) {
  return a.bits == 4 && a.num_rows > kDigitRows ? a.num_sides() * quantized_panel_bytes(8, a.in) : 0;
}

template <class T, int kRows>
void multiply_rows(const QuantizedArgs& a, int64_t row, int64_t panel, int bits, const uint8_t* const* sides) {
  const int64_t blocks = num_blocks(a.in), stride = row_bytes(blocks);
  char* x = a.x_prepared + row * stride;
  Total totals[2][kRows][2];
  for (int64_t side = 0; side < a.num_sides(); side++) {
    if constexpr (kRows <= kDigitRows) {
      if (bits == 4) multiply_digits<kRows>(sides[side], x, stride, blocks, totals[side]);
    }
    if (bits == 8) multiply_bytes<kRows>(sides[side], x, stride, blocks, totals[side]);
  }
  const int64_t scales_at = quantized_panel_bytes(bits, a.in) - kPanelScaleBytes;
  for (int r = 0; r < kRows; r++) {
    const V row_scale = set1(*scale_of(x + r * stride, blocks));
    V results[2][2];
    for (int64_t side = 0; side < a.num_sides(); side++) {
      for (int tile = 0; tile < 2; tile++) results[side][tile] = value_of(totals[side][r][tile]);
      scale_outputs<T>(a, sides[side] + scales_at, side, panel, row_scale, results[side]);
    }
    store_outputs<T>(a, row + r, panel, results[0], results[1]);
  }
}

template <class T>
void multiply_panels(const QuantizedArgs& a, int64_t first_row, int64_t last_row, int64_t first_panel,
                     int64_t last_panel, void* scratch) {
  const bool expands = a.bits == 4 && last_row - first_row > kDigitRows;
  for (int64_t panel = first_panel; panel < last_panel; panel++) {
    const uint8_t* sides[2];
    for (int64_t side = 0; side < a.num_sides(); side++) {
      sides[side] = panel_of_side(a, side, panel);
      if (!expands) continue;
      uint8_t* expanded = static_cast<uint8_t*>(scratch) + side * quantized_panel_bytes(8, a.in);
      expand_panel(sides[side], a.in, expanded);
      sides[side] = expanded;
    }
    const int bits = expands ? 8 : a.bits;
    int64_t row = first_row;
    if constexpr (kMaxRows >= 8) {
      if (bits == 8) {
        for (; row + 8 <= last_row; row += 8) multiply_rows<T, 8>(a, row, panel, bits, sides);
        if (row + 4 <= last_row) multiply_rows<T, 4>(a, row, panel, bits, sides), row += 4;
      }
    }
    for (; row + 2 <= last_row; row += 2) multiply_rows<T, 2>(a, row, panel, bits, sides);
    if (row < last_row) multiply_rows<T, 1>(a, row, panel, bits, sides);
  }
}

}  // namespace

void fill_quantized_linear(Kernels& kernels) {
  QuantizedKernels& k = kernels.quantized;
  k.prepared_bytes[kFloat32] = k.prepared_bytes[kBFloat16] = prepared_bytes;
  k.cached_row_bytes[kFloat32] = k.cached_row_bytes[kBFloat16] = [](const QuantizedArgs& a) { return a.in * 2; };
  k.prepare_rows[kFloat32] = prepare_rows<float>;
  k.prepare_rows[kBFloat16] = prepare_rows<Bf16>;
  k.scratch_bytes[kFloat32] = k.scratch_bytes[kBFloat16] = scratch_bytes;
  k.multiply_panels[kFloat32] = multiply_panels<float>;
  k.multiply_panels[kBFloat16] = multiply_panels<Bf16>;
}

}  // namespace LULLM_ISA
}  // namespace lullm
