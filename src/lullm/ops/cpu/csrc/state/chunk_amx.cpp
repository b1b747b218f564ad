// State spaces (Mamba 2) and the gated delta rule as products of tiles: 32 tokens of a sequence at a time, a chunk, at
// multiples of 32.
//
// A token reads the state as it was before its chunk, and what the tokens of the chunk up to itself have written: their
// keys times its query, times the decay between the two, times their values. A chunk changes the state when its last token
// is there. Until then its tokens are kept beside the state. So what is summed for a token, and in which order, follows
// from its place in the sequence alone, however the sequence is cut into steps.
//
// By the delta rule a token writes, instead of its value, the change from what its key reads: the state before the chunk
// and the changes of earlier tokens, a triangular system that is solved from the first token on.
//
// Queries, keys and values are bf16 as they are. What is not, the state, changes and what decay has been applied to, is
// split into two bf16 that hold its first 16 bits: two products instead of one, and of two such numbers three.

#include <algorithm>
#include <cmath>

#include "../activation.h"
#include "../flush_denormals.h"
#include "chunk_strips.h"
#include "softplus.h"

namespace lullm {
namespace amx {
namespace {

constexpr float kLeastDecay = -100.0f;  // logarithm of a token's decay: what is less makes no difference, but sums inexact

// Heads of one group over the chunks of a span. A head's columns are taken 16 at a time, a strip.
template <bool kIsDelta>
class Heads {
 public:
  Heads(const RecurrenceArgs& a, int64_t span, int64_t first_head, void* scratch)
      : a_(a), span_(span), first_head_(first_head), group_(first_head / a.heads_of_group()), state_(a, span, static_cast<char*>(scratch)) {
    char* at = static_cast<char*>(scratch) + Strips::num_bytes(a);
    const auto take = [&](int64_t num_bytes) { return at += num_bytes, at - num_bytes; };
    const auto take_floats = [&](int64_t count) { return reinterpret_cast<float*>(take(count * 4)); };
    pairs_ = take(a.value_dim * 64 * kValueParts);
    written_ = take(a.value_dim * 128);
    read_ = take_floats(a.value_dim * 64);
    held_ = take_floats(64 * kLanes);
    own_ = take_floats(a.value_dim * 32);
    weights_ = take(4 * kTileBytes);
    system_ = take_floats(kChunkTokens * kChunkTokens);
    tokens_ = take_floats(a.kept_of_head() * kChunkTokens);
    all_decays_ = take_floats(a.key_dim);
    shared_ = take(a.prepares_ahead() ? 0 : a.prepared_bytes());
    rest_ = at;
  }

  // `prepared`: of the span's first chunk; null: the heads prepare chunks themselves.
  void run(const char* prepared) {
    const FlushDenormals flush;
    const TileSession session;
    const int64_t num_chunks = a_.state.num_chunks(span_);
    for (int64_t number = 0; number < num_chunks; number++) {
      const Chunk chunk = a_.state.chunk(span_, number);
      const Shared shared(a_, prepared == nullptr ? shared_ : const_cast<char*>(prepared) + number * a_.num_groups * a_.prepared_bytes());
      if (a_.decays_by_key) share_chunk_by_key(a_, chunk, first_head_, shared, rest_);
      else if (prepared == nullptr) share_chunk(a_, chunk, group_, shared, rest_);
      if (chunk.is_full()) {
        run_heads(chunk, number, shared);
      } else {  // the last one
        const TileSession of_few = ChunkRows(chunk).session();
        run_heads(chunk, number, shared);
      }
    }
  }

 private:
  static constexpr int kValueParts = kIsDelta ? 2 : 1;

  void run_heads(const Chunk& chunk, int64_t number, const Shared& shared) {
    const bool is_only = a_.state.num_chunks(span_) == 1 && !chunk.is_full();
    for (int64_t i = 0; i < a_.heads_of_item(); i++) {
      head_ = first_head_ + i;
      state_.choose(head_, i);
      if (is_only && !chunk.is_first) state_.split_from_cache();
      else if (number == 0 && !chunk.is_first) state_.copy<false>();
      run_chunk(chunk, shared, is_only);
      if (number + 1 == a_.state.num_chunks(span_) && !is_only) state_.copy<true>();
    }
  }

