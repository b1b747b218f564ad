// Linear layers over quantized weights, one panel of 32 outputs at a time, with vectors of integers.
//
// With one row of activations the weights are read once, in order, and unpacking them must be quicker than reading.

#include <algorithm>
#include <type_traits>

#include "kernel_table.h"
#include "prepared_row.h"
#include "processor.h"
#include "quantized_panel.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

// How far ahead of the reading a panel is fetched from memory into the second-level cache, and from there into the first.
constexpr int64_t kFarBytes = 8192, kNearBytes = 2048;

constexpr int kMaxRows = kRegisters >= 32 ? 8 : 2;

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
      // Unsigned, since NaN becomes the least integer, whose product overflows; its row's results are NaN by their scale.
      sums[i / kGroupInputs] = static_cast<int32_t>(-uint32_t{kLargestDigit} * static_cast<uint32_t>(total(integers)));
    }
    *scale_of(to, blocks) = scale.value;
  }
}

// Of a panel, so many blocks: 256 products of at most 127 * 32767, whose sum fits 32 bits. Expanded to 16 bits they stay in
// the first-level cache, while all rows pass over them.
constexpr int64_t kPartBlocks = 4;
constexpr int64_t kWideBlockBytes = 2 * kByteBlockBytes;
// Panels of 4 bits are read as they are for so many rows, and expanded to bytes for more; bytes are read as they are for so
// many, and expanded to 16 bits for more.
constexpr int64_t kDigitRows = 2, kByteRows = 2 * kMaxRows;

enum class Form { kDigits, kBytes, kWide };

Form form_of(const QuantizedArgs& a, int64_t rows) {
  return rows > kByteRows ? Form::kWide : a.bits == 4 && rows <= kDigitRows ? Form::kDigits : Form::kBytes;
}

struct Pairs {
  I even, odd;  // inputs 0 and 2, 1 and 3 of sixteen outputs
};
inline Pairs pairs_of_bytes(const char* line) {
  fetch_far(line + kFarBytes), fetch_near(line + kNearBytes);
  const I bytes = load_integers(line);
  return {shift_signed_16<8>(shift_left_16<8>(bytes)), shift_signed_16<8>(bytes)};
}
inline Pairs pairs_of_wide(const char* line) { return {load_integers(line), load_integers(line + 64)}; }

void widen_blocks(const char* from, int64_t blocks, char* to) {
  for (const char* end = from + blocks * kByteBlockBytes; from < end; from += 64, to += 128) {
    const Pairs pairs = pairs_of_bytes(from);
    store_integers(to, pairs.even);
    store_integers(to + 64, pairs.odd);
  }
}

