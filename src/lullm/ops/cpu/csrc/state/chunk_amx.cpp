// State spaces (Mamba 2) as products of tiles: 32 tokens of a sequence at a time, a chunk, at multiples of 32.
//
// A token reads the state as it was before its chunk, and what the tokens of the chunk up to itself have written: their
// keys times its query, times the decay between the two, times their values. A chunk changes the state when its last token
// is there. Until then its tokens are kept beside the state. So what is summed for a token, and in which order, follows
// from its place in the sequence alone, however the sequence is cut into steps.
//
// Queries, keys and values are bf16 as they are. What is not, the state and what decay has been applied to, is split into
// two bf16 that hold its first 16 bits: two products instead of one.

#include <cmath>

#include "../flush_denormals.h"
#include "../kernel_table.h"
#include "../simd.h"
#include "../tile.h"
#include "softplus.h"

namespace lullm {
namespace amx {
namespace {

using namespace avx512_bf16;

constexpr float kLeastDecay = -100.0f;  // logarithm of a token's decay: what is less makes no difference, but sums inexact

// The same columns of two rows as pairs: their first eight bits to `high`, the next ones to `low`.
inline void split_pair(V a, V b, char* high, char* low) {
  const __m512i places = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                          20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const I first = _mm512_permutexvar_epi16(places, bits_of(round_to_pairs(a, b)));
  const V left_of_a = sub(a, floats_of(shift_left_32<16>(first)));
  const V left_of_b = sub(b, floats_of(both(first, set_integers(static_cast<int32_t>(0xffff0000)))));
  store_integers(high, first);
  store_integers(low, _mm512_permutexvar_epi16(places, bits_of(round_to_pairs(left_of_a, left_of_b))));
}

// Thirty-two neighbours in a row: the same, in their order.
inline void split_row(V a, V b, char* high, char* low) {
  const V first_of_a = round_to_bf16(a), first_of_b = round_to_bf16(b);
  store_integers(high, bits_of(round_to_pairs(first_of_a, first_of_b)));
  store_integers(low, bits_of(round_to_pairs(sub(a, first_of_a), sub(b, first_of_b))));
}

// What a chunk's heads have in common, as `prepare_chunk` leaves it.
struct Shared {
  char* queries;  // [key_dim / 32][32 tokens][32], first operands
  char* keys;     // [key_dim][32 tokens], first operands
  float* scores;  // [32][32]: a token's query times the keys