  void run_chunk(const Chunk& chunk, const Shared& shared, bool is_split) {
    const ChunkRows rows(chunk);
    if (chunk.is_first && chunk.is_full()) state_.clear();
    take_tokens(chunk);
    weigh(chunk, shared);
    if (!a_.decays_by_key) std::fill_n(all_decays_, a_.key_dim, decays_[kChunkTokens - 1]);
    const float* all_decays = a_.decays_by_key ? shared.decays : all_decays_;
    state_.ahead = {&a_, head_, chunk.first_row + kChunkTokens, a_.state.first_row(span_) + a_.state.num_rows(span_)};
    for (int64_t strip = 0; strip < state_.count(); strip++) {
      if (!chunk.is_first) {
        if (!is_split) state_.split(strip, chunk.is_full(), all_decays);
        state_.read(strip, shared.queries, rows, read_ + strip * 2 * kChunkTokens * kLanes);
        if constexpr (kIsDelta) state_.read(strip, shared.key_rows, rows, held_);
      }
      if constexpr (kIsDelta) change(chunk, shared, strip);
      read_own(rows, strip);
      if (chunk.is_full()) state_.write(strip, shared.keys, written_ + strip * 2 * kTileBytes);
    }
    give(chunk, shared);
    if (!chunk.is_full()) keep_tokens(chunk);
  }

  const Bf16* given_value(const Chunk& chunk, int64_t t) const {
    return static_cast<const Bf16*>(a_.values) + (chunk.first_row + t) * a_.value_stride + head_ * a_.value_dim;
  }
  // A state space keeps tokens as rows: the value, the sum of the logarithms of decay so far, and the size of the step. The
  // delta rule keeps changes in strips, and these sums behind them, or what decays by key follow from.
  Bf16* value(int64_t t) const { return reinterpret_cast<Bf16*>(tokens_ + t * a_.kept_of_head()); }
  float* changes(int64_t strip) const { return tokens_ + strip * kChunkTokens * kLanes; }
  // body(where it is kept, where it lies here, floats of a token, tokens that there is room for) for each piece of them.
  template <class Body>
  void for_kept(Body&& body) {
    const int64_t place = a_.kept_place(head_);
    if (!kIsDelta) return body(place, tokens_, a_.kept_of_head());
    for (int64_t strip = 0; strip < state_.count(); strip++)
      body(place + strip * (kChunkTokens - 1) * kLanes, changes(strip), int64_t{kLanes});
    if (!a_.decays_by_key) body(place + (kChunkTokens - 1) * a_.value_dim, sums_, int64_t{1});
  }

  // What is known of the chunk's tokens. Tokens to come are zeros. Decays by key are part of queries and keys.
  void take_tokens(const Chunk& chunk) {
    alignas(64) float given[kChunkTokens] = {}, betas[kChunkTokens] = {}, logs[kChunkTokens];
    if (a_.decays_by_key) std::fill_n(sums_, kChunkTokens, 0.0f);
    if (chunk.begin > 0)
      for_kept([&](int64_t place, float* to, int64_t size) { a_.state.read(span_, place, chunk.begin * size, to); });
    for (int64_t t = chunk.begin; t < chunk.end; t++) {
      const int64_t at = (chunk.first_row + t) * a_.step_stride + head_;
      if (!a_.decays_by_key) given[t] = to_float(static_cast<const Bf16*>(a_.steps)[at]);
      if (kIsDelta) betas[t] = to_float(static_cast<const Bf16*>(a_.betas)[at]);
    }
    const V rate = set1(a_.decays_by_key ? 0.0f : -std::exp(a_.a_log[head_])), bias = set1(a_.decays_by_key ? 0.0f : a_.dt_bias[head_]);
    for (int64_t t = 0; t < kChunkTokens; t += kLanes) {
      V step = softplus(add(load(given + t), bias));
      if (!kIsDelta) step = min(max(step, set1(a_.least_step)), set1(a_.most_step));
      store(sizes_ + t, kIsDelta ? mul(set1(a_.most_step), sigmoid(load(betas + t))) : step);
      store(logs + t, max(mul(rate, step), set1(kLeastDecay)));
    }
    if constexpr (!kIsDelta) take_values(chunk);
    float sum = chunk.begin > 0 ? sums_[chunk.begin - 1] : 0.0f;
    for (int64_t t = chunk.begin; t < chunk.end; t++) sums_[t] = sum += logs[t];
    for (int64_t t = chunk.end; t < kChunkTokens; t++) sums_[t] = sum;
    for (int64_t t = 0; t < kChunkTokens; t += kLanes) store(decays_ + t, exp(load(sums_ + t)));
    if constexpr (!kIsDelta)
      for (int64_t t = chunk.begin; t < chunk.end; t++) {
        float* numbers = tokens_ + t * a_.kept_of_head() + a_.value_dim / 2;
        numbers[0] = sums_[t], numbers[1] = sizes_[t];
      }
  }