// Add the products of so many rows with a part of a panel to the rows' totals. `x`: the first row's pairs for this part.
template <bool kIsWide, int kRows>
void multiply_bytes(const char* w, const char* x, int64_t x_stride, int64_t blocks, Total (*totals)[2]) {
  constexpr int64_t kLineBytes = kIsWide ? 128 : 64;
  constexpr int kSplit = kRows == 1 ? 2 : 1;
  I sums[kRows][2][kSplit];
  LULLM_UNROLL for (int r = 0; r < kRows; r++)
    LULLM_UNROLL for (int s = 0; s < kSplit; s++) sums[r][0][s] = sums[r][1][s] = zero_integers();
  for (int64_t block = 0; block < blocks; block++, w += 32 * kLineBytes, x += kBlockInputs * 2) {
    for (int line = 0; line < 16; line++) {
      LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
        const char* at = w + (16 * tile + line) * kLineBytes;
        const Pairs pairs = kIsWide ? pairs_of_wide(at) : pairs_of_bytes(at);
        LULLM_UNROLL for (int r = 0; r < kRows; r++) {
          I& even_sum = sums[r][tile][0];
          even_sum = add_dot(even_sum, pairs.even, pair_at(x + r * x_stride, 2 * line));
          I& odd_sum = sums[r][tile][kSplit - 1];
          odd_sum = add_dot(odd_sum, pairs.odd, pair_at(x + r * x_stride, 2 * line + 1));
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

// `bias`: the first row's, for this part.
template <int kRows>
void multiply_digits(const char* w, const char* x, const char* bias, int64_t x_stride, int64_t blocks, Total (*totals)[2]) {
  const I mask = set_integers(0x000f000f);
  I sums[kRows][2];
  LULLM_UNROLL for (int r = 0; r < kRows; r++) sums[r][0] = sums[r][1] = zero_integers();
  for (int64_t block = 0; block < blocks; block++, w += kDigitBlockBytes, x += kBlockInputs * 2, bias += kBlockGroups * 4) {
    const int8_t* group_scales = reinterpret_cast<const int8_t*>(w + 2 * kDigitTileBytes);
    for (int line = 0; line < 2; line++)
      fetch_far(w + 2 * kDigitTileBytes + line * 64 + kFarBytes), fetch_near(w + 2 * kDigitTileBytes + line * 64 + kNearBytes);
    for (int group = 0; group < kBlockGroups; group++) {
      I of_group[kRows][2];
      LULLM_UNROLL for (int r = 0; r < kRows; r++)
        of_group[r][0] = of_group[r][1] = pair_at(bias + r * x_stride, group);
      LULLM_UNROLL for (int half = 0; half < 2; half++) {
        const int line = 2 * group + half;
        LULLM_UNROLL for (int tile = 0; tile < 2; tile++) {
          const char* at = w + tile * kDigitTileBytes + line * 64;
          fetch_far(at + kFarBytes), fetch_near(at + kNearBytes);
          const I digits = load_integers(at);
          const I parts[4] = {both(digits, mask), both(shift_right_16<8>(digits), mask),
                              both(shift_right_16<4>(digits), mask), shift_right_16<12>(digits)};
          LULLM_UNROLL for (int r = 0; r < kRows; r++)
            LULLM_UNROLL for (int part = 0; part < 4; part++)
              of_group[r][tile] = add_dot(of_group[r][tile], parts[part], pair_at(x + r * x_stride, 4 * line + part));
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

// A part of a panel as it is multiplied, and where it begins.
struct Part {
  const char* w;
  Form form;
  int64_t first_block, blocks;
};

template <int kRows>
void multiply_rows(const QuantizedArgs& a, int64_t row, const Part& part, Total (*totals)[2]) {
  const int64_t depth = num_blocks(a.in), stride = row_bytes(depth);
  const char* x = a.x_prepared + row * stride;
  const char* pairs = x + part.first_block * kBlockInputs * 2;
  if (part.form == Form::kWide) return multiply_bytes<true, kRows>(part.w, pairs, stride, part.blocks, totals);
  if (part.form == Form::kBytes) return multiply_bytes<false, kRows>(part.w, pairs, stride, part.blocks, totals);
  if constexpr (kRows <= kDigitRows)
    multiply_digits<kRows>(part.w, pairs, x + pairs_bytes(depth) + part.first_block * kBlockGroups * 4, stride, part.blocks, totals);
}

void multiply_part(const QuantizedArgs& a, int64_t row, int64_t last_row, const Part& part, Total (*totals)[2]) {
  auto next = [&](auto rows) {
    multiply_rows<rows>(a, row, part, totals);
    row += rows, totals += rows;
  };
  if constexpr (kMaxRows >= 8) {
    while (row + 8 <= last_row) next(std::integral_constant<int, 8>());
    if (row + 4 <= last_row) next(std::integral_constant<int, 4>());
  }
  while (row + 2 <= last_row) next(std::integral_constant<int, 2>());
  if (row < last_row) next(std::integral_constant<int, 1>());
}

// [sides][rows][2], and behind them a part expanded to bytes, and to 16 bits.
int64_t totals_bytes(const QuantizedArgs& a) {
  return a.num_sides() * std::min(a.num_rows, kQuantizedRows) * 2 * static_cast<int64_t>(sizeof(Total));
}
int64_t scratch_bytes(const QuantizedArgs& a) { return totals_bytes(a) + kPartBlocks * (kByteBlockBytes + kWideBlockBytes); }

template <class T>
void multiply_panels(const QuantizedArgs& a, int64_t first_row, int64_t last_row, int64_t first_panel,
                     int64_t last_panel, void* scratch) {
  const int64_t rows = last_row - first_row, depth = num_blocks(a.in), stride = row_bytes(depth);
  const int64_t block_bytes = a.bits == 8 ? kByteBlockBytes : kDigitBlockBytes;
  const Form form = form_of(a, rows);
  const bool expands = a.bits == 4 && form != Form::kDigits;
  auto* totals = static_cast<Total(*)[2]>(scratch);
  char* bytes = static_cast<char*>(scratch) + totals_bytes(a);
  char* wide = bytes + kPartBlocks * kByteBlockBytes;
  for (int64_t panel = first_panel; panel < last_panel; panel++) {
    for (int64_t i = 0; i < a.num_sides() * rows; i++) start(totals[i][0]), start(totals[i][1]);
    for (int64_t side = 0; side < a.num_sides(); side++) {
      const char* w = reinterpret_cast<const char*>(panel_of_side(a, side, panel));
      for (int64_t first = 0; first < depth; first += kPartBlocks, w += kPartBlocks * block_bytes) {
        Part part = {w, form, first, std::min(kPartBlocks, depth - first)};
        if (expands) expand_blocks(w, part.blocks, bytes), part.w = bytes;
        if (form == Form::kWide) widen_blocks(part.w, part.blocks, wide), part.w = wide;
        multiply_part(a, first_row, last_row, part, totals + side * rows);
      }
    }
    for (int64_t row = 0; row < rows; row++) {
      const V row_scale = set1(*scale_of(a.x_prepared + (first_row + row) * stride, depth));
      V results[2][2];
      for (int64_t side = 0; side < a.num_sides(); side++) {
        for (int tile = 0; tile < 2; tile++) results[side][tile] = value_of(totals[side * rows + row][tile]);
        scale_outputs<T>(a, panel_of_side(a, side, panel) + depth * block_bytes, side, panel, row_scale, results[side]);
      }
      store_outputs<T>(a, first_row + row, panel, results[0], results[1]);
    }
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
