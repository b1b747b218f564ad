// What the heads of a group share of a chunk, computed once for all of them: see `Shared`.

#include <cmath>

#include "../flush_denormals.h"
#include "chunk.h"

namespace lullm {
namespace amx {
namespace {

// Rows times keys, of the tokens of these tiles: a token's with its own and those before it.
void score(const char* rows, const char* columns, int64_t depth, int64_t first_tile, int64_t last_tile, float* scores) {
  for (int64_t tile = first_tile; tile <= last_tile; tile++) {
    for (int64_t of = 0; of <= tile; of++) {
      TILE_ZERO(0);
      for (int64_t step = 0; step < depth; step++) {
        TILE_LOAD(4, rows + (step * 2 + tile) * kTileBytes, 64);
        TILE_LOAD(6, columns + (of * depth + step) * kTileBytes, 64);
        TILE_MULTIPLY(0, 4, 6);
      }
      TILE_STORE(scores + tile * 16 * kChunkTokens + of * 16, kChunkTokens * 4, 0);
    }
  }
}

// A token's row where tiles find it.
void put_row(const char* row, int64_t depth, int64_t t, char* rows) {
  for (int64_t step = 0; step < depth; step++) store_integers(rows + (step * kChunkTokens + t) * 64, load_integers(row + step * 64));
}

// The scores of queries and keys of length 1, and the factors that make them so. Queries are also divided by the root of
// their size.
void normalize(const RecurrenceArgs& a, const Chunk& chunk, int64_t group, const Shared& shared) {
  alignas(64) float squares[2][kChunkTokens] = {};
  for (int64_t t = chunk.begin; t < chunk.end; t++) {
    const Bf16* query = static_cast<const Bf16*>(a.queries) + (chunk.first_row + t) * a.key_stride + group * a.key_dim;
    V total = zero();
    for (int64_t i = 0; i < a.key_dim; i += kLanes) total = fma(load(query + i), load(query + i), total);
    squares[0][t] = sum(total);
  }
  for (int64_t t = 0; t < chunk.end; t++) squares[1][t] = shared.key_scores[t * kChunkTokens + t];
  const V query_length = set1(1.0f / std::sqrt(static_cast<float>(a.key_dim)));
  for (int64_t t = 0; t < kChunkTokens; t += kLanes) {
    store(shared.query_factors + t, div(query_length, _mm512_sqrt_ps(add(load(squares[0] + t), set1(kNormEps)))));
    store(shared.key_factors + t, div(set1(1.0f), _mm512_sqrt_ps(add(load(squares[1] + t), set1(kNormEps)))));
  }
  const auto scale = [&](float* scores, const float* factors, int64_t first) {
    for (int64_t t = first; t < chunk.end; t++)
      for (int64_t of = 0; of <= t; of += kLanes) {
        float* place = scores + t * kChunkTokens + of;
        store(place, mul(load(place), mul(set1(factors[t]), load(shared.key_factors + of))));
      }
  };
  scale(shared.scores, shared.query_factors, chunk.begin);
  scale(shared.key_scores, shared.key_factors, 0);
}

void prepare_chunk(const RecurrenceArgs& a, const Chunk& chunk, int64_t group, char* prepared, void* scratch) {
  const FlushDenormals flush;
  const TileSession session;
  share_chunk(a, chunk, group, Shared(a, prepared), scratch);
}

}  // namespace

void share_chunk(const RecurrenceArgs& a, const Chunk& chunk, int64_t group, const Shared& shared, void* scratch) {
  const int64_t row_bytes = a.key_dim * 2, depth = a.key_dim / kTileDepth;
  char* keys = static_cast<char*>(scratch);         // [32][key_dim]
  char* columns = keys + kChunkTokens * row_bytes;  // [2][depth], second operands
  if (chunk.begin > 0)
    a.state.read(chunk.span, a.kept_keys_place(group), chunk.begin * a.key_dim / 2, reinterpret_cast<float*>(keys));
  if (!chunk.is_whole()) std::memset(shared.queries, 0, kChunkTokens * row_bytes);
  for (int64_t t = chunk.begin; t < chunk.end; t++) {
    const int64_t at = (chunk.first_row + t) * a.key_stride + group * a.key_dim;
    std::memcpy(keys + t * row_bytes, static_cast<const Bf16*>(a.keys) + at, row_bytes);
    put_row(reinterpret_cast<const char*>(static_cast<const Bf16*>(a.queries) + at), depth, t, shared.queries);
  }
  std::memset(keys + chunk.end * row_bytes, 0, (kChunkTokens - chunk.end) * row_bytes);
  for (int64_t tile = 0; tile <= chunk.last_tile(); tile++)
    for (int64_t step = 0; step < depth; step++)
      transpose(keys + tile * 16 * row_bytes + step * 64, row_bytes, columns + (tile * depth + step) * kTileBytes, 64);
  score(shared.queries, columns, depth, chunk.first_tile(), chunk.last_tile(), shared.scores);
  if (a.is_delta()) {
    for (int64_t t = 0; t < 16 * (chunk.last_tile() + 1); t++) put_row(keys + t * row_bytes, depth, t, shared.key_rows);
    score(shared.key_rows, columns, depth, 0, chunk.last_tile(), shared.key_scores);
    normalize(a, chunk, group, shared);
  }
  if (!chunk.is_full()) return;
  for (int64_t i = 0; i < a.key_dim; i += kLanes) {
    __m512i pairs[16];
    for (int64_t t = 0; t < kChunkTokens; t += 2) {
      const Bf16* first = reinterpret_cast<const Bf16*>(keys + t * row_bytes) + i;
      pairs[t / 2] = bits_of(pair_first(load_pairs(first, kLanes), load_pairs(first + a.key_dim, kLanes)));
    }
    transpose(pairs, shared.keys + i * 64, 64);
  }
}

void fill_shared_chunks(Kernels& kernels) { kernels.prepare_chunk = prepare_chunk; }

}  // namespace amx
}  // namespace lullm