  // Of a state space, and what earlier steps have kept.
  void take_values(const Chunk& chunk) {
    for (int64_t t = 0; t < chunk.begin; t++) {
      const float* numbers = tokens_ + t * a_.kept_of_head() + a_.value_dim / 2;
      sums_[t] = numbers[0], sizes_[t] = numbers[1];
    }
    for (int64_t t = chunk.begin; t < chunk.end; t++) std::memcpy(value(t), given_value(chunk, t), a_.value_dim * 2);
    std::memset(value(chunk.end), 0, (kChunkTokens - chunk.end) * a_.kept_of_head() * 4);
    for (int64_t strip = 0; strip < state_.count(); strip++)
      for (int64_t t = 0; t < kChunkTokens; t += 2) {
        const V first = load_pairs(value(t) + strip * kLanes, kLanes), second = load_pairs(value(t + 1) + strip * kLanes, kLanes);
        store_integers(pairs_ + strip * kTileBytes + t * 32, bits_of(pair_first(first, second)));
      }
  }

  // For the next step. Keys of earlier tokens have been read when heads are worked on.
  void keep_tokens(const Chunk& chunk) {
    const int64_t count = chunk.end - chunk.begin;
    for_kept([&](int64_t place, const float* from, int64_t size) {
      a_.state.write(span_, place + chunk.begin * size, count * size, from + chunk.begin * size);
    });
    for (int64_t t = chunk.begin; t < chunk.end && a_.decays_by_key; t++)
      a_.state.write(span_, a_.kept_decays_place(head_) + t * a_.key_dim / 2, a_.key_dim / 2,
                     reinterpret_cast<const float*>(a_.steps_by_key(chunk.first_row + t, head_)));
    if (!a_.decays_by_key && head_ % a_.heads_of_group() > 0) return;
    for (int64_t t = chunk.begin; t < chunk.end; t++) {
      const Bf16* key = static_cast<const Bf16*>(a_.keys) + (chunk.first_row + t) * a_.key_stride + group_ * a_.key_dim;
      a_.state.write(span_, a_.kept_keys_place(a_.decays_by_key ? head_ : group_) + t * a_.key_dim / 2, a_.key_dim / 2, reinterpret_cast<const float*>(key));
    }
  }

