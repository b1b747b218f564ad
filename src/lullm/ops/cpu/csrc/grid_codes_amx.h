// Grids with codes, with AMX: a digit times its code is an integer of 14 bits, so that products are summed over a whole
// span of 256 inputs before a float is needed.
//
// Weights and activations are two bytes each, the upper one signed: four tile products for 64 inputs, each into sums of
// its own. While the tiles multiply the next span, vectors finish the one before, some rows at a time.
#pragma once

#include "grid_panel.h"
#include "prepared_row.h"
#include "quantized_panel.h"
#include "tile.h"

namespace lullm {
namespace amx {

using namespace avx512_bf16;

constexpr int64_t kTileSums = kTileRows * kTileRows;

// Groups of a span come in pairs, as 16-bit integers.
template <int kGrid>
constexpr int64_t kPairs = kGrids[kGrid].groups() * kSpanBlocks / 2;

inline int64_t num_spans(int64_t blocks) { return (blocks + kSpanBlocks - 1) / kSpanBlocks; }

// A panel as the tiles want it.
template <int kGrid>
struct Coded {
  int64_t blocks;
  uint8_t* bytes;  // [2 tiles][blocks][upper, lower][16 lines][64], then [2 tiles][spans] of what vectors want

  static constexpr int64_t kSpanBytes = (2 + kPairs<kGrid>) * 64;  // factors, those of minimums, [pairs] of their codes
  static int64_t bytes_of(int64_t blocks) { return 2 * (blocks * 2 * kTileBytes + num_spans(blocks) * kSpanBytes); }

  uint8_t* digits(int64_t tile, int64_t block) const { return bytes + (tile * blocks + block) * 2 * kTileBytes; }
  uint8_t* span(int64_t tile, int64_t span) const {
    return bytes + blocks * 4 * kTileBytes + (tile * num_spans(blocks) + span) * kSpanBytes;
  }

  void expand(const uint8_t* panel) const {
    const GroupCodes<kGrid> codes = {panel, blocks};
    for (int64_t block = 0; block < blocks; block++)
      for (int64_t tile = 0; tile < 2; tile++) expand_tile(panel, codes, block, tile);
    for (int64_t i = 0; i < num_spans(blocks); i++) {
      for (int64_t tile = 0; tile < 2; tile++) {
        float* to = reinterpret_cast<float*>(span(tile, i));
        store(to, codes.factor(i, tile));
        if constexpr (!kOf.has_mins()) continue;
        store(to + kTileRows, codes.min_factor(i, tile));
        for (int64_t pair = 0; pair < kPairs<kGrid>; pair++) {
          const int64_t block = i * kSpanBlocks + 2 * pair / kOf.groups(), group = 2 * pair % kOf.groups();
          I both_codes = zero_integers();
          if (block < blocks)
            both_codes = either(load_signed_bytes(codes.minimums_at(block, group, tile)),
                                shift_left_32<16>(load_signed_bytes(codes.minimums_at(block, group + 1, tile))));
          store_integers(to + (2 + pair) * kTileRows, both_codes);
        }
      }
    }
  }

 private:
  static constexpr Grid kOf = kGrids[kGrid];

