// What the kernels of recurrences by chunks have in common: numbers in two parts, and what the heads of a group share.
#pragma once

#include "../kernel_table.h"
#include "../processor.h"
#include "../simd.h"
#include "../tile.h"

namespace lullm {
namespace amx {

using namespace avx512_bf16;

constexpr float kNormEps = 1e-6f;

// The same columns of two rows as pairs: their first eight bits to `high`, the next ones to `low`.
static inline void split_pair(V a, V b, char* high, char* low) {
  const __m512i places = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                          20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const I first = _mm512_permutexvar_epi16(places, bits_of(round_to_pairs(a, b)));
  const V left_of_a = sub(a, floats_of(shift_left_32<16>(first)));
  const V left_of_b = sub(b, floats_of(both(first, set_integers(static_cast<int32_t>(0xffff0000)))));
  store_integers(high, first);
  store_integers(low, _mm512_permutexvar_epi16(places, bits_of(round_to_pairs(left_of_a, left_of_b))));
}

// Thirty-two neighbours in a row: the same, in their order.
static inline void split_row(V a, V b, char* high, char* low) {
  const I half = set_integers(0x8000), upper = set_integers(static_cast<int32_t>(0xffff0000));
  const V first_of_a = floats_of(both(add(bits_of(a), half), upper)), first_of_b = floats_of(both(add(bits_of(b), half), upper));
  store_integers(high, bits_of(round_to_pairs(first_of_a, first_of_b)));
  store_integers(low, bits_of(round_to_pairs(sub(a, first_of_a), sub(b, first_of_b))));
}

// The rows of a chunk's two tiles that a step computes: of a full chunk all, otherwise those of its own tokens, since few
// rows take little time.
struct ChunkRows {
  bool has[2];
  int64_t first[2], count[2];

  explicit ChunkRows(const Chunk& chunk) {
    for (int64_t tile = 0; tile < 2; tile++) {
      has[tile] = tile >= chunk.first_tile() && tile <= chunk.last_tile();
      first[tile] = chunk.is_full() || !has[tile] ? 0 : std::max(chunk.begin - tile * 16, int64_t{0});
      count[tile] = chunk.is_full() || !has[tile] ? 16 : std::min(chunk.end - tile * 16, int64_t{16}) - first[tile];
    }
  }
  // Registers 0, 2 and 4 are for rows of the first tile, 1, 3 and 5 for the second one's.
  TileSession session() const {
    const TileShape one = {count[0], 64}, other = {count[1], 64};
    return TileSession({one, other, one, other, one, other, {}, {}});
  }
};

// What a chunk's heads have in common, as `prepare_chunk` leaves it. The delta rule's keys and queries have length 1. Where
// elements of keys decay by themselves it is of one head, decays are part of it, and what is left of queries and keys is
// key_dim * 64 bytes behind their first bits.
struct Shared {
  char* queries;  // [key_dim / 32][32 tokens][32], first operands
  char* keys;     // [key_dim][32 tokens], first operands
  float* scores;  // [32][32]: a token's query times the keys
  // Of the delta rule:
  float* key_scores;  // [32][32]: a token's key times the keys
  float *query_factors, *key_factors;  // [32]: what makes them as long as they are meant
  char* key_rows;  // as the queries
  float* decays;   // [key_dim]: of a full chunk, by element of the key

  Shared(const RecurrenceArgs& a, char* prepared) : queries(prepared) {
    const int64_t size = a.key_dim * (a.decays_by_key ? 128 : 64);
    keys = queries + size;
    scores = reinterpret_cast<float*>(keys + size);
    key_scores = scores + kChunkTokens * kChunkTokens;
    query_factors = key_scores + kChunkTokens * kChunkTokens;
    key_factors = query_factors + kChunkTokens;
    key_rows = reinterpret_cast<char*>(key_factors + kChunkTokens);
    decays = reinterpret_cast<float*>(key_rows + size);
  }
};

// Fetches what the rows [row, end) of a step give to a head, of which nothing else fetches short pieces in pages of their
// own: a piece at a time between products, since a burst would keep loads of tiles waiting.
struct Ahead {
  const RecurrenceArgs* a = nullptr;
  int64_t head = 0, row = 0, end = 0;
  int piece = 0;

  void fetch() {
    if (row >= end) return;
    const int64_t shared = row * a->key_stride + head / a->heads_of_group() * a->key_dim;
    if (piece == 0) fetch_piece(a->values, row * a->value_stride + head * a->value_dim, a->value_dim);
    if (piece == 1 && !a->prepares_ahead()) fetch_piece(a->queries, shared, a->key_dim);
    if (piece == 2 && !a->prepares_ahead()) fetch_piece(a->keys, shared, a->key_dim);
    if (piece == 3 && a->decays_by_key) fetch_piece(a->steps_by_key(row, head), 0, a->key_dim);
    if (++piece == 4) piece = 0, row++;
  }
  static void fetch_piece(const void* rows, int64_t at, int64_t size) {
    const char* from = reinterpret_cast<const char*>(static_cast<const Bf16*>(rows) + at);
    for (int64_t i = 0; i < size * 2; i += 64) fetch_far(from + i);
  }
};

// `Kernels::prepare_chunk` within a session of tiles.
void share_chunk(const RecurrenceArgs& a, const Chunk& chunk, int64_t group, const Shared& shared, void* scratch);
// The same of a head.
void share_chunk_by_key(const RecurrenceArgs& a, const Chunk& chunk, int64_t head, const Shared& shared, void* scratch);

}  // namespace amx
}  // namespace lullm
