// What a head reads and writes of a chunk in which every element of a key decays by itself: see `Shared`.
//
// A token meets an earlier key with the decays between the two, element by element, while a product of tiles takes a factor
// of the token and a factor of the key. So a chunk is halved again and again: what the later half of a piece meets in the
// earlier half decays from there to where the halves meet, and from there on. Both are products of decays, at most 1,
// whatever the decays are: nothing overflows, and what vanishes is nothing in the sum either. Pieces of four tokens are
// left to vectors.

#include <cmath>

#include "chunk.h"
#include "softplus.h"

namespace lullm {
namespace amx {
namespace {

constexpr int64_t kNeighbours = 4;  // tokens that vectors compare with each other

class DecayedChunk {
 public:
  DecayedChunk(const RecurrenceArgs& a, const Chunk& chunk, int64_t head, const Shared& shared, void* scratch)
      : a_(a), chunk_(chunk), head_(head), size_(a.key_dim), shared_(shared) {
    char* at = static_cast<char*>(scratch);
    const auto take = [&](int64_t num_bytes) { return at += num_bytes, at - num_bytes; };
    for (float** floats : {&queries_, &keys_, &decays_}) *floats = reinterpret_cast<float*>(take(kChunkTokens * size_ * 4));
    for (Bf16** given : {&given_keys_, &given_steps_}) *given = reinterpret_cast<Bf16*>(take(kChunkTokens * size_ * 2));
    for (char** rows : {&query_rows_, &key_rows_, &columns_}) *rows = take(2 * 16 * size_ * 2);
  }

  void share() {
    take_given();
    normalize();
    for (int64_t t = 0; t < kChunkTokens; t += kLanes)
      store(shared_.query_factors + t, set1(1.0f)), store(shared_.key_factors + t, set1(1.0f));
    decay_rows(0, chunk_.end, 0, kChunkTokens, shared_.queries, shared_.key_rows);
    score_halves<16>(), score_halves<8>(), score_halves<4>();
    for (int64_t first = chunk_.begin / kNeighbours * kNeighbours; first < chunk_.end; first += kNeighbours) score_neighbours(first);
    if (chunk_.is_full()) leave();
  }

 private:
  static constexpr int kPairs = kNeighbours * (kNeighbours - 1) / 2;

  // Keys, and what decays follow from, of all tokens so far.
  void take_given() {
    const int64_t group = head_ / a_.heads_of_group();
    if (chunk_.begin > 0) {
      a_.state.read(chunk_.span, a_.kept_keys_place(head_), chunk_.begin * size_ / 2, reinterpret_cast<float*>(given_keys_));
      a_.state.read(chunk_.span, a_.kept_decays_place(head_), chunk_.begin * size_ / 2, reinterpret_cast<float*>(given_steps_));
    }
    for (int64_t t = chunk_.begin; t < chunk_.end; t++) {
      const int64_t row = chunk_.first_row + t;
      std::memcpy(given_keys_ + t * size_, static_cast<const Bf16*>(a_.keys) + row * a_.key_stride + group * size_, size_ * 2);
      std::memcpy(given_steps_ + t * size_, a_.steps_by_key(row, head_), size_ * 2);
    }
  }

  // Keys and queries of length 1, queries divided by the root of their size; decays. Tokens to come are zeros that leave
  // everything as it is.
  void normalize() {
    const Bf16* queries = static_cast<const Bf16*>(a_.queries) + head_ / a_.heads_of_group() * size_;
    const V rate = set1(-std::exp(a_.a_log[head_])), one = set1(1.0f);
    const float* bias = a_.dt_bias + head_ * size_;
    for (int64_t t = 0; t < chunk_.end; t++) {
      set_length(given_keys_ + t * size_, 1.0f, keys_ + t * size_);
      if (t >= chunk_.begin)
        set_length(queries + (chunk_.first_row + t) * a_.key_stride, 1.0f / std::sqrt(static_cast<float>(size_)), queries_ + t * size_);
      for (int64_t i = 0; i < size_; i += kLanes)
        store(decays_ + t * size_ + i, exp(mul(rate, softplus(add(load(given_steps_ + t * size_ + i), load(bias + i))))));
    }
    for (int64_t t = chunk_.end; t % kNeighbours > 0; t++)
      for (int64_t i = t * size_; i < (t + 1) * size_; i += kLanes) store(queries_ + i, zero()), store(keys_ + i, zero()), store(decays_ + i, one);
  }

