// Products of attention with tiles, cut so small that they can be run one by one between other work.
#pragma once

#include "../tile.h"
#include "packed.h"

namespace lullm {
namespace amx {

using namespace avx512_bf16;

constexpr int64_t kPairRows = 32;  // of two row tiles

// The products of a step in pieces of four, to be run one by one between other work. Second operands pass through the
// first-level cache without staying there: it is full of queries, scores, weights and sums.
class ScorePieces {
 public:
  ScorePieces(const char* q, const char* keys, int64_t depth, float* scores)
      : q(q), keys(keys), depth(depth), scores(scores) {}

  int64_t count() const { return 2 * depth; }

  // 32 rows times 32 of the keys, a tile of the depth.
  void run_next() {
    const char *rows = q + d * 2 * kTileBytes, *columns = keys + 4 * d * kTileBytes;
    if (d == 0) {
      TILE_ZERO(0);
      TILE_ZERO(1);
      TILE_ZERO(2);
      TILE_ZERO(3);
    }
    TILE_LOAD(4, rows, 64);
    TILE_LOAD_ONCE(6, columns, 64);
    TILE_MULTIPLY(0, 4, 6);
    TILE_LOAD_ONCE(7, columns + kTileBytes, 64);
    TILE_MULTIPLY(1, 4, 7);
    TILE_LOAD(5, rows + kTileBytes, 64);
    TILE_MULTIPLY(2, 5, 6);
    TILE_MULTIPLY(3, 5, 7);
    if (++d < depth) return;
    TILE_STORE(scores, kStepKeys * 4, 0);
    TILE_STORE(scores + 16, kStepKeys * 4, 1);
    TILE_STORE(scores + 16 * kStepKeys, kStepKeys * 4, 2);
    TILE_STORE(scores + 16 * kStepKeys + 16, kStepKeys * 4, 3);
    d = 0, keys += 2 * kTileBytes, scores += 32;
  }

 private:
  const char *q, *keys;
  int64_t depth, d = 0;
  float* scores;
};

class ValuePieces {
 public:
  // `is_first`: there are no sums yet.
  ValuePieces(const char* weights, const char* values, int64_t size, float* sums, bool is_first)
      : weights(weights), values(values), left(size), sums(sums), is_first(is_first), size(size) {}

  int64_t count() const { return size + size % 2; }

  // 32 rows times 32 of the elements, for 32 of the keys.
  void run_next() {
    const bool is_single = left == 1;
    if (!is_second && is_first) {
      TILE_ZERO(0);
      TILE_ZERO(1);
      TILE_ZERO(2);
      TILE_ZERO(3);
    } else if (!is_second) {
      TILE_LOAD(0, sums, 64);
      TILE_LOAD(1, sums + 256, 64);
      if (!is_single) {
        TILE_LOAD(2, sums + 512, 64);
        TILE_LOAD(3, sums + 768, 64);
      }
    }
    const char *rows = weights + is_second * 2 * kTileBytes, *columns = values + is_second * kTileBytes;
    TILE_LOAD(4, rows, 64);
    TILE_LOAD_ONCE(6, columns, 64);
    TILE_MULTIPLY(0, 4, 6);
    TILE_LOAD(5, rows + kTileBytes, 64);
    TILE_MULTIPLY(1, 5, 6);
    if (!is_single) {
      TILE_LOAD_ONCE(7, columns + 2 * kTileBytes, 64);
      TILE_MULTIPLY(2, 4, 7);
      TILE_MULTIPLY(3, 5, 7);
    }
    is_second = !is_second;
    if (is_second) return;
    TILE_STORE(sums, 64, 0);
    TILE_STORE(sums + 256, 64, 1);
    if (!is_single) {
      TILE_STORE(sums + 512, 64, 2);
      TILE_STORE(sums + 768, 64, 3);
    }
    values += 4 * kTileBytes, sums += 1024, left -= 2;
  }

 private:
  const char *weights, *values;
  int64_t left;
  float* sums;
  bool is_first, is_second = false;
  int64_t size;
};

}  // namespace amx
}  // namespace lullm
