// Recurrent layers: where the states of a layer lie, and the arguments of the kernels that move them on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "../dtype.h"

namespace lullm {

// Tokens of a sequence that are computed together where there are tiles, at multiples of their number.
constexpr int64_t kChunkTokens = 32;

// The tokens [begin, end) of a chunk that a step computes; those before have been computed by other steps.
struct Chunk {
  int64_t span, begin, end;
  int64_t first_row;  // of the chunk's first token among the step's rows; it may be below them
  bool is_first;      // of its sequence

  bool is_full() const { return end == kChunkTokens; }  // with this step
  bool is_whole() const { return begin == 0 && is_full(); }
  int64_t first_tile() const { return begin / 16; }
  int64_t last_tile() const { return (end - 1) / 16; }
};

// The states of one layer in a step: per span float tensors one behind the other, in pages of blocks of the KV cache.
// First come the keys' pages of the span's blocks, then the values'.
struct StateArgs {
  char* key_cache;
  char* value_cache;
  const int64_t* block_tables;  // [num_spans], rows `table_stride` apart, of which the first `num_blocks` are read
  const int64_t* context_lens;  // [num_spans], this step's tokens included
  const int64_t* query_starts;  // [num_spans + 1]
  int64_t num_spans, table_stride, num_blocks;
  int64_t block_bytes;          // from block to block on one side
  int64_t page_len;             // floats of a block on one side
  int64_t offset;               // floats in front of the tensor that is meant

  int64_t first_row(int64_t span) const { return query_starts[span]; }
  int64_t num_rows(int64_t span) const { return query_starts[span + 1] - query_starts[span]; }
  bool begins(int64_t span) const { return num_rows(span) == context_lens[span]; }

  int64_t num_chunks(int64_t span) const {
    return (context_lens[span] + kChunkTokens - 1) / kChunkTokens - (context_lens[span] - num_rows(span)) / kChunkTokens;
  }
  // The chunk `number` of those that the step meets.
  Chunk chunk(int64_t span, int64_t number) const {
    const int64_t end = context_lens[span], begin = end - num_rows(span);
    const int64_t first = (begin / kChunkTokens + number) * kChunkTokens;
    return {span, std::max(begin - first, int64_t{0}), std::min(end - first, kChunkTokens), first_row(span) + first - begin, first == 0};
  }

  // body(place, index, count) for pieces of `count` elements of the tensor from `first` on, each within a page.
  template <class Body>
  void for_pieces(int64_t span, int64_t first, int64_t count, Body&& body) const {
    const int64_t* table = block_tables + span * table_stride;
    for (int64_t done = 0; done < count;) {
      const int64_t at = offset + first + done, page = at / page_len, within = at % page_len;
      const int64_t piece = std::min(count - done, page_len - within);
      char* side = page < num_blocks ? key_cache : value_cache;
      body(reinterpret_cast<float*>(side + table[page % num_blocks] * block_bytes) + within, done, piece);
      done += piece;
    }
  }
  // What a span begins with are zeros, whatever the blocks hold.
  void read(int64_t span, int64_t first, int64_t count, float* to) const {
    if (begins(span)) std::memset(to, 0, count * sizeof(float));
    else for_pieces(span, first, count, [&](float* place, int64_t at, int64_t n) { std::memcpy(to + at, place, n * 4); });
  }
  void write(int64_t span, int64_t first, int64_t count, const float* from) const {
    for_pieces(span, first, count, [&](float* place, int64_t at, int64_t n) { std::memcpy(place, from + at, n * 4); });
  }
};

// Of an item. A row's 1 KiB in bf16 is what the processor fetches ahead; 256 bytes of one after the other, in pages of
// their own, took 1.7 times as long (8,192 channels of 1,024 tokens, Xeon, 2 cores).
constexpr int64_t kConvolvedChannels = 512;
constexpr int64_t kConvolvedRows = 128;

struct ConvolutionItem {
  int64_t span;
  int64_t first_row, last_row;  // of the span
  int64_t first_channel, last_channel;
  bool is_whole;  // all rows of the span: the item leaves what the next step sees in the state, too
};

// See `Ops.causal_convolution`.
struct ConvolutionArgs {
  StateArgs state;     // [kernel_size - 1, num_channels]
  const void* x;       // [T, num_channels]
  const void* weight;  // [num_channels, kernel_size]
  const void* bias;    // [num_channels] or null
  void* y;             // [T, num_channels]
  int64_t x_stride, num_channels, kernel_size;
  bool activates;

  int64_t scratch_bytes() const { return 4 * kConvolvedChannels * (2 * kernel_size - 1); }
};

constexpr int64_t kStateColumns = 64;  // of a head's matrix, in an item
constexpr int kTokensAtOnce = 4;       // that move a state on while it is in registers

// See `Ops.gated_delta_rule` and `Ops.state_space`: the state of a head is [key_dim, value_dim].
struct RecurrenceArgs {
  // [num_heads, key_dim, value_dim], behind it factors [num_heads, num_column_blocks()], and if it keeps tokens those of a
  // chunk but for the last one
  StateArgs state;
  const void* queries;      // [T, num_groups, key_dim]
  const void* keys;         // the same
  const void* values;       // [T, num_heads, value_dim]
  const void* betas;        // [T, num_heads], of the delta rule; null: a state space
  const void* steps;        // [T, num_heads], or by element of the keys [T, num_heads, key_dim]
  const float* a_log;       // [num_heads]
  const float* dt_bias;     // as a token's steps
  const float* skip;        // [num_heads], of a state space
  void* y;                  // [T, num_heads, value_dim]
  int64_t key_stride, value_stride, step_stride;
  int64_t num_groups, num_heads, key_dim, value_dim;
  float least_step, most_step;  // of the delta rule the latter is what a beta has at most
  bool keeps_tokens;
  bool decays_by_key;  // every element of a key forgets by itself: no factors lie behind such states

