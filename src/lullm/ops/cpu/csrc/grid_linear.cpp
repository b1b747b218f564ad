// Linear layers over grids, one panel of 32 outputs at a time, with vectors of integers; see `grid.h`.

#include "grid_panel.h"
#include "kernel_table.h"
#include "prepared_row.h"
#include "processor.h"
#include "quantized_panel.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

QuantizedKernels others;  // of weights with a scale per row

constexpr int64_t kPrefetchBytes = 4096;

constexpr int kMaxRows = kRegisters >= 32 ? 4 : 2;

// The exact sums of a group of the two tiles' digits times the pairs of `kRows` rows.
template <int kGrid, int kRows>
inline void sum_group(const uint8_t* digits, const char* pairs, const char* bias, int64_t x_stride, int64_t group,
                      I (&sums)[kRows][2]) {
  constexpr Grid grid = kGrids[kGrid];
  LULLM_UNROLL for (int r = 0; r < kRows; r++) {
    I start = zero_integers();
    if constexpr (grid.is_biased) start = set_integers(bias_of_group<grid.group_inputs>(bias + r * x_stride, group));
    sums[r][0] = sums[r][1] = start;
  }
  if constexpr (grid.digit_bits == 4) {
    const I mask = set_integers(0x000f000f);
    constexpr int kLines = grid.group_inputs / 8;
    LULLM_UNROLL for (int i = 0; i < kLines; i++) {
      const int64_t line = group * kLines + i;
      LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
        const uint8_t* at = digits + tile * kDigitTileBytes + line * 64;
        fetch_near(reinterpret_cast<const char*>(at) + kPrefetchBytes);
        const I eight = load_integers(at);
        const I parts[4] = {both(eight, mask), both(shift_right_16<8>(eight), mask), both(shift_right_16<4>(eight), mask),
                            shift_right_16<12>(eight)};
        LULLM_UNROLL for (int r = 0; r < kRows; r++)
          LULLM_UNROLL for (int part = 0; part < 4; part++)
            sums[r][tile] = add_dot(sums[r][tile], parts[part], pair_at(pairs + r * x_stride, 4 * line + part));
      }
    }
  } else {
    constexpr int kLines = grid.group_inputs / 4;
    LULLM_UNROLL for (int i = 0; i < kLines; i++) {
      const int64_t line = group * kLines + i;
      LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
        const uint8_t* at = digits + tile * kTileBytes + line * 64;
        fetch_near(reinterpret_cast<const char*>(at) + kPrefetchBytes);
        const I bytes = load_integers(at);
        const I even = shift_signed_16<8>(shift_left_16<8>(bytes)), odd = shift_signed_16<8>(bytes);
        LULLM_UNROLL for (int r = 0; r < kRows; r++) {
          sums[r][tile] = add_dot(sums[r][tile], even, pair_at(pairs + r * x_stride, 2 * line));
          sums[r][tile] = add_dot(sums[r][tile], odd, pair_at(pairs + r * x_stride, 2 * line + 1));
        }
      }
    }
  }
}

template <int kGrid, int kRows>
void multiply_panel(const uint8_t* panel, const char* x, int64_t x_stride, int64_t blocks, V (&totals)[kRows][2]) {
  constexpr Grid grid = kGrids[kGrid];
  LULLM_UNROLL for (int r = 0; r < kRows; r++) totals[r][0] = totals[r][1] = zero();
  for (int64_t block = 0; block < blocks; block++) {
    const uint8_t* digits = panel + block * grid.block_bytes();
    const char* pairs = x + block * kBlockInputs * 2;
    const char* bias = x + pairs_bytes(blocks) + block * kBlockGroups * 4;
    const GroupScales<kGrid> scales(panel, block);
    for (int group = 0; group < grid.groups(); group++) {
      I sums[kRows][2];
      sum_group<kGrid, kRows>(digits, pairs, bias, x_stride, group, sums);
      LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
        const V scale = scales.scale(group, tile);
        LULLM_UNROLL for (int r = 0; r < kRows; r++) totals[r][tile] = fma(scale, to_floats(sums[r][tile]), totals[r][tile]);
        if constexpr (grid.has_mins()) {
          const V minimum = scales.minimum(group, tile);
          LULLM_UNROLL for (int r = 0; r < kRows; r++) {
            // The bias is -8 times the sum of x.
            const float sum = static_cast<float>(bias_of_group<grid.group_inputs>(bias + r * x_stride, group)) * 0.125f;
            totals[r][tile] = fma(minimum, set1(sum), totals[r][tile]);
          }
        }
      }
    }
  }
}

