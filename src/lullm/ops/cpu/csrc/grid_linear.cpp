// Linear layers over grids, one panel of 32 outputs at a time, with vectors of integers; see `grid.h`.
//
// A few rows read digits as they are stored. For more, a span of a panel is expanded to 16-bit integers, which stay in the
// first-level cache while all rows pass over them: digits, or digits times their codes, as sums are exact either way.

#include <type_traits>

#include "grid_wide.h"
#include "kernel_table.h"
#include "prepared_row.h"
#include "processor.h"
#include "quantized_panel.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

QuantizedKernels others;  // of weights with a scale per row

// At once, of those that read digits as they are stored, and of those that read expanded ones.
constexpr int kMaxRows = kRegisters >= 32 ? 4 : 2, kMaxWideRows = kRegisters >= 32 ? 8 : 2;
// So many rows read digits as they are stored. It takes bytes longer to be multiplied by codes than bits to be unpacked.
template <int kGrid>
constexpr int kStoredRows = kGrids[kGrid].has_codes && kGrids[kGrid].digit_bits == 8 ? 2 * kMaxRows : kMaxRows;

// The exact sums of a group of the two tiles' digits times the pairs of `kRows` rows. Loops over lines and groups are not
// unrolled: gcc would unpack all lines first, and keep them in memory.
template <int kGrid, int kRows>
inline void sum_group(const uint8_t* digits, const char* pairs, const char* bias, int64_t x_stride, int64_t group,
                      I (&sums)[kRows][2], Ahead& ahead) {
  constexpr Grid grid = kGrids[kGrid];
  constexpr int kPairs = kPairsOfLine<kGrid>, kLines = grid.group_inputs / (2 * kPairs);
  LULLM_UNROLL for (int r = 0; r < kRows; r++) {
    I start = zero_integers();
    if constexpr (grid.is_biased) start = set_integers(bias_of_group<grid.group_inputs>(bias + r * x_stride, group));
    sums[r][0] = sums[r][1] = start;
  }
  LULLM_NO_UNROLL for (int64_t line = group * kLines; line < (group + 1) * kLines; line++) {
    LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
      ahead.step();
      const auto line_pairs = pairs_of_line<kGrid>(digits, tile, line);
      LULLM_UNROLL for (int r = 0; r < kRows; r++) {
        LULLM_UNROLL for (int i = 0; i < kPairs; i++) {
          sums[r][tile] = add_dot(sums[r][tile], line_pairs.parts[i], pair_at(pairs + r * x_stride, kPairs * line + i));
          hold(sums[r][tile]);
        }
      }
    }
  }
}