  void set_length(const Bf16* from, float length, float* to) const {
    V squares = zero();
    for (int64_t i = 0; i < size_; i += kLanes) squares = fma(load(from + i), load(from + i), squares);
    const V factor = set1(length / std::sqrt(sum(squares) + kNormEps));
    for (int64_t i = 0; i < size_; i += kLanes) store(to + i, mul(load(from + i), factor));
  }

  // Queries and keys of the step's tokens in [begin, end), each times all decays from `begin` to itself: rows from `row` on of
  // [key_dim / 32][num_rows][32], first operands, what is left of them behind.
  void decay_rows(int64_t begin, int64_t end, int64_t row, int64_t num_rows, char* queries, char* keys) const {
    const int64_t rest = num_rows * size_ * 2;
    for (int64_t i = 0; i < size_; i += kTileDepth) {
      V first = set1(1.0f), second = first;
      for (int64_t t = begin; t < end; t++) {
        const int64_t from = t * size_ + i, to = i * num_rows * 2 + (row + t - begin) * 64;
        first = mul(first, load(decays_ + from)), second = mul(second, load(decays_ + from + kLanes));
        if (t < chunk_.begin) continue;
        split_row(mul(load(queries_ + from), first), mul(load(queries_ + from + kLanes), second), queries + to, queries + to + rest);
        split_row(mul(load(keys_ + from), first), mul(load(keys_ + from + kLanes), second), keys + to, keys + to + rest);
      }
    }
  }

  // Tokens of later halves with keys of the earlier halves of the same pieces. All rows meet all columns; what is of two
  // pieces is left away.
  template <int half>
  void score_halves() {
    alignas(64) char rows[2][kTileBytes];
    const auto is_met = [&](int64_t begin) { return begin + half < chunk_.end && begin + 2 * half > chunk_.begin; };
    bool is_any = false;
    for (int64_t begin = 0; begin < kChunkTokens; begin += 2 * half) {
      if (!is_met(begin)) continue;
      decay_rows(begin + half, std::min(begin + 2 * half, chunk_.end), begin / 2, 16, query_rows_, key_rows_);
      is_any = true;
    }
    if (!is_any) return;
    for (int64_t i = 0; i < size_; i += kTileDepth) {
      for (int64_t begin = 0; begin < kChunkTokens; begin += 2 * half) {
        if (!is_met(begin)) continue;
        V first = set1(1.0f), second = first;
        for (int64_t t = begin + half - 1; t >= begin; t--) {
          const int64_t from = t * size_ + i, to = (begin / 2 + t - begin) * 64;
          split_row(mul(load(keys_ + from), first), mul(load(keys_ + from + kLanes), second), rows[0] + to, rows[1] + to);
          first = mul(first, load(decays_ + from)), second = mul(second, load(decays_ + from + kLanes));
        }
      }
      for (int part = 0; part < 2; part++) transpose(rows[part], 64, columns_ + i * 64 + part * kTileBytes, 64);
    }
    alignas(64) float sums[4][16 * kLanes];
    multiply(sums);
    for (int64_t row = 0; row < 16; row++) {
      const int64_t piece = row / half, place = (piece * 2 * half + half + row % half) * kChunkTokens + piece * half;
      if (!is_met(piece * 2 * half)) continue;
      const __mmask16 own = static_cast<__mmask16>(((1u << half) - 1) << piece * half);
      _mm512_mask_storeu_ps(shared_.scores + place, own, add(load(sums[0] + row * kLanes), load(sums[2] + row * kLanes)));
      _mm512_mask_storeu_ps(shared_.key_scores + place, own, add(load(sums[1] + row * kLanes), load(sums[3] + row * kLanes)));
    }
  }