// The same of a grid with codes: the sums of a span of 256 inputs are exact.
template <int kGrid, int kRows>
void multiply_coded_panel(const uint8_t* panel, const char* x, int64_t x_stride, int64_t blocks, V (&totals)[kRows][2]) {
  constexpr Grid grid = kGrids[kGrid];
  constexpr int64_t kGroupsPerSum = grid.digit_bits == 4 ? 2 : 1;  // of at most 32 * 15 * 63 * 32767 each
  const GroupCodes<kGrid> codes = {panel, blocks};
  LULLM_UNROLL for (int r = 0; r < kRows; r++) totals[r][0] = totals[r][1] = zero();
  for (int64_t first = 0; first < blocks; first += kSpanBlocks) {
    const int64_t last = first + kSpanBlocks < blocks ? first + kSpanBlocks : blocks;
    Total products[kRows][2];
    I minimums[kRows][2];
    LULLM_UNROLL for (int r = 0; r < kRows; r++) {
      LULLM_UNROLL for (int tile = 0; tile < 2; tile++) start(products[r][tile]), minimums[r][tile] = zero_integers();
    }
    for (int64_t block = first; block < last; block++) {
      const char* pairs = x + block * kBlockInputs * 2;
      const char* bias = x + pairs_bytes(blocks) + block * kBlockGroups * 4;
      for (int64_t first_group = 0; first_group < grid.groups(); first_group += kGroupsPerSum) {
        I coded[kRows][2];
        LULLM_UNROLL for (int64_t i = 0; i < kGroupsPerSum; i++) {
          const int64_t group = first_group + i;
          I sums[kRows][2];
          sum_group<kGrid, kRows>(panel + block * grid.block_bytes(), pairs, bias, x_stride, group, sums);
          LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
            const I code = load_signed_bytes(codes.at(block, group, tile));
            LULLM_UNROLL for (int r = 0; r < kRows; r++) {
              const I product = multiply_32(sums[r][tile], code);
              coded[r][tile] = i == 0 ? product : add(coded[r][tile], product);
            }
            if constexpr (grid.has_mins()) {
              const I min_code = load_signed_bytes(codes.minimums_at(block, group, tile));
              LULLM_UNROLL for (int r = 0; r < kRows; r++) {
                const int32_t minus_sum = bias_of_group<grid.group_inputs>(bias + r * x_stride, group) / 8;  // exact
                minimums[r][tile] = add(minimums[r][tile], multiply_32(set_integers(minus_sum), min_code));
              }
            }
          }
        }
        LULLM_UNROLL for (int r = 0; r < kRows; r++)
          LULLM_UNROLL for (int tile = 0; tile < 2; tile++) add_sum(products[r][tile], coded[r][tile]);
      }
    }
    LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
      const V factor = codes.factor(first / kSpanBlocks, tile);
      LULLM_UNROLL for (int r = 0; r < kRows; r++) totals[r][tile] = fma(factor, value_of(products[r][tile]), totals[r][tile]);
      if constexpr (grid.has_mins()) {
        const V min_factor = codes.min_factor(first / kSpanBlocks, tile);
        LULLM_UNROLL for (int r = 0; r < kRows; r++)
          totals[r][tile] = fma(min_factor, to_floats(minimums[r][tile]), totals[r][tile]);
      }
    }
  }
}

template <class T, int kGrid, int kRows>
void multiply_rows(const QuantizedArgs& a, int64_t row, int64_t panel) {
  const int64_t blocks = num_blocks(a.in), stride = row_bytes(blocks);
  char* x = a.x_prepared + row * stride;
  V totals[2][kRows][2];
  for (int64_t side = 0; side < a.num_sides(); side++) {
    if constexpr (kGrids[kGrid].has_codes)
      multiply_coded_panel<kGrid, kRows>(panel_of_side(a, side, panel), x, stride, blocks, totals[side]);
    else multiply_panel<kGrid, kRows>(panel_of_side(a, side, panel), x, stride, blocks, totals[side]);
  }
  for (int r = 0; r < kRows; r++) {
    const V row_scale = set1(*scale_of(x + r * stride, blocks));
    V results[2][2];
    for (int64_t side = 0; side < a.num_sides(); side++) {
      for (int tile = 0; tile < 2; tile++) results[side][tile] = mul(totals[side][r][tile], row_scale);
      add_bias<T>(a, side, panel, results[side]);
    }
    store_outputs<T>(a, row + r, panel, results[0], results[1]);
  }
}

template <class T, int kGrid>
void multiply_grid(const QuantizedArgs& a, int64_t first_row, int64_t last_row, int64_t first_panel, int64_t last_panel) {
  for (int64_t panel = first_panel; panel < last_panel; panel++) {
    int64_t row = first_row;
    if constexpr (kMaxRows >= 4)
      for (; row + 4 <= last_row; row += 4) multiply_rows<T, kGrid, 4>(a, row, panel);
    for (; row + 2 <= last_row; row += 2) multiply_rows<T, kGrid, 2>(a, row, panel);
    if (row < last_row) multiply_rows<T, kGrid, 1>(a, row, panel);
  }
}

template <class T, int kGrid = 0>
void multiply(const QuantizedArgs& a, int64_t first_row, int64_t last_row, int64_t first_panel, int64_t last_panel) {
  if constexpr (kGrid < kNumGrids) {
    if (a.bits == kFirstGrid + kGrid) multiply_grid<T, kGrid>(a, first_row, last_row, first_panel, last_panel);
    else multiply<T, kGrid + 1>(a, first_row, last_row, first_panel, last_panel);
  }
}

template <class T, int kDtype>
void multiply_panels(const QuantizedArgs& a, int64_t first_row, int64_t last_row, int64_t first_panel,
                     int64_t last_panel, void* scratch) {
  if (is_grid(a.bits)) multiply<T>(a, first_row, last_row, first_panel, last_panel);
  else others.multiply_panels[kDtype](a, first_row, last_row, first_panel, last_panel, scratch);
}

}  // namespace

void fill_grid(Kernels& kernels) {
  others = kernels.quantized;
  kernels.quantized.multiply_panels[kFloat32] = multiply_panels<float, kFloat32>;
  kernels.quantized.multiply_panels[kBFloat16] = multiply_panels<Bf16, kBFloat16>;
}

}  // namespace LULLM_ISA
}  // namespace lullm