template <int kGrid, int kRows>
void multiply_panel(const uint8_t* panel, const char* x, int64_t x_stride, int64_t blocks, V (&totals)[kRows][2]) {
  constexpr Grid grid = kGrids[kGrid];
  Ahead ahead(panel);
  LULLM_UNROLL for (int r = 0; r < kRows; r++) totals[r][0] = totals[r][1] = zero();
  for (int64_t block = 0; block < blocks; block++) {
    const uint8_t* digits = panel + block * grid.block_bytes();
    const char* pairs = x + block * kBlockInputs * 2;
    const char* bias = x + pairs_bytes(blocks) + block * kBlockGroups * 4;
    const GroupScales<kGrid> scales(panel, block);
    ahead.step_over(grid.block_bytes() - grid.digit_bytes());
    LULLM_NO_UNROLL for (int group = 0; group < grid.groups(); group++) {
      I sums[kRows][2];
      sum_group<kGrid, kRows>(digits, pairs, bias, x_stride, group, sums, ahead);
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
  Ahead ahead(panel);
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
      ahead.step_over(grid.block_bytes() - grid.digit_bytes());
      LULLM_NO_UNROLL for (int64_t first_group = 0; first_group < grid.groups(); first_group += kGroupsPerSum) {
        I coded[kRows][2];
        LULLM_NO_UNROLL for (int64_t i = 0; i < kGroupsPerSum; i++) {
          const int64_t group = first_group + i;
          I sums[kRows][2];
          sum_group<kGrid, kRows>(panel + block * grid.block_bytes(), pairs, bias, x_stride, group, sums, ahead);
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

// Times the rows' scales, plus the bias: 32 results of each of `kRows` rows. `totals`: of each side so many rows.
template <class T>
void finish_rows(const QuantizedArgs& a, int64_t row, int64_t count, int64_t panel, const V (*totals)[2], int64_t of_side) {
  const int64_t blocks = num_blocks(a.in), stride = row_bytes(blocks);
  for (int64_t r = 0; r < count; r++) {
    const V row_scale = set1(*scale_of(a.x_prepared + (row + r) * stride, blocks));
    V results[2][2];
    for (int64_t side = 0; side < a.num_sides(); side++) {
      for (int tile = 0; tile < 2; tile++) results[side][tile] = mul(totals[side * of_side + r][tile], row_scale);
      add_bias<T>(a, side, panel, results[side]);
    }
    store_outputs<T>(a, row + r, panel, results[0], results[1]);
  }
}

template <class T, int kGrid, int kRows>
void multiply_rows(const QuantizedArgs& a, int64_t row, int64_t panel) {
  const int64_t blocks = num_blocks(a.in), stride = row_bytes(blocks);
  const char* x = a.x_prepared + row * stride;
  V totals[2][kRows][2];
  for (int64_t side = 0; side < a.num_sides(); side++) {
    if constexpr (kGrids[kGrid].has_codes)
      multiply_coded_panel<kGrid, kRows>(panel_of_side(a, side, panel), x, stride, blocks, totals[side]);
    else multiply_panel<kGrid, kRows>(panel_of_side(a, side, panel), x, stride, blocks, totals[side]);
  }
  finish_rows<T>(a, row, kRows, panel, totals[0], kRows);
}

template <class T, int kGrid>
void multiply_wide(const QuantizedArgs& a, int64_t first_row, int64_t last_row, int64_t panel, void* scratch) {
  const int64_t blocks = num_blocks(a.in), stride = row_bytes(blocks), rows = last_row - first_row;
  WideSpan& span = *static_cast<WideSpan*>(scratch);
  auto* totals = reinterpret_cast<V(*)[2]>(static_cast<char*>(scratch) + sizeof(WideSpan));
  for (int64_t row = 0; row < a.num_sides() * rows; row++) totals[row][0] = totals[row][1] = zero();
  for (int64_t side = 0; side < a.num_sides(); side++) {
    const GroupCodes<kGrid> codes = {panel_of_side(a, side, panel), blocks};
    for (int64_t first = 0; first < blocks; first += kSpanBlocks) {
      const int64_t count = first + kSpanBlocks < blocks ? kSpanBlocks : blocks - first;
      expand_span<kGrid>(codes.panel, blocks, first, count, span);
      int64_t row = 0;
      const auto next = [&](auto num) {
        multiply_span<kGrid, num>(span, codes, a.x_prepared + (first_row + row) * stride, stride, first, count,
                                  totals + side * rows + row);
        row += num;
      };
      while (row + kMaxWideRows <= rows) next(std::integral_constant<int, kMaxWideRows>());
      if (kMaxWideRows > 4 && row + 4 <= rows) next(std::integral_constant<int, 4>());
      if (kMaxWideRows > 2 && row + 2 <= rows) next(std::integral_constant<int, 2>());
      if (row < rows) next(std::integral_constant<int, 1>());
    }
  }
  finish_rows<T>(a, first_row, rows, panel, totals, rows);
}

template <class T, int kGrid>
void multiply_grid(const QuantizedArgs& a, int64_t first_row, int64_t last_row, int64_t first_panel, int64_t last_panel,
                   void* scratch) {
  for (int64_t panel = first_panel; panel < last_panel; panel++) {
    int64_t row = first_row;
    if (last_row - row > kStoredRows<kGrid>) multiply_wide<T, kGrid>(a, row, last_row, panel, scratch), row = last_row;
    if constexpr (kMaxRows >= 4)
      for (; row + 4 <= last_row; row += 4) multiply_rows<T, kGrid, 4>(a, row, panel);
    for (; row + 2 <= last_row; row += 2) multiply_rows<T, kGrid, 2>(a, row, panel);
    if (row < last_row) multiply_rows<T, kGrid, 1>(a, row, panel);
  }
}

// What `multiply_wide` takes; of other weights, what they do.
template <int kDtype>
int64_t scratch_bytes(const QuantizedArgs& a) {
  if (!is_grid(a.bits)) return others.scratch_bytes[kDtype](a);
  const int64_t rows = a.num_rows < kQuantizedRows ? a.num_rows : kQuantizedRows;
  return static_cast<int64_t>(sizeof(WideSpan) + a.num_sides() * rows * sizeof(V[2]));
}

template <class T, int kGrid = 0>
void multiply(const QuantizedArgs& a, int64_t first_row, int64_t last_row, int64_t first_panel, int64_t last_panel,
              void* scratch) {
  if constexpr (kGrid < kNumGrids) {
    if (a.bits == kFirstGrid + kGrid) multiply_grid<T, kGrid>(a, first_row, last_row, first_panel, last_panel, scratch);
    else multiply<T, kGrid + 1>(a, first_row, last_row, first_panel, last_panel, scratch);
  }
}

template <class T, int kDtype>
void multiply_panels(const QuantizedArgs& a, int64_t first_row, int64_t last_row, int64_t first_panel,
                     int64_t last_panel, void* scratch) {
  if (is_grid(a.bits)) multiply<T>(a, first_row, last_row, first_panel, last_panel, scratch);
  else others.multiply_panels[kDtype](a, first_row, last_row, first_panel, last_panel, scratch);
}

}  // namespace

void fill_grid(Kernels& kernels) {
  others = kernels.quantized;
  kernels.quantized.multiply_panels[kFloat32] = multiply_panels<float, kFloat32>;
  kernels.quantized.multiply_panels[kBFloat16] = multiply_panels<Bf16, kBFloat16>;
  kernels.quantized.scratch_bytes[kFloat32] = scratch_bytes<kFloat32>;
  kernels.quantized.scratch_bytes[kBFloat16] = scratch_bytes<kBFloat16>;
}

}  // namespace LULLM_ISA
}  // namespace lullm