  Shared(const RecurrenceArgs& a, char* prepared)
      : queries(prepared), keys(prepared + a.key_dim * 64), scores(reinterpret_cast<float*>(prepared + a.key_dim * 128)) {}
};

void prepare_chunk(const RecurrenceArgs& a, const Chunk& chunk, int64_t group, char* prepared, void* scratch) {
  const FlushDenormals flush;
  const TileSession session;
  const Shared shared(a, prepared);
  const int64_t row_bytes = a.key_dim * 2, depth = a.key_dim / kTileDepth;
  char* keys = static_cast<char*>(scratch);         // [32][key_dim]
  char* columns = keys + kChunkTokens * row_bytes;  // [2][depth], second operands
  if (chunk.begin > 0)
    a.state.read(chunk.span, a.kept_keys_place(group), chunk.begin * a.key_dim / 2, reinterpret_cast<float*>(keys));
  if (!chunk.is_whole()) std::memset(shared.queries, 0, kChunkTokens * row_bytes);
  for (int64_t t = chunk.begin; t < chunk.end; t++) {
    const int64_t at = (chunk.first_row + t) * a.key_stride + group * a.key_dim;
    std::memcpy(keys + t * row_bytes, static_cast<const Bf16*>(a.keys) + at, row_bytes);
    const char* query = reinterpret_cast<const char*>(static_cast<const Bf16*>(a.queries) + at);
    for (int64_t step = 0; step < depth; step++)
      std::memcpy(shared.queries + (step * kChunkTokens + t) * 64, query + step * 64, 64);
  }
  std::memset(keys + chunk.end * row_bytes, 0, (kChunkTokens - chunk.end) * row_bytes);
  for (int64_t tile = 0; tile <= chunk.last_tile(); tile++)
    for (int64_t step = 0; step < depth; step++)
      transpose(keys + tile * 16 * row_bytes + step * 64, row_bytes, columns + (tile * depth + step) * kTileBytes, 64);
  for (int64_t tile = chunk.first_tile(); tile <= chunk.last_tile(); tile++) {
    for (int64_t of = 0; of <= tile; of++) {
      TILE_ZERO(0);
      for (int64_t step = 0; step < depth; step++) {
        TILE_LOAD(4, shared.queries + (step * 2 + tile) * kTileBytes, 64);
        TILE_LOAD(6, columns + (of * depth + step) * kTileBytes, 64);
        TILE_MULTIPLY(0, 4, 6);
      }
      TILE_STORE(shared.scores + tile * 16 * kChunkTokens + of * 16, kChunkTokens * 4, 0);
    }
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

// Sixteen neighbours or fewer, from or to the cache.
template <bool kBack>
inline void copy(float* own, float* place, int64_t count) {
  float *to = kBack ? place : own, *from = kBack ? own : place;
  if (count == kLanes) store(to, load(from));
  else std::memcpy(to, from, count * sizeof(float));
}

// One head over the chunks of a span. Its columns are taken 16 at a time, a strip.
class Head {
 public:
  Head(const RecurrenceArgs& a, int64_t span, int64_t head, void* scratch)
      : a_(a), span_(span), head_(head), strips_(a.value_dim / kLanes), kept_(a.kept_of_head()) {
    char* at = static_cast<char*>(scratch);
    const auto take = [&](int64_t num_bytes) { return at += num_bytes, at - num_bytes; };
    state_ = reinterpret_cast<float*>(take(a.key_dim * a.value_dim * 4));
    parts_ = take(a.key_dim * 64);
    pairs_ = take(a.value_dim * 64);
    written_ = take(a.value_dim * 128);
    read_ = reinterpret_cast<float*>(take(a.value_dim * 256));
    own_ = reinterpret_cast<float*>(take(a.value_dim * 128));
    weights_ = take(4 * kTileBytes);
    tokens_ = reinterpret_cast<float*>(take(kept_ * kChunkTokens * 4));
  }

  void run(const char* prepared, int64_t prepared_stride) {
    const FlushDenormals flush;
    const TileSession session;
    const int64_t num_chunks = a_.state.num_chunks(span_);
    bool has_changed = false;
    for (int64_t number = 0; number < num_chunks; number++, prepared += prepared_stride) {
      const Chunk chunk = a_.state.chunk(span_, number);
      const Shared shared(a_, const_cast<char*>(prepared));
      if (number == 0 && !chunk.is_first) for_state<false>();
      if (chunk.is_first && chunk.is_full()) std::memset(state_, 0, a_.key_dim * a_.value_dim * 4);
      take_tokens(chunk);
      weigh(chunk, shared);
      for (int64_t strip = 0; strip < strips_; strip++) {
        float* state = state_ + strip * a_.key_dim * kLanes;
        if (!chunk.is_first) read(chunk, shared, strip, state);
        read_own(chunk, strip);
        if (chunk.is_full()) write(shared, strip, state);
      }
      give(chunk);
      has_changed |= chunk.is_full();
    }
    if (has_changed) for_state<true>();
  }

 private:
  const Bf16* value(int64_t t) const { return reinterpret_cast<const Bf16*>(tokens_ + t * kept_); }

  // The state, which lies in strips here, from the cache or back.
  template <bool kBack>
  void for_state() {
    const int64_t size = a_.key_dim * a_.value_dim;
    a_.state.for_pieces(span_, head_ * size, size, [&](float* place, int64_t at, int64_t count) {
      int64_t row = at / a_.value_dim, column = at % a_.value_dim;
      while (count > 0) {
        const int64_t n = std::min(count, kLanes - column % kLanes);
        copy<kBack>(state_ + (column / kLanes * a_.key_dim + row) * kLanes + column % kLanes, place, n);
        place += n, count -= n, column += n;
        if (column == a_.value_dim) column = 0, row++;
      }
    });
  }

  // The chunk's tokens: values, the sum of the logarithms of decay so far, and the step size. Tokens to come are zeros.
  void take_tokens(const Chunk& chunk) {
    const int64_t size = a_.value_dim;
    alignas(64) float given[kChunkTokens] = {}, logs[kChunkTokens];
    if (chunk.begin > 0) a_.state.read(span_, a_.kept_place(head_), chunk.begin * kept_, tokens_);
    std::memset(tokens_ + chunk.end * kept_, 0, (kChunkTokens - chunk.end) * kept_ * 4);
    for (int64_t t = chunk.begin; t < chunk.end; t++) {
      const int64_t row = chunk.first_row + t;
      std::memcpy(tokens_ + t * kept_, static_cast<const Bf16*>(a_.values) + row * a_.value_stride + head_ * size, size * 2);
      given[t] = to_float(static_cast<const Bf16*>(a_.steps)[row * a_.step_stride + head_]);
    }
    const V rate = set1(-std::exp(a_.a_log[head_])), bias = set1(a_.dt_bias[head_]);
    for (int64_t t = 0; t < kChunkTokens; t += kLanes) {
      const V step = min(max(softplus(add(load(given + t), bias)), set1(a_.least_step)), set1(a_.most_step));
      store(steps_ + t, step);
      store(logs + t, max(mul(rate, step), set1(kLeastDecay)));
    }
    float sum = 0;
    for (int64_t t = 0; t < kChunkTokens; t++) {
      float* sizes = tokens_ + t * kept_ + size / 2;
      if (t >= chunk.begin && t < chunk.end) sizes[0] = sum + logs[t], sizes[1] = steps_[t];
      sums_[t] = sum = sizes[0], steps_[t] = sizes[1];
    }
    for (int64_t t = 0; t < kChunkTokens; t += kLanes) store(decays_ + t, exp(load(sums_ + t)));
    if (!chunk.is_full()) keep_tokens(chunk);
    for (int64_t strip = 0; strip < strips_; strip++)
      for (int64_t t = 0; t < kChunkTokens; t += 2) {
        const V first = load_pairs(value(t) + strip * kLanes, kLanes), second = load_pairs(value(t + 1) + strip * kLanes, kLanes);
        store_integers(pairs_ + strip * kTileBytes + t * 32, bits_of(pair_first(first, second)));
      }
  }

  // For the next step. Keys of earlier tokens are read no more when heads are worked on.
  void keep_tokens(const Chunk& chunk) {
    a_.state.write(span_, a_.kept_place(head_) + chunk.begin * kept_, (chunk.end - chunk.begin) * kept_, tokens_ + chunk.begin * kept_);
    const int64_t heads = a_.num_heads / a_.num_groups, group = head_ / heads;
    if (head_ % heads > 0) return;
    for (int64_t t = chunk.begin; t < chunk.end; t++) {
      const Bf16* key = static_cast<const Bf16*>(a_.keys) + (chunk.first_row + t) * a_.key_stride + group * a_.key_dim;
      a_.state.write(span_, a_.kept_keys_place(group) + t * a_.key_dim / 2, a_.key_dim / 2, reinterpret_cast<const float*>(key));
    }
  }

  // How much of each value a token reads: scores times the decay in between times step sizes. And, of a full chunk, what is
  // written into the state.
  void weigh(const Chunk& chunk, const Shared& shared) {
    for (int64_t t = chunk.begin; t < chunk.end; t++) {
      V weights[2] = {zero(), zero()};
      for (int64_t of = 0; of <= t / kLanes; of++) {
        const V between = exp(sub(set1(sums_[t]), load(sums_ + of * kLanes)));
        const V score = load(shared.scores + t * kChunkTokens + of * kLanes);
        weights[of] = keep_below(mul(mul(score, between), load(steps_ + of * kLanes)), of * kLanes, t + 1, 0.0f);
      }
      split_row(weights[0], weights[1], weights_ + t * 64, weights_ + 2 * kTileBytes + t * 64);
    }
    if (!chunk.is_full()) return;
    alignas(64) float left[kChunkTokens];
    for (int64_t t = 0; t < kChunkTokens; t += kLanes)
      store(left + t, mul(exp(sub(set1(sums_[kChunkTokens - 1]), load(sums_ + t))), load(steps_ + t)));
    for (int64_t strip = 0; strip < strips_; strip++)
      for (int64_t t = 0; t < kChunkTokens; t += 2) {
        char* to = written_ + strip * 2 * kTileBytes + t * 32;
        const V first = load(value(t) + strip * kLanes), second = load(value(t + 1) + strip * kLanes);
        split_pair(mul(set1(left[t]), first), mul(set1(left[t + 1]), second), to, to + kTileBytes);
      }
  }

  // Queries times both parts of a strip of the state, which a full chunk then lets decay. Products that add to one tile wait
  // for each other, so there is one for each part.
  void read(const Chunk& chunk, const Shared& shared, int64_t strip, float* state) {
    const V factor = set1(decays_[kChunkTokens - 1]);
    for (int64_t i = 0; i < a_.key_dim; i += 2) {
      const V a = load(state + i * kLanes), b = load(state + (i + 1) * kLanes);
      char* to = parts_ + i / kTileDepth * 2 * kTileBytes + i % kTileDepth * 32;
      split_pair(a, b, to, to + kTileBytes);
      if (chunk.is_full()) store(state + i * kLanes, mul(a, factor)), store(state + (i + 1) * kLanes, mul(b, factor));
    }
    const bool has_first = chunk.first_tile() == 0, has_second = chunk.last_tile() == 1;
    float* to = read_ + strip * 2 * kChunkTokens * kLanes;
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (int64_t i = 0; i < a_.key_dim; i += kTileDepth) {
      const char *queries = shared.queries + i * 64, *parts = parts_ + i * 64;
      TILE_LOAD(6, parts, 64);
      TILE_LOAD(7, parts + kTileBytes, 64);
      if (has_first) {
        TILE_LOAD(4, queries, 64);
        TILE_MULTIPLY(0, 4, 6);
        TILE_MULTIPLY(2, 4, 7);
      }
      if (has_second) {
        TILE_LOAD(5, queries + kTileBytes, 64);
        TILE_MULTIPLY(1, 5, 6);
        TILE_MULTIPLY(3, 5, 7);
      }
    }
    TILE_STORE(to, 64, 0);
    TILE_STORE(to + 16 * kLanes, 64, 1);
    TILE_STORE(to + 32 * kLanes, 64, 2);
    TILE_STORE(to + 48 * kLanes, 64, 3);
  }

  // What a token reads of the values of its chunk.
  void read_own(const Chunk& chunk, int64_t strip) {
    TILE_LOAD(6, pairs_ + strip * kTileBytes, 64);
    for (int64_t tile = chunk.first_tile(); tile <= chunk.last_tile(); tile++) {
      TILE_ZERO(2);
      TILE_LOAD(4, weights_ + tile * kTileBytes, 64);
      TILE_MULTIPLY(2, 4, 6);
      TILE_LOAD(5, weights_ + (2 + tile) * kTileBytes, 64);
      TILE_MULTIPLY(2, 5, 6);
      TILE_STORE(own_ + (strip * kChunkTokens + tile * 16) * kLanes, 64, 2);
    }
  }

  // Keys times what is written, added to a strip of the state.
  void write(const Shared& shared, int64_t strip, float* state) {
    const char* written = written_ + strip * 2 * kTileBytes;
    TILE_LOAD(6, written, 64);
    TILE_LOAD(7, written + kTileBytes, 64);
    for (int64_t i = 0; i < a_.key_dim; i += 32) {
      float *first = state + i * kLanes, *second = first + 16 * kLanes;
      TILE_LOAD(0, first, 64);
      TILE_LOAD(4, shared.keys + i * 64, 64);
      TILE_MULTIPLY(0, 4, 6);
      TILE_LOAD(1, second, 64);
      TILE_LOAD(5, shared.keys + (i + 16) * 64, 64);
      TILE_MULTIPLY(1, 5, 6);
      TILE_MULTIPLY(0, 4, 7);
      TILE_MULTIPLY(1, 5, 7);
      TILE_STORE(first, 64, 0);
      TILE_STORE(second, 64, 1);
    }
  }

  void give(const Chunk& chunk) {
    const V skip = set1(a_.skip[head_]);
    for (int64_t t = chunk.begin; t < chunk.end; t++) {
      const V decay = set1(decays_[t]);
      Bf16* y = static_cast<Bf16*>(a_.y) + ((chunk.first_row + t) * a_.num_heads + head_) * a_.value_dim;
      for (int64_t strip = 0; strip < strips_; strip++) {
        V out = load(own_ + (strip * kChunkTokens + t) * kLanes);
        const float* read = read_ + (strip * 2 * kChunkTokens + t) * kLanes;
        if (!chunk.is_first) out = fma(decay, add(load(read), load(read + kChunkTokens * kLanes)), out);
        store(y + strip * kLanes, fma(skip, load(value(t) + strip * kLanes), out));
      }
    }
  }

  const RecurrenceArgs& a_;
  int64_t span_, head_, strips_, kept_;
  float* state_;    // [strips][key_dim][16]
  char* parts_;     // of a strip's state: [key_dim / 32][2][16][32], second operands
  char* pairs_;     // values: [strips][16][32], second operands
  char* written_;   // values as far as the state keeps them: [strips][2][16][32], second operands
  float* read_;     // [strips][2][32][16]
  float* own_;      // [strips][32][16]
  char* weights_;   // [2][32][32], first operands
  float* tokens_;   // [32][kept_]: values in bf16, sum, step
  alignas(64) float steps_[kChunkTokens], sums_[kChunkTokens], decays_[kChunkTokens];
};

void recur_chunks(const RecurrenceArgs& a, int64_t span, int64_t head, const char* prepared, void* scratch) {
  const int64_t group = head / (a.num_heads / a.num_groups);
  Head(a, span, head, scratch).run(prepared + group * a.prepared_bytes(), a.num_groups * a.prepared_bytes());
}

}  // namespace

void fill_state(Kernels& kernels) {
  kernels.prepare_chunk = prepare_chunk;
  kernels.recur_chunks = recur_chunks;
}

}  // namespace amx
}  // namespace lullm
