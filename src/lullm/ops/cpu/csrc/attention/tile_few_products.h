// Parts of attention with tiles for a few query rows: the tiles' shapes, scores that come out transposed, products with
// packed values.
#pragma once

#include "tile_products.h"

namespace lullm {
namespace amx {

constexpr int64_t kGroupKeys = 16;             // whose products with the queries are a tile
constexpr int64_t kHalfKeys = 2 * kGroupKeys;  // whose values are a tile's depth

// Their numbers are part of the instructions: scores 0 and 1, queries 2, keys or values 3 and 4, weights 5, sums 6 and 7.
inline TileSession shape_tiles(int64_t num_rows, int64_t num_columns) {
  const TileShape transposed = {16, 4 * num_columns}, few = {num_rows, 64};
  return TileSession({transposed, transposed, transposed, {}, {}, few, few, few});
}

// Four of `stride` columns, 16 floats each, become rows of a step's scores.
inline void transpose_columns(const float* from, int64_t stride, float* to) {
  V lanes[4];
  LULLM_UNROLL for (int i = 0; i < 4; i++) {
    lanes[i] = _mm512_castps128_ps512(_mm_loadu_ps(from + stride * i));
    lanes[i] = _mm512_mask_broadcast_f32x4(lanes[i], 0x00f0, _mm_loadu_ps(from + stride * (4 + i)));
    lanes[i] = _mm512_mask_broadcast_f32x4(lanes[i], 0x0f00, _mm_loadu_ps(from + stride * (8 + i)));
    lanes[i] = _mm512_mask_broadcast_f32x4(lanes[i], 0xf000, _mm_loadu_ps(from + stride * (12 + i)));
  }
  const V a = _mm512_unpacklo_ps(lanes[0], lanes[1]), b = _mm512_unpackhi_ps(lanes[0], lanes[1]);
  const V c = _mm512_unpacklo_ps(lanes[2], lanes[3]), d = _mm512_unpackhi_ps(lanes[2], lanes[3]);
  store(to, _mm512_shuffle_ps(a, c, 0x44));
  store(to + kStepKeys, _mm512_shuffle_ps(a, c, 0xee));
  store(to + 2 * kStepKeys, _mm512_shuffle_ps(b, d, 0x44));
  store(to + 3 * kStepKeys, _mm512_shuffle_ps(b, d, 0xee));
}

// The way back: four rows of 16 floats become columns.
inline void transpose_rows(const V* rows, float* to, int64_t stride) {
  const V a = _mm512_unpacklo_ps(rows[0], rows[1]), b = _mm512_unpackhi_ps(rows[0], rows[1]);
  const V c = _mm512_unpacklo_ps(rows[2], rows[3]), d = _mm512_unpackhi_ps(rows[2], rows[3]);
  const V columns[4] = {_mm512_shuffle_ps(a, c, 0x44), _mm512_shuffle_ps(a, c, 0xee), _mm512_shuffle_ps(b, d, 0x44),
                        _mm512_shuffle_ps(b, d, 0xee)};
  LULLM_UNROLL for (int i = 0; i < 4; i++) {
    _mm_storeu_ps(to + stride * i, _mm512_extractf32x4_ps(columns[i], 0));
    _mm_storeu_ps(to + stride * (4 + i), _mm512_extractf32x4_ps(columns[i], 1));
    _mm_storeu_ps(to + stride * (8 + i), _mm512_extractf32x4_ps(columns[i], 2));
    _mm_storeu_ps(to + stride * (12 + i), _mm512_extractf32x4_ps(columns[i], 3));
  }
}

// The products of half a step's values of a head, packed, with their weights: 32 elements of the head at a time.
struct ValueProducts {
  const char *weights = nullptr, *values = nullptr;
  float* sums = nullptr;
  int64_t sum_floats = 0, left = 0;  // of 16 elements; of those the number
  bool has_weights = false;

  // Not inlined, as the products with keys: see there.
  __attribute__((noinline)) void run_next() {
    if (left <= 0) return;
    if (!has_weights) TILE_LOAD(5, weights, 64);
    has_weights = true;
    const bool are_two = left > 1;
    TILE_LOAD(6, sums, 64);
    TILE_LOAD(3, values, 64);
    TILE_MULTIPLY(6, 5, 3);
    if (are_two) {
      TILE_LOAD(7, sums + sum_floats, 64);
      TILE_LOAD(4, values + 2 * kTileBytes, 64);
      TILE_MULTIPLY(7, 5, 4);
      TILE_STORE(sums + sum_floats, 64, 7);
    }
    TILE_STORE(sums, 64, 6);
    values += 4 * kTileBytes, sums += 2 * sum_floats, left -= 2;
  }

  void finish() {
    while (left > 0) run_next();
  }
};

}  // namespace amx
}  // namespace lullm
