// Parts of attention with tiles for a few query rows: the tiles' shapes, scores that come out transposed, products with
// packed values.
#pragma once

#include <optional>

#include "rows.h"
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

// Sixteen rows of keys from `first + offset` on as a first operand: 64 bytes of integers, or what becomes bf16. `left`:
// elements of the head; zeros follow.
template <class C>
inline void copy_keys(const char* first, const int64_t* offset, int64_t left, float* to) {
  auto copy = [&](auto load_row) {
    LULLM_UNROLL for (int64_t i = 0; i < kGroupKeys; i++)
      store(to + kLanes * i, load_row(reinterpret_cast<const C*>(first + offset[i])));
  };
  if (std::is_same_v<C, Int8> && left >= 64) copy([](const C* key) { return load_bytes(key, 64); });
  else if (std::is_same_v<C, Int8>) copy([&](const C* key) { return load_bytes(key, left); });
  else if (left >= kTileDepth) copy([](const C* key) { return load_units<Bf16>(key, kTileDepth); });
  else copy([](const C* key) { return load_units<Bf16>(key, kTileDepth / 2); });
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

// The products of a step's values of a head, packed, with their weights: 16 elements of the head at a time.
struct ValueProducts {
  const char *weights = nullptr, *values = nullptr;
  float* sums = nullptr;
  int64_t num_rows = 0, num_halves = 0, left = 0;  // tiles of 16 elements
  bool has_weights = false;

  // Not inlined, as the products with keys: see there.
  __attribute__((noinline)) void run_next() {
    if (left <= 0) return;
    if (!has_weights) {
      TILE_LOAD(5, weights, 64);
      TILE_LOAD(6, weights + num_rows * 64, 64);
    }
    has_weights = true;
    TILE_LOAD(7, sums, 64);
    TILE_LOAD(3, values, 64);
    TILE_MULTIPLY(7, 5, 3);
    if (num_halves > 1) {
      TILE_LOAD(4, values + kTileBytes, 64);
      TILE_MULTIPLY(7, 6, 4);
    }
    TILE_STORE(sums, 64, 7);
    values += 2 * kTileBytes, sums += num_rows * 16, left--;
  }

  void finish() {
    while (left > 0) run_next();
  }
};

// Fetches of an item's heads, in portions beside other work. Plain rows: as RowsAhead, keys beside products of keys.
class HalfFetches {
 public:
  HalfFetches(const AttentionArgs& a, const AttentionItem& item, const StepsAhead& steps)
      : keys(a, steps, a.key_cache, kHalfKeys, item.first_step(), kHalfKeys),
        values(a, steps, a.value_cache, kHalfKeys, item.first_step(), kHalfKeys) {}

  void enter(int64_t) {}
  // What lasts `count` portions, in which half a step's values of a head are fetched.
  void enter_part(int64_t count, int64_t) { num_portions = count, due = 0; }
  void fetch() {
    int64_t num_rows = 0;
    for (due += kHalfKeys; due >= num_portions; due -= num_portions) num_rows++;
    values.fetch(num_rows);
  }
  void fetch_keys(int64_t num_rows) { keys.fetch(num_rows); }

 private:
  RowsAhead keys, values;
  int64_t num_portions = 0, due = 0;
};

// Of rows that share their lines with the next head's: all of the next step, keys and values, token after token.
class StepFetches {
 public:
  StepFetches(const AttentionArgs& a, const AttentionItem&, const StepsAhead& steps) : a(a), steps(steps) {}

  void enter(int64_t step) {
    const AttentionItem& item = steps.item_of(step + 1);
    ahead.emplace(a, steps.keys(step + 1), item.first_head, item.last_head);
  }
  // The first of `num_parts` like it that the step still has.
  void enter_part(int64_t num_portions, int64_t num_parts) { num_lines = ahead->num_lines() / (num_portions * num_parts) + 1; }
  void fetch() { ahead->fetch(num_lines); }
  void fetch_keys(int64_t) {}

 private:
  const AttentionArgs& a;
  const StepsAhead& steps;
  std::optional<Ahead> ahead;
  int64_t num_lines = 0;
};

}  // namespace amx
}  // namespace lullm