  // How much of each value, or change, a token reads: scores times the decay in between, and times step sizes. Of the delta
  // rule how much of earlier changes a change takes back. And how much of each the state keeps of a full chunk.
  void weigh(const Chunk& chunk, const Shared& shared) {
    for (int64_t t = chunk.begin; t < chunk.end; t++) {
      V weights[2] = {zero(), zero()};
      for (int64_t of = 0; of <= t / kLanes; of++) {
        const int64_t place = t * kChunkTokens + of * kLanes;
        const V between = exp(sub(set1(sums_[t]), load(sums_ + of * kLanes))), weight = mul(load(shared.scores + place), between);
        weights[of] = keep_below(kIsDelta ? weight : mul(weight, load(sizes_ + of * kLanes)), of * kLanes, t + 1, 0.0f);
        if (kIsDelta) store(system_ + place, mul(mul(load(shared.key_scores + place), between), set1(sizes_[t])));
      }
      split_row(weights[0], weights[1], weights_ + t * 64, weights_ + 2 * kTileBytes + t * 64);
    }
    if (!chunk.is_full()) return;
    for (int64_t t = 0; t < kChunkTokens; t += kLanes) {
      const V to_end = exp(sub(set1(sums_[kChunkTokens - 1]), load(sums_ + t)));
      store(left_ + t, mul(to_end, load((kIsDelta ? shared.key_factors : sizes_) + t)));
    }
    if constexpr (!kIsDelta)
      for (int64_t strip = 0; strip < state_.count(); strip++)
        for (int64_t t = 0; t < kChunkTokens; t += 2)
          leave(strip, t, load(value(t) + strip * kLanes), load(value(t + 1) + strip * kLanes));
  }

  // What the state keeps of two tokens.
  void leave(int64_t strip, int64_t t, V first, V second) {
    char* to = written_ + strip * 2 * kTileBytes + t * 32;
    split_pair(mul(set1(left_[t]), first), mul(set1(left_[t + 1]), second), to, to + kTileBytes);
  }

  // The changes of the step's tokens, all of them as pairs, and what the state keeps of them.
  void change(const Chunk& chunk, const Shared& shared, int64_t strip) {
    float* changes = this->changes(strip);
    const auto wanted = [&](int64_t t) {
      V error = load(given_value(chunk, t) + strip * kLanes);
      if (!chunk.is_first) {
        const V read = add(load(held_ + t * kLanes), load(held_ + (kChunkTokens + t) * kLanes));
        error = fnma(set1(decays_[t] * shared.key_factors[t]), read, error);
      }
      return mul(set1(sizes_[t]), error);
    };
    for (int64_t tile = chunk.first_tile(); tile <= chunk.last_tile(); tile++) {
      const int64_t first = tile * 16, begin = std::max(first, chunk.begin), end = std::min(first + 16, chunk.end);
      if (end - begin == 16) {
        change_tile(first, wanted, changes);
        continue;
      }
      for (int64_t t = begin; t < end; t++) {
        V own = wanted(t);
        for (int64_t of = 0; of < t; of++) own = fnma(set1(system_[t * kChunkTokens + of]), load(changes + of * kLanes), own);
        store(changes + t * kLanes, own);
      }
    }
    for (int64_t t = chunk.end; t < kChunkTokens; t++) store(changes + t * kLanes, zero());
    for (int64_t t = 0; t < kChunkTokens; t += 2) {
      char* pairs = pairs_ + strip * 2 * kTileBytes + t * 32;
      const V first = load(changes + t * kLanes), second = load(changes + (t + 1) * kLanes);
      split_pair(first, second, pairs, pairs + kTileBytes);
      if (chunk.is_full()) leave(strip, t, first, second);
    }
  }

  // The same sums for all tokens of a tile at once.
  template <class Wanted>
  void change_tile(int64_t begin, Wanted&& wanted, float* changes) {
    const float* system = system_ + begin * kChunkTokens;
    V own[kLanes];
    LULLM_UNROLL for (int i = 0; i < kLanes; i++) own[i] = wanted(begin + i);
    for (int64_t of = 0; of < begin; of++) {
      const V earlier = load(changes + of * kLanes);
      LULLM_UNROLL for (int i = 0; i < kLanes; i++) own[i] = fnma(set1(system[i * kChunkTokens + of]), earlier, own[i]);
    }
    LULLM_UNROLL for (int of = 0; of < kLanes; of++) {
      LULLM_UNROLL for (int i = 0; i < kLanes; i++)
        if (i > of) own[i] = fnma(set1(system[i * kChunkTokens + begin + of]), own[of], own[i]);
    }
    LULLM_UNROLL for (int i = 0; i < kLanes; i++) store(changes + (begin + i) * kLanes, own[i]);
  }

