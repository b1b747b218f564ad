// Grids without codes, with AMX: a tile product sums over one group, since each has a scale of its own. While vectors add the
// sums of one group, tiles multiply the next ones.
//
// A group is 32 inputs: half a tile of bytes, and a whole one of bf16. Digits of 8 bits are multiplied as bytes, with the upper
// and the lower byte of an activation. Those of 4 bits are as quick as bf16, and so are the two parts of an activation's integer,
// its upper 8 bits in their place and its lower ones: then both products go to one sum, whose numbers are integers below
// 2**24, exact in whatever order tiles add them, and one tile is stored instead of two.
#pragma once

#include "grid_panel.h"
#include "quantized_panel.h"
#include "tile.h"

namespace lullm {
namespace amx {

using namespace avx512_bf16;

constexpr int64_t kTileInputs = 32;  // of a group, and of a tile

// Rows [first, last), at most 16: by group of 32 inputs their upper parts as bf16, pairs of inputs as `expand_digits` leaves
// those of the weight, and their lower parts; or by block the bytes. Then the scales of the rows, and minus the sums of their
// groups as floats, [groups][16].
template <bool kOfBytes>
void prepare_groups(const QuantizedArgs& a, int64_t first, int64_t last, char* tile) {
  const int64_t padded = num_blocks(a.in) * kBlockInputs, bytes = kOfBytes ? 32 : 64;  // for an input of 16 rows
  float* scales = reinterpret_cast<float*>(tile + padded * bytes);
  for (int64_t r = 0; r < kTileRows; r++) {
    const Bf16* x = static_cast<const Bf16*>(a.x) + (first + r) * a.x_stride;
    const bool is_there = first + r < last;
    const RowScale scale = is_there ? scale_row(x, a.in) : RowScale{zero(), 0.0f};
    float* minus_sum = scales + kTileRows + r;
    for (int64_t at = 0; at < padded; at += kTileInputs, minus_sum += kTileRows) {
      char* to = tile + (kOfBytes ? at / kBlockInputs * 2 * kTileBytes + at % kBlockInputs : at * bytes) + r * 64;
      I sum = zero_integers();
      for (int64_t i = 0; i < kTileInputs; i += kLanes) {
        const int64_t left = is_there ? a.in - at - i : 0;
        const I integers = left > 0 ? to_integers(mul(load_up_to(x + at + i, left), scale.inverse)) : zero_integers();
        if constexpr (kOfBytes) {
          store_bytes(to + i, shift_signed_32<8>(integers));
          store_bytes(to + kTileBytes + i, shift_signed_32<24>(shift_left_32<24>(integers)));
        } else {
          const I lower = both(integers, set_integers(255)), upper = both(integers, set_integers(~255));
          store_crossed(to + 2 * i, shift_signed_32<16>(bits_of(to_floats(upper))));
          store_crossed(to + kTileBytes + 2 * i, shift_signed_32<16>(bits_of(to_floats(lower))));
        }
        sum = add(sum, integers);
      }
      *minus_sum = -static_cast<float>(total(sum));
    }
    scales[r] = scale.value;
  }
}

constexpr int64_t kChunkGroups = 4;  // of the depth: so much of two panels and of 16 rows stays in the first-level cache

// Such a chunk of a tile of a panel: digits as bf16 or bytes, scales and minimums as floats.
struct Expanded {
  uint8_t digits[kChunkGroups * kTileBytes];
  float scales[kChunkGroups * kTileRows], mins[kChunkGroups * kTileRows];
};

// Eight inputs of 16 outputs, as pairs: 0 and 2, 1 and 3, 4 and 6, 5 and 7. The table sees five bits of a word, of which the
// uppermost is another digit's: so it holds the sixteen numbers twice.
inline void expand_digits(const uint8_t* line, __m512i table, uint8_t* to) {
  const I eight = load_integers(line);
  store_integers(to, _mm512_permutexvar_epi16(eight, table));
  store_integers(to + 64, _mm512_permutexvar_epi16(shift_right_16<8>(eight), table));
  store_integers(to + 128, _mm512_permutexvar_epi16(shift_right_16<4>(eight), table));
  store_integers(to + 192, _mm512_permutexvar_epi16(shift_right_16<12>(eight), table));
}

// The numbers of 4 bits.
template <int kGrid>
__m512i digit_table() {
  alignas(64) uint16_t numbers[2 * kTileRows];
  for (int i = 0; i < 2 * kTileRows; i++) {
    const float digit = static_cast<float>(i % 16 - (kGrids[kGrid].is_biased ? kLargestDigit : 0));
    uint32_t bits;
    std::memcpy(&bits, &digit, 4);
    numbers[i] = static_cast<uint16_t>(bits >> 16);
  }
  return load_integers(numbers);
}

template <int kGrid>
void expand(const uint8_t* panel, int64_t tile, int64_t first_block, int64_t blocks, __m512i table, Expanded& to) {
  constexpr Grid grid = kGrids[kGrid];
  constexpr int64_t kLines = 2 * grid.digit_bits, kNumbers = grid.digit_bits == 4 ? 256 : 64;  // of a tile; bytes of a line's
  uint8_t* digits = to.digits;
  for (int64_t block = 0; block < blocks; block++) {
    const uint8_t* from = panel + (first_block + block) * grid.block_bytes() + tile * (grid.digit_bytes() / 2);
    for (int64_t line = 0; line < kLines; line++, from += 64, digits += kNumbers) {
      _mm_prefetch(reinterpret_cast<const char*>(from) + 4096, _MM_HINT_T0);
      if constexpr (grid.digit_bits == 4) expand_digits(from, table, digits);
      else store_integers(digits, load_integers(from));
    }
    const GroupScales<kGrid> scales(panel, first_block + block);
    for (int64_t group = 0; group < 2; group++) {
      store(to.scales + (2 * block + group) * kTileRows, scales.scale(group, tile));
      if constexpr (grid.has_mins()) store(to.mins + (2 * block + group) * kTileRows, scales.minimum(group, tile));
    }
  }
}

#define LULLM_NUMBER_PRODUCTS(sum, w_tile) \
  TILE_LOAD(w_tile, w, 64);                \
  TILE_ZERO(sum);                          \
  TILE_LOAD(4, x, 64);                     \
  TILE_MULTIPLY(sum, 4, w_tile);           \
  TILE_LOAD(5, x + kTileBytes, 64);        \
  TILE_MULTIPLY(sum, 5, w_tile);           \
  TILE_STORE(sums, 64, sum)
#define LULLM_BYTE_PRODUCTS(high_sum, low_sum, w_tile) \
  TILE_LOAD(w_tile, w, 64);                            \
  TILE_ZERO(high_sum);                                 \
  TILE_ZERO(low_sum);                                  \
  TILE_LOAD(4, x, 64);                                 \
  TILE_MULTIPLY_SIGNED(high_sum, 4, w_tile);           \
  TILE_LOAD(5, x + kTileBytes, 64);                    \
  TILE_MULTIPLY_UNSIGNED(low_sum, 5, w_tile);          \
  TILE_STORE(sums, 64, high_sum);                      \
  TILE_STORE(sums + kSums, 64, low_sum)

// Rows as `prepare_groups` left them, `stride` bytes for each 16: from the first of some groups on.
struct GroupRows {
  const char* tiles;
  const float* minus_sums;
  int64_t stride, num_tiles;
};

// Adds some groups of all rows times several tiles of panels to their totals, [tiles of rows][parts][16][16]. From the
// second-level cache the next rows are fetched early, a part of them beside each product.
template <int kGrid>
void add_groups(const GroupRows& of_rows, const Expanded* w_parts, int64_t parts, int64_t groups, float* totals) {
  constexpr Grid grid = kGrids[kGrid];
  constexpr bool kIsOne = grid.digit_bits == 4;  // sum, of upper and lower parts
  constexpr int64_t kSums = kTileRows * kTileRows, kSets = kIsOne ? 4 : 2, kAhead = kIsOne ? 2 : 1, kSetSums = (kIsOne ? 1 : 2) * kSums;
  alignas(64) float images[kSets * kSetSums];
  // What is multiplied next.
  const char* x_tile = of_rows.tiles;
  int64_t part = 0, group = 0, set = 0, tiles_left = of_rows.num_tiles;
  const auto multiply = [&] {
    if (tiles_left == 0) return;
    const char* x = x_tile + (kIsOne ? group * 2 * kTileBytes : group / 2 * 2 * kTileBytes + group % 2 * kTileInputs);
    const uint8_t* w = w_parts[part].digits + group * kTileBytes / (kIsOne ? 1 : 2);
    float* sums = images + set * kSetSums;
    if constexpr (kIsOne) {
      switch (set) {
        case 0: LULLM_NUMBER_PRODUCTS(0, 6); break;
        case 1: LULLM_NUMBER_PRODUCTS(1, 7); break;
        case 2: LULLM_NUMBER_PRODUCTS(2, 6); break;
        default: LULLM_NUMBER_PRODUCTS(3, 7);
      }
    } else if (set == 0) {
      LULLM_BYTE_PRODUCTS(0, 1, 6);
    } else {
      LULLM_BYTE_PRODUCTS(2, 3, 7);
    }
    set = (set + 1) % kSets;
    if (++group < groups) return;
    group = 0;
    if (++part < parts) return;
    part = 0, tiles_left--, x_tile += of_rows.stride;
  };
  for (int64_t i = 0; i < kAhead; i++) multiply();
  const float* minus_sums = of_rows.minus_sums;
  const float* sums = images;
  for (int64_t tile = 0; tile < of_rows.num_tiles; tile++, minus_sums += of_rows.stride / 4) {
    for (int64_t i = 0; i < parts; i++, totals += kSums) {
      V rows[kTileRows];
      LULLM_UNROLL for (int r = 0; r < kTileRows; r++) rows[r] = load(totals + r * kTileRows);
      for (int64_t j = 0; j < groups; j++) {
        multiply();
        const V scale = load(w_parts[i].scales + j * kTileRows);
        V minimum = zero();
        if constexpr (grid.has_mins()) minimum = load(w_parts[i].mins + j * kTileRows);
        LULLM_UNROLL for (int r = 0; r < kTileRows; r++) {
          const float* of_row = sums + r * kTileRows;
          V sum;
          if constexpr (kIsOne) sum = load(of_row);
          else sum = to_floats(add(shift_left_32<8>(load_integers(of_row)), load_integers(of_row + kSums)));
          rows[r] = fma(scale, sum, rows[r]);
          if constexpr (grid.has_mins()) rows[r] = fma(minimum, set1(minus_sums[j * kTileRows + r]), rows[r]);
        }
        sums = sums + kSetSums < images + kSets * kSetSums ? sums + kSetSums : images;
      }
      LULLM_UNROLL for (int r = 0; r < kTileRows; r++) store(totals + r * kTileRows, rows[r]);
    }
  }
}

}  // namespace amx
}  // namespace lullm
