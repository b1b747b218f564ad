// A span of a panel of a grid, expanded to 16-bit integers, and products of many rows with it.
#pragma once

#include "grid_panel.h"
#include "prepared_row.h"
#include "quantized_panel.h"

namespace lullm {
namespace LULLM_ISA {

// Digits of a span of a panel, expanded: of each pair of inputs 2 x 16 rows; and what belongs to its groups, of 2 x 16 rows.
struct WideSpan {
  static constexpr int64_t kPairBytes = 2 * 64, kPairs = kSpanBlocks * kBlockInputs / 2, kMostGroups = 2 * kPairs / kGroupInputs;
  alignas(64) char pairs[kPairs * kPairBytes];
  alignas(64) char scales[kMostGroups * kPairBytes];    // of a grid without codes, float32
  alignas(64) char minimums[kMostGroups * kPairBytes];  // the same; or codes as 32 bits
};

template <int kGrid>
static inline void expand_span(const uint8_t* panel, int64_t blocks, int64_t first, int64_t count, WideSpan& span) {
  constexpr Grid grid = kGrids[kGrid];
  constexpr int kPairs = kPairsOfLine<kGrid>, kLines = grid.group_inputs / (2 * kPairs);
  const GroupCodes<kGrid> codes = {panel, blocks};
  Ahead ahead(panel + first * grid.block_bytes());
  char* to = span.pairs;
  for (int64_t block = first; block < first + count; block++) {
    const uint8_t* digits = panel + block * grid.block_bytes();
    ahead.step_over(grid.block_bytes());
    LULLM_NO_UNROLL for (int64_t group = 0; group < grid.groups(); group++) {
      const int64_t place = ((block - first) * grid.groups() + group) * WideSpan::kPairBytes;
      LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
        I factor = zero_integers();
        if constexpr (grid.has_codes) {
          const I code = load_signed_bytes(codes.at(block, group, tile));
          factor = either(both(code, set_integers(0xffff)), shift_left_32<16>(code));
          if constexpr (grid.has_mins())
            store_integers(span.minimums + place + tile * 64, load_signed_bytes(codes.minimums_at(block, group, tile)));
        } else {
          const GroupScales<kGrid> scales(panel, block);
          store(reinterpret_cast<float*>(span.scales + place + tile * 64), scales.scale(group, tile));
          if constexpr (grid.has_mins())
            store(reinterpret_cast<float*>(span.minimums + place + tile * 64), scales.minimum(group, tile));
        }
        LULLM_NO_UNROLL for (int64_t line = 0; line < kLines; line++) {
          const auto pairs = pairs_of_line<kGrid>(digits, tile, group * kLines + line);
          LULLM_UNROLL for (int i = 0; i < kPairs; i++) {
            I pair = pairs.parts[i];
            if constexpr (grid.is_biased) pair = add_16(pair, set_integers(static_cast<int32_t>(0xfff8fff8)));  // less 8
            if constexpr (grid.has_codes) pair = multiply_16(pair, factor);
            store_integers(to + (kPairs * line + i) * WideSpan::kPairBytes + tile * 64, pair);
          }
        }
      }
      to += grid.group_inputs / 2 * WideSpan::kPairBytes;
    }
  }
}

// The exact sums of `kPairs` pairs of inputs. They are held in their registers, which gcc would copy for every pair.
template <int kRows, int kPairs>
static inline void sum_pairs(const char* wide, const char* x, int64_t x_stride, I (&sums)[kRows][2]) {
  constexpr int kAtOnce = 4;
  LULLM_UNROLL for (int r = 0; r < kRows; r++) sums[r][0] = sums[r][1] = zero_integers();
  LULLM_NO_UNROLL for (int first = 0; first < kPairs; first += kAtOnce, x += kAtOnce * 4) {
    LULLM_UNROLL for (int pair = 0; pair < kAtOnce; pair++, wide += WideSpan::kPairBytes) {
      const I tiles[2] = {load_integers(wide), load_integers(wide + 64)};
      LULLM_UNROLL for (int r = 0; r < kRows; r++) {
        const I of_row = pair_at(x + r * x_stride, pair);
        LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
          sums[r][tile] = add_dot(sums[r][tile], tiles[tile], of_row);
          hold(sums[r][tile]);
        }
      }
    }
  }
}

