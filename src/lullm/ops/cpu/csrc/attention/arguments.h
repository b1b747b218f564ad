// The arguments of attention, an item of its work, and the fixed sizes that make a result independent of the batch.
//
// The order of sums. A row's result is a function of its query, of the keys and values that it sees, and of their
// positions in the sequence. Keys go 64 at a time: a step, which begins at a multiple of 64. The steps of 1024 keys, from
// a multiple of 1024 on, are a piece. Sums run from the first to the last step of a piece, and pieces are folded from
// first to last (`fold.h`). Items are cut at pieces and between rows and heads only, so that neither the number of rows
// nor that of threads, nor where a chunk ends, changes a bit.
#pragma once

#include <algorithm>
#include <cmath>

#include "../dtype.h"

namespace lullm {

constexpr int64_t kStepKeys = 64;
constexpr int64_t kPieceKeys = 1024;
constexpr int64_t kPieceSteps = kPieceKeys / kStepKeys;

struct AttentionArgs {
  const void* q;                 // [T, num_q_heads, head_size]
  const char* key_cache;         // [num_blocks, block_size, num_kv_heads] rows of `row_bytes`
  const char* value_cache;
  const float* key_scales;       // [num_kv_heads], of a cache of e4m3; null: all are 1
  const float* value_scales;
  const float* sinks;            // [num_q_heads] or null: of each head, a score more, whose value is 0
  const int64_t* block_tables;   // [S, table_stride]
  const int64_t* context_lens;   // [S]
  const int64_t* query_starts;   // [S + 1]
  void* out;                     // [T, num_q_heads, head_size]
  int64_t q_stride, table_stride, block_size;
  int64_t num_q_heads, num_kv_heads, head_size, row_bytes;
  int64_t window;                // a row sees so many keys at most, its own included; kNoWindow: all up to its own
  bool is_chunked;               // it sees those from the last multiple of `window` on
  float scale, soft_cap;         // no cap: 0
  int64_t ahead = 0;             // so many keys behind its own a row sees, too, as far as its span has them

  // The first key that a row sees whose own is the last before `limit`; below 0: all.
  int64_t first_seen(int64_t limit) const { return is_chunked ? (limit - 1) / window * window : limit - window; }
  int64_t group() const { return num_q_heads / num_kv_heads; }  // query heads that share a key/value head
};

constexpr int64_t kNoWindow = int64_t{1} << 60;

// A rectangle of one span: some of its rows, some key/value heads with all their query heads, some keys. An item of few
// rows has one piece; if there are more, it leaves its share in `shares` and `merge` folds them.
struct AttentionItem {
  int64_t span;
  int64_t first_row, last_row;    // of the step
  int64_t first_head, last_head;  // key/value heads
  int64_t first_key, last_key;    // at most from the first key that the first row sees to the last of the last row
  float* shares;                  // [num_kv_heads, rows * group, share_floats]; null: these are all keys
  bool is_few;                    // at most kFewQueries rows times query heads of a group

  int64_t num_heads() const { return last_head - first_head; }
  int64_t first_step() const { return first_key / kStepKeys; }
  int64_t last_step() const { return (last_key + kStepKeys - 1) / kStepKeys; }
  // Keys up to the last of the item. Few rows leave out what lies behind these in a step: it would add exact zeros.
  int64_t keys_in(int64_t step) const { return std::min(kStepKeys, last_key - step * kStepKeys); }
  int64_t num_pieces() const { return (last_key + kPieceKeys - 1) / kPieceKeys - first_key / kPieceKeys; }
};

constexpr int64_t kFewQueries = 16;
constexpr int64_t kManyQueries = 1024;  // rows times query heads of a group in an item, at most, unless one row has more

// A row's share of a piece: its weighted sum of values, the base of its weights in powers of two, their sum.
inline int64_t share_floats(int64_t head_size) { return head_size + 16; }

constexpr float kLog2E = 1.44269504f;

// What a row's sums are divided by: its total, and its head's sink (null: there is none) as a weight more.
inline float with_sink(float total, float base, const float* sink) {
  return sink == nullptr ? total : total + std::exp2(*sink * kLog2E - base);
}

struct AttentionKernels {
  int64_t (*scratch_bytes)(const AttentionArgs&, const AttentionItem&);
  // `after`: what the thread will most likely do then, so that its keys are on their way; may be null.
  void (*attend)(const AttentionArgs&, const AttentionItem&, const AttentionItem* after, void* scratch);
};

}  // namespace lullm
