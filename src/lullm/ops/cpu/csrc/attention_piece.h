// Pieces of attention with tiles: keys and values as second operands, and the products with them, cut so small that they
// can be run one by one between other work.
#pragma once

#include "kernel_table.h"
#include "simd.h"
#include "tile.h"

namespace lullm {
namespace amx {

using namespace avx512_bf16;

constexpr int64_t kStepKeys = 64;
constexpr int64_t kPairRows = 32;  // of two row tiles

static inline int64_t depth_of(int64_t head_size) { return (head_size + kTileDepth - 1) / kTileDepth; }

static inline __m512i load_elements(const Bf16* p, int64_t count) {
  return count >= 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16((1u << count) - 1, p);
}

// The keys of 64 slots, pairs of elements side by side and keys across.
static inline void pack_keys(const AttentionArgs& a, const Bf16* const* keys, char* to) {
  for (int64_t depth = 0; depth < depth_of(a.head_size); depth++) {
    for (int64_t group = 0; group < 4; group++, to += kTileBytes) {
      __m512i rows[16];
      LULLM_UNROLL for (int64_t i = 0; i < 16; i++)
        rows[i] = load_elements(keys[16 * group + i] + depth * kTileDepth, a.head_size - depth * kTileDepth);
      transpose(rows, to, 64);
    }
  }
}

// The values of 64 slots: for each 16 elements, two neighbours in the sequence side by side.
static inline void pack_values(const AttentionArgs& a, const Bf16* const* values, char* to) {
  for (int64_t pair = 0; pair < 32; pair++) {
    const Bf16 *even = values[2 * pair], *odd = values[2 * pair + 1];
    for (int64_t d = 0; d < a.head_size; d += 16) {
      __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(even + d)));
      __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd + d)));
      _mm512_store_si512(to + (d / 16 * 2 + pair / 16) * kTileBytes + pair % 16 * 64,
                         _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
  }
}

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