// Adds a span's products with `kRows` rows, from `x` on, to their totals: in the order and with the roundings of
// `multiply_panel` and `multiply_coded_panel`.
template <int kGrid, int kRows>
static inline void multiply_span(const WideSpan& span, const GroupCodes<kGrid>& codes, const char* x, int64_t x_stride, int64_t first,
                   int64_t count, V (*totals)[2]) {
  constexpr Grid grid = kGrids[kGrid];
  const int64_t groups = count * grid.groups();
  const char* pairs = x + first * kBlockInputs * 2;
  const char* bias = x + pairs_bytes(codes.blocks) + first * kBlockGroups * 4;
  if constexpr (grid.has_codes) {
    constexpr int kPairs = grid.digit_bits == 4 ? kBlockInputs / 2 : grid.group_inputs / 2;  // of a sum that fits 32 bits
    Total products[kRows][2];
    I minimums[kRows][2];
    LULLM_UNROLL for (int r = 0; r < kRows; r++)
      LULLM_UNROLL for (int tile = 0; tile < 2; tile++) start(products[r][tile]), minimums[r][tile] = zero_integers();
    for (int64_t pair = 0; pair < count * kBlockInputs / 2; pair += kPairs) {
      I sums[kRows][2];
      sum_pairs<kRows, kPairs>(span.pairs + pair * WideSpan::kPairBytes, pairs + pair * 4, x_stride, sums);
      LULLM_UNROLL for (int r = 0; r < kRows; r++)
        LULLM_UNROLL for (int tile = 0; tile < 2; tile++) add_sum(products[r][tile], sums[r][tile]);
    }
    for (int64_t group = 0; grid.has_mins() && group < groups; group++) {
      LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
        const I code = load_integers(span.minimums + group * WideSpan::kPairBytes + tile * 64);
        LULLM_UNROLL for (int r = 0; r < kRows; r++) {
          const int32_t minus_sum = bias_of_group<grid.group_inputs>(bias + r * x_stride, group) / 8;  // exact
          minimums[r][tile] = add(minimums[r][tile], multiply_32(set_integers(minus_sum), code));
        }
      }
    }
    LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
      const V factor = codes.factor(first / kSpanBlocks, tile);
      LULLM_UNROLL for (int r = 0; r < kRows; r++) {
        totals[r][tile] = fma(factor, value_of(products[r][tile]), totals[r][tile]);
        if constexpr (grid.has_mins())
          totals[r][tile] = fma(codes.min_factor(first / kSpanBlocks, tile), to_floats(minimums[r][tile]), totals[r][tile]);
      }
    }
  } else {
    constexpr int kPairs = grid.group_inputs / 2;
    for (int64_t group = 0; group < groups; group++) {
      I sums[kRows][2];
      sum_pairs<kRows, kPairs>(span.pairs + group * kPairs * WideSpan::kPairBytes, pairs + group * kPairs * 4, x_stride, sums);
      const auto of_group = [&](const char* values, int tile) {
        return load(reinterpret_cast<const float*>(values + group * WideSpan::kPairBytes + tile * 64));
      };
      LULLM_UNROLL for (int r = 0; r < kRows; r++) {
        LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
          totals[r][tile] = fma(of_group(span.scales, tile), to_floats(sums[r][tile]), totals[r][tile]);
          if constexpr (grid.has_mins()) {
            const float sum = static_cast<float>(bias_of_group<grid.group_inputs>(bias + r * x_stride, group)) * 0.125f;
            totals[r][tile] = fma(of_group(span.minimums, tile), set1(sum), totals[r][tile]);
          }
        }
      }
    }
  }
}

}  // namespace LULLM_ISA
}  // namespace lullm