  // What a token reads of the values, or changes, of its chunk.
  void read_own(const ChunkRows& rows, int64_t strip) {
    const char* pairs = pairs_ + strip * kValueParts * kTileBytes;
    float* own = own_ + strip * kChunkTokens * kLanes;
    TILE_LOAD(6, pairs, 64);
    if (kIsDelta) TILE_LOAD(7, pairs + kTileBytes, 64);
    if (rows.has[0]) {
      const char* weights = weights_ + rows.first[0] * 64;
      TILE_ZERO(0);
      TILE_LOAD(4, weights, 64);
      TILE_MULTIPLY(0, 4, 6);
      if (kIsDelta) TILE_MULTIPLY(0, 4, 7);
      TILE_LOAD(4, weights + 2 * kTileBytes, 64);
      TILE_MULTIPLY(0, 4, 6);
      TILE_STORE(own + rows.first[0] * kLanes, 64, 0);
    }
    if (rows.has[1]) {
      const char* weights = weights_ + (16 + rows.first[1]) * 64;
      TILE_ZERO(1);
      TILE_LOAD(5, weights, 64);
      TILE_MULTIPLY(1, 5, 6);
      if (kIsDelta) TILE_MULTIPLY(1, 5, 7);
      TILE_LOAD(5, weights + 2 * kTileBytes, 64);
      TILE_MULTIPLY(1, 5, 6);
      TILE_STORE(own + (16 + rows.first[1]) * kLanes, 64, 1);
    }
  }

  void give(const Chunk& chunk, const Shared& shared) {
    const V skip = set1(kIsDelta ? 0.0f : a_.skip[head_]);
    for (int64_t t = chunk.begin; t < chunk.end; t++) {
      const V decay = set1(kIsDelta ? decays_[t] * shared.query_factors[t] : decays_[t]);
      Bf16* y = static_cast<Bf16*>(a_.y) + ((chunk.first_row + t) * a_.num_heads + head_) * a_.value_dim;
      for (int64_t strip = 0; strip < state_.count(); strip++) {
        V out = load(own_ + (strip * kChunkTokens + t) * kLanes);
        const float* read = read_ + (strip * 2 * kChunkTokens + t) * kLanes;
        if (!chunk.is_first) out = fma(decay, add(load(read), load(read + kChunkTokens * kLanes)), out);
        if (!kIsDelta) out = fma(skip, load(value(t) + strip * kLanes), out);
        store(y + strip * kLanes, out);
      }
    }
  }

  const RecurrenceArgs& a_;
  int64_t span_, first_head_, group_, head_ = 0;
  Strips state_;
  char* pairs_;    // values, or both parts of changes: [strips][kValueParts][16][32], second operands
  char* written_;  // the same as far as the state keeps them: [strips][2][16][32], second operands
  float* read_;    // [strips][2][32][16]
  float* held_;    // of a strip, what keys read: [2][32][16]
  float* own_;     // [strips][32][16]
  char* weights_;  // [2][32][32], first operands
  float* system_;  // [32][32]
  float* tokens_;  // [32][kept_of_head()]: values in bf16, sums and sizes; or changes: [strips][32][16]
  float* all_decays_;  // [key_dim]: of a full chunk, if they are alike
  char* shared_;   // unless it is prepared ahead
  char* rest_;
  alignas(64) float sizes_[kChunkTokens], sums_[kChunkTokens], decays_[kChunkTokens], left_[kChunkTokens];
};

void recur_chunks(const RecurrenceArgs& a, int64_t span, int64_t first_head, const char* prepared, void* scratch) {
  if (a.is_delta()) Heads<true>(a, span, first_head, scratch).run(prepared);
  else Heads<false>(a, span, first_head, scratch).run(prepared);
}

}  // namespace

void fill_shared_chunks(Kernels&);

void fill_state(Kernels& kernels) {
  fill_shared_chunks(kernels);
  kernels.recur_chunks = recur_chunks;
}

}  // namespace amx
}  // namespace lullm