  void expand_tile(const uint8_t* panel, const GroupCodes<kGrid>& codes, int64_t block, int64_t tile) const {
    const uint8_t* from = panel + block * kOf.block_bytes() + tile * (kOf.digit_bytes() / 2);
    uint8_t* to = digits(tile, block);
    const I byte = set_integers(0x00ff00ff), nibbles = set_integers(0x0f0f0f0f);
    I code = zero_integers();
    for (int line = 0; line < 16; line++, to += 64) {
      if (line % (kOf.group_inputs / 4) == 0) {
        const I wide = load_signed_bytes(codes.at(block, line / (kOf.group_inputs / 4), tile));
        code = either(both(wide, set_integers(0xffff)), shift_left_32<16>(wide));
      }
      I bytes;
      if constexpr (kOf.digit_bits == 8) {
        bytes = load_integers(from + line * 64);
        _mm_prefetch(reinterpret_cast<const char*>(from) + 4096 + line * 64, _MM_HINT_T0);
      } else {
        const I eight = load_integers(from + line / 2 * 64);
        _mm_prefetch(reinterpret_cast<const char*>(from) + 4096 + line / 2 * 64, _MM_HINT_T0);
        bytes = both(line % 2 == 0 ? eight : shift_right_16<4>(eight), nibbles);
      }
      const I even = multiply_16(shift_signed_16<8>(shift_left_16<8>(bytes)), code);
      const I odd = multiply_16(shift_signed_16<8>(bytes), code);
      store_integers(to, either(shift_right_16<8>(even), both(odd, set_integers(0xff00ff00))));
      store_integers(to + kTileBytes, either(both(even, byte), shift_left_16<8>(odd)));
    }
  }
};

// Of 16 rows, minus the sums of the groups: [spans][16][pairs], a pair of upper parts, then one of lower 8 bits.
template <int kGrid>
void sum_pairs(const char* tile, int64_t blocks, char* to) {
  constexpr Grid grid = kGrids[kGrid];
  constexpr int64_t kLanesOfGroup = grid.group_inputs / 4;
  std::memset(to, 0, num_spans(blocks) * 16 * kPairs<kGrid> * 8);
  const I ones = set_integers(0x01010101);
  for (int64_t block = 0; block < blocks; block++, tile += 2 * kTileBytes) {
    for (int64_t r = 0; r < 16; r++) {
      const I high = _mm512_dpbusd_epi32(zero_integers(), ones, load_integers(tile + r * 64));
      const I low = _mm512_dpbusd_epi32(zero_integers(), load_integers(tile + kTileBytes + r * 64), ones);
      alignas(64) int32_t fours[16];
      store_integers(fours, add(shift_left_32<8>(high), low));
      int16_t* row = reinterpret_cast<int16_t*>(to) + (block / kSpanBlocks * 16 + r) * kPairs<kGrid> * 4;
      for (int64_t group = 0; group < grid.groups(); group++) {
        int32_t minus_sum = 0;
        for (int64_t i = 0; i < kLanesOfGroup; i++) minus_sum -= fours[group * kLanesOfGroup + i];
        const int64_t at = block % kSpanBlocks * grid.groups() + group;
        row[at / 2 * 4 + at % 2] = static_cast<int16_t>(minus_sum >> 8);
        row[at / 2 * 4 + 2 + at % 2] = static_cast<int16_t>(minus_sum & 255);
      }
    }
  }
}

// The sums of a span, 16 rows times 16 outputs, on their way to the totals.
template <int kGrid>
class Spans {
 public:
  struct Span {
    int32_t* sums = nullptr;  // [4][16][16]: upper times upper bytes, upper times lower, lower times upper, lower
    float* totals;            // [16][16]
    const uint8_t* of_panel;  // see `Coded::span`
    const char* of_rows;      // see `sum_pairs`
  };

  void take(const Span& span) {
    finish_rows(16);
    span_ = span, row_ = 0;
  }

  void finish_rows(int64_t count) {
    for (; count > 0 && row_ < 16; count -= kRows, row_ += kRows) finish();
  }

 private:
  static constexpr int kRows = 4;  // at once: they share what is loaded of the panel; loads are what there is most of