  // Rows of queries and of keys times the columns, in two sums each.
  void multiply(float (*sums)[16 * kLanes]) const {
    const int64_t rest = 16 * size_ * 2;
    TILE_ZERO(0); TILE_ZERO(1); TILE_ZERO(2); TILE_ZERO(3);
    for (int64_t i = 0; i < size_; i += kTileDepth) {
      TILE_LOAD(6, columns_ + i * 64, 64);
      TILE_LOAD(7, columns_ + i * 64 + kTileBytes, 64);
      TILE_LOAD(4, query_rows_ + i * 32, 64);
      TILE_LOAD(5, key_rows_ + i * 32, 64);
      TILE_MULTIPLY(0, 4, 6); TILE_MULTIPLY(1, 5, 6);
      TILE_MULTIPLY(2, 4, 7); TILE_MULTIPLY(3, 5, 7);
      TILE_LOAD(4, query_rows_ + rest + i * 32, 64);
      TILE_LOAD(5, key_rows_ + rest + i * 32, 64);
      TILE_MULTIPLY(2, 4, 6); TILE_MULTIPLY(3, 5, 6);
    }
    TILE_STORE(sums[0], 64, 0); TILE_STORE(sums[1], 64, 1);
    TILE_STORE(sums[2], 64, 2); TILE_STORE(sums[3], 64, 3);
  }

  void score_neighbours(int64_t first) {
    V own[kNeighbours], by_query[kPairs], by_key[kPairs];
    LULLM_UNROLL for (int t = 0; t < kNeighbours; t++) own[t] = zero();
    LULLM_UNROLL for (int n = 0; n < kPairs; n++) by_query[n] = by_key[n] = zero();
    for (int64_t i = first * size_; i < (first + 1) * size_; i += kLanes) {
      V query[kNeighbours], key[kNeighbours];
      LULLM_UNROLL for (int t = 0; t < kNeighbours; t++) {
        query[t] = load(queries_ + i + t * size_), key[t] = load(keys_ + i + t * size_);
        own[t] = fma(query[t], key[t], own[t]);
      }
      int n = 0;
      LULLM_UNROLL for (int of = 0; of < kNeighbours; of++) {
        V left = key[of];
        LULLM_UNROLL for (int t = of + 1; t < kNeighbours; t++, n++) {
          left = mul(left, load(decays_ + i + t * size_));
          by_query[n] = fma(query[t], left, by_query[n]), by_key[n] = fma(key[t], left, by_key[n]);
        }
      }
    }
    int n = 0;
    LULLM_UNROLL for (int of = 0; of < kNeighbours; of++) {
      const int64_t place = (first + of) * kChunkTokens + first + of;
      shared_.scores[place] = sum(own[of]);
      LULLM_UNROLL for (int t = of + 1; t < kNeighbours; t++, n++) {
        shared_.scores[place + (t - of) * kChunkTokens] = sum(by_query[n]);
        shared_.key_scores[place + (t - of) * kChunkTokens] = sum(by_key[n]);
      }
    }
  }

  // What the state keeps of itself and, as first operands, of the keys of a full chunk: each times all decays behind it.
  void leave() const {
    alignas(64) char pairs[2][kTileBytes];
    for (int64_t i = 0; i < size_; i += kLanes) {
      V keys[kChunkTokens], behind = set1(1.0f);
      LULLM_UNROLL for (int64_t t = kChunkTokens - 1; t >= 0; t--) {
        keys[t] = mul(load(keys_ + t * size_ + i), behind);
        behind = mul(behind, load(decays_ + t * size_ + i));
      }
      store(shared_.decays + i, behind);
      for (int64_t t = 0; t < kChunkTokens; t += 2) split_pair(keys[t], keys[t + 1], pairs[0] + t * 32, pairs[1] + t * 32);
      for (int part = 0; part < 2; part++) transpose(pairs[part], 64, shared_.keys + (part * size_ + i) * 64, 64);
    }
  }

  const RecurrenceArgs& a_;
  const Chunk& chunk_;
  int64_t head_, size_;
  const Shared& shared_;
  float *queries_, *keys_, *decays_;    // [32][key_dim]
  Bf16 *given_keys_, *given_steps_;     // [32][key_dim]
  char *query_rows_, *key_rows_;        // of later halves: [2][key_dim / 32][16][32], first operands
  char* columns_;                       // of earlier halves: [key_dim / 32][2][16][32], second operands
};

}  // namespace

void share_chunk_by_key(const RecurrenceArgs& a, const Chunk& chunk, int64_t head, const Shared& shared, void* scratch) {
  DecayedChunk(a, chunk, head, shared, scratch).share();
}

}  // namespace amx
}  // namespace lullm