  // Where the factor of an item stands, in floats from the states on.
  int64_t factor_place(int64_t head, int64_t block) const {
    return num_heads * key_dim * value_dim + head * num_column_blocks() + block;
  }
  // Tokens as they are kept, by head: values in bf16 and two floats, or by the delta rule changes and a float, or what decays
  // by key follow from in bf16; behind all heads keys in bf16, by group, or with decays by key by head.
  int64_t kept_of_head() const { return is_delta() ? value_dim + (decays_by_key ? key_dim / 2 : 1) : value_dim / 2 + 2; }
  int64_t kept_place(int64_t head) const {
    const int64_t first = decays_by_key ? num_heads * key_dim * value_dim : factor_place(num_heads, 0);
    return first + head * (kChunkTokens - 1) * kept_of_head();
  }
  int64_t kept_decays_place(int64_t head) const { return kept_place(head) + (kChunkTokens - 1) * value_dim; }
  int64_t kept_keys_place(int64_t group) const { return kept_place(num_heads) + group * (kChunkTokens - 1) * key_dim / 2; }
  bool is_delta() const { return betas != nullptr; }
  const Bf16* steps_by_key(int64_t row, int64_t head) const {
    return static_cast<const Bf16*>(steps) + row * step_stride + head * key_dim;
  }
  int64_t heads_of_group() const { return num_heads / num_groups; }
  int64_t num_column_blocks() const { return (value_dim + kStateColumns - 1) / kStateColumns; }
  int64_t padded_key_dim() const { return (key_dim + 15) / 16 * 16; }
  int64_t scratch_bytes() const { return 4 * (key_dim * kStateColumns + kTokensAtOnce * 4 * padded_key_dim()); }
  // What the heads of a group share of a chunk is prepared ahead for many heads, by any thread. One or two go through the
  // chunks together and prepare each when they come to it: it does not leave the cache. With decays by key they share nothing.
  bool prepares_ahead() const { return !decays_by_key && heads_of_group() > 2; }
  int64_t heads_of_item() const { return prepares_ahead() || decays_by_key ? 1 : heads_of_group(); }
  int64_t prepared_bytes() const {
    if (decays_by_key) return 4 * kChunkTokens * (3 * key_dim + 2 * kChunkTokens + 2) + 4 * key_dim;
    return 4 * kChunkTokens * (is_delta() ? 3 * key_dim / 2 + 2 * kChunkTokens + 2 : key_dim + kChunkTokens);
  }
  int64_t chunk_scratch_bytes() const {
    const int64_t to_prepare = (decays_by_key ? 176 : 32) * key_dim;
    return 4 * ((heads_of_item() + 1) * key_dim * value_dim + to_prepare + key_dim + 200 * value_dim + 4096) + prepared_bytes();
  }
};

// See `Ops.selective_scan`.
struct SelectiveArgs {
  StateArgs state;       // [state_size, num_channels]
  const void* x;         // [T, num_channels]
  const void* bc;        // [T, 2, state_size]
  const void* steps;     // [T, num_channels]
  const float* a_log;    // [num_channels, state_size]
  const float* dt_bias;  // [num_channels]
  const float* skip;     // [num_channels]
  void* y;               // [T, num_channels]
  int64_t x_stride, bc_stride, step_stride, num_channels, state_size;

  int64_t num_channel_blocks() const { return (num_channels + kStateColumns - 1) / kStateColumns; }
  int64_t scratch_bytes() const { return 4 * 2 * state_size * kStateColumns; }  // states and rates of decay
};

// See `Ops.rg_lru`.
struct GatedUnitArgs {
  StateArgs state;           // [num_channels]
  const void* x;             // [T, num_channels]
  const void* inputs;        // the same, of what is written
  const void* decays;        // the same, of what is forgotten
  const float* rate;         // [num_channels]
  const float* input_bias;   // [num_channels]
  const float* decay_bias;   // [num_channels]
  void* y;                   // [T, num_channels]
  int64_t x_stride, input_stride, decay_stride, num_channels;

  int64_t num_channel_blocks() const { return (num_channels + kStateColumns - 1) / kStateColumns; }
  int64_t scratch_bytes() const { return 4 * 2 * kStateColumns; }  // states and rates
};

// See `Ops.gated_rms_norm`.
struct GatedNormArgs {
  const void* x;       // [T, num_groups, size]
  const void* gate;    // [T, num_groups * size]
  const void* weight;  // [size], or [num_groups, size]
  void* y;             // [T, num_groups * size]
  int64_t x_stride, gate_stride, num_groups, size;
  int64_t weight_stride;  // from group to group
  float eps;
  bool gates_first;
};

// y *= gating(x), of rows.
struct MultiplyArgs {
  void* y;        // [T, size]
  const void* x;  // [T, size / stretch]: each counts for `stretch` elements of y
  int64_t y_stride, x_stride, size, stretch;
  int gating;     // kNoGating ...
};

enum Gating : int { kNoGating = 0, kSiluGating = 1, kSigmoidGating = 2, kSoftplusGating = 3 };

}  // namespace lullm