  void finish() {
    const float* of_panel = reinterpret_cast<const float*>(span_.of_panel);
    const V factor = load(of_panel);
    V totals[kRows];
    LULLM_UNROLL for (int r = 0; r < kRows; r++) {
      const int32_t* sums = span_.sums + (row_ + r) * kTileRows;
      const I middle = add(load_integers(sums + kTileSums), load_integers(sums + 2 * kTileSums));
      const I high = add(load_integers(sums), shift_signed_32<8>(middle));
      const I low = add(load_integers(sums + 3 * kTileSums), shift_left_32<8>(both(middle, set_integers(255))));
      const V sum = fma(to_floats(high), set1(65536.0f), to_floats(low));  // both are exact, below 2**24
      totals[r] = fma(factor, sum, load(span_.totals + (row_ + r) * kTileRows));
    }
    if constexpr (kGrids[kGrid].has_mins()) subtract_minimums(of_panel, totals);
    LULLM_UNROLL for (int r = 0; r < kRows; r++) store(span_.totals + (row_ + r) * kTileRows, totals[r]);
  }

  void subtract_minimums(const float* of_panel, V (&totals)[kRows]) {
    const char* pairs = span_.of_rows + row_ * kPairs<kGrid> * 8;
    I upper[kRows], lower[kRows];
    LULLM_UNROLL for (int r = 0; r < kRows; r++) upper[r] = lower[r] = zero_integers();
    LULLM_UNROLL for (int64_t pair = 0; pair < kPairs<kGrid>; pair++) {
      const I codes = load_integers(of_panel + (2 + pair) * kTileRows);
      LULLM_UNROLL for (int r = 0; r < kRows; r++) {
        upper[r] = add_dot(upper[r], codes, pair_at(pairs, 2 * (r * kPairs<kGrid> + pair)));
        lower[r] = add_dot(lower[r], codes, pair_at(pairs, 2 * (r * kPairs<kGrid> + pair) + 1));
      }
    }
    const V factor = load(of_panel + kTileRows);
    LULLM_UNROLL for (int r = 0; r < kRows; r++)
      totals[r] = fma(factor, to_floats(add(shift_left_32<8>(upper[r]), lower[r])), totals[r]);
  }

  Span span_;
  int64_t row_ = 16;
};

#define LULLM_NEW_SUMS(tile)                            \
  TILE_STORE(before.sums + tile * kTileSums, 64, tile); \
  TILE_ZERO(tile)

// Multiplies a span. The sums `before` are stored between the products of the first block, and then finished: a register
// that is being stored can take no product, and four in a row would wait for 100 cycles of 256.
template <int kGrid>
inline void multiply_span(const char* x, const uint8_t* w, int64_t blocks, const typename Spans<kGrid>::Span& before,
                          Spans<kGrid>& spans) {
  TILE_LOAD(6, w, 64);
  TILE_LOAD(4, x, 64);
  TILE_LOAD(7, w + kTileBytes, 64);
  TILE_LOAD(5, x + kTileBytes, 64);
  LULLM_NEW_SUMS(0);
  TILE_MULTIPLY_SIGNED(0, 4, 6);
  LULLM_NEW_SUMS(1);
  TILE_MULTIPLY_SIGNED_UNSIGNED(1, 4, 7);
  LULLM_NEW_SUMS(2);
  TILE_MULTIPLY_UNSIGNED(2, 5, 6);
  LULLM_NEW_SUMS(3);
  TILE_MULTIPLY_BOTH_UNSIGNED(3, 5, 7);
  if (before.totals != nullptr) spans.take(before);
  for (int64_t i = 1; i < blocks; i++) {
    x += 2 * kTileBytes, w += 2 * kTileBytes;
    TILE_LOAD(6, w, 64);
    TILE_LOAD(4, x, 64);
    TILE_MULTIPLY_SIGNED(0, 4, 6);
    TILE_LOAD(7, w + kTileBytes, 64);
    TILE_MULTIPLY_SIGNED_UNSIGNED(1, 4, 7);
    TILE_LOAD(5, x + kTileBytes, 64);
    TILE_MULTIPLY_UNSIGNED(2, 5, 6);
    TILE_MULTIPLY_BOTH_UNSIGNED(3, 5, 7);
    spans.finish_rows(4);
  }
}

}  // namespace amx
}  // namespace lullm
