// Kernels: the pieces of work that are compiled once per instruction set, and their arguments.
//
// A kernel does a range of one operation on the calling thread; the operations cut the ranges and hand them to the
// thread pool. All strides are in elements. Pointers to activations need the alignment of a pair of elements.
#pragma once

#include "dtype.h"
#include "quantized.h"

namespace lullm {

struct LinearArgs {
  const void* x;        // [num_rows, in]
  const void* weight;   // [out, in], packed
  const void* bias;     // [out] or null
  void* y;              // [num_rows, out], or [num_rows, out / 2] with an activation
  int64_t x_stride;
  int64_t y_stride;
  int64_t num_rows, in, out;
  void* x_prepared;     // what `prepare_rows` wrote; null if the kernel wants none
  // If there is one, the rows of the weight are gates, then as many ups, each whole panels; y is activation(gate) * up.
  // Kernels then count the panels of the gates only, and do each with its partner.
  Activation activation;
  bool y_is_float;      // whatever the dtype of the rest

  int64_t num_sides() const { return activation != kNoActivation ? 2 : 1; }
  int64_t out_of_side() const { return out / num_sides(); }
};

constexpr int64_t kLinearRows = 512;  // in an item of `linear_panels`, at most
constexpr int64_t kLinearPanels = 8;  // the same; half as many with an activation

struct NormArgs {
  const void* x;        // rows of `num_heads` heads of `size` elements each; a head is what is normed
  const void* residual; // [num_rows, size] or null: added to x first (then num_heads is 1)
  const void* weight;   // [size]
  void* y;              // [num_rows, num_heads, size], contiguous
  void* total;          // [num_rows, size]: x + residual; may be x or residual
  int64_t x_stride;
  int64_t num_heads, size;
  float eps;
};

struct RopeAndCacheArgs {
  const void* qkv;          // [T, num_q_heads + 2 * num_kv_heads, head_size]
  const void* q_weight;     // [head_size]; null: query heads are not normed
  const void* k_weight;
  const int64_t* positions;
  const float* cos_sin;     // [max_len, head_size]
  void* q;                  // [T, num_q_heads, head_size]
  void* key_cache;          // [slots, num_kv_heads, head_size]
  void* value_cache;
  const int64_t* slots;     // [T]; below 0: this row is written nowhere
  int64_t qkv_stride;
  int64_t num_q_heads, num_kv_heads, head_size;
  float eps;
};

struct LayerNormArgs {
  const void* x;       // [T, size]
  const void* weight;  // [size]
  const void* bias;    // [size] or null
  void* y;             // [T, size]
  int64_t x_stride, size;
  float eps;
};

struct ActivationArgs {
  const void* x;  // [T, size], or [T, 2 * size] of gates and ups
  void* y;        // [T, size]
  int64_t stride, size;
  Activation activation;
  bool has_ups;   // y is activation(gate) * up
};

struct AttentionArgs {
  const void* q;                 // [T, num_q_heads, head_size]
  const void* key_cache;         // [num_blocks, block_size, num_kv_heads, head_size]
  const void* value_cache;
  const int64_t* block_tables;   // [S, table_stride]
  const int64_t* context_lens;   // [S]
  const int64_t* query_starts;   // [S + 1]
  void* out;                     // [T, num_q_heads, head_size]
  int64_t q_stride, table_stride, block_size;
  int64_t num_q_heads, num_kv_heads, head_size;
  int64_t window;                // a row sees so many keys at most, its own included; kNoWindow: all up to its own
  float scale;
};

// One token per row of logits; see `draw.cpp`.
struct DrawArgs {
  float* logits;             // [N, size]
  const float* temperatures; // [N]; 0: greedy
  const int32_t* top_k;      // [N], 1 .. size
  const double* top_p;       // [N], above 0; 1 keeps all
  const float* min_p_floors; // [N], log(min_p)
  const uint64_t* keys;      // [N], of the noise
  int64_t stride, size;
  bool writes_logits;        // leave what was drawn from
};

constexpr int64_t kNoWindow = int64_t{1} << 60;

// A rectangle of one span: some of its rows, some key/value heads with all their query heads, some keys. Where the keys
// of a row are cut into several items (all heads each), they leave their share in `partial` and `merge` adds up.
struct AttentionItem {
  int64_t span;
  int64_t first_row, last_row;    // of the step
  int64_t first_head, last_head;  // key/value heads
  int64_t first_key, last_key;    // at most from the first key that the first row sees to the last of the last row
  float* partial;                 // null: these are all keys, write the result
  bool as_tile;                   // for `attend_tile`
};

struct Kernels {
  // Rows [first, last) of x, one group of `row_group` rows, into `x_prepared`. Sizes in bytes, for all rows; 0: x is read
  // as it is.
  int64_t (*prepared_bytes[2])(const LinearArgs&);
  void (*prepare_rows[2])(const LinearArgs&, int64_t first, int64_t last);
  int64_t (*row_group[2])(const LinearArgs&);
  int64_t (*cached_row_bytes[2])(const LinearArgs&);  // what an item wants to have of each of its rows in the cache
  int64_t linear_scratch_bytes[2];
  void (*linear_panels[2])(const LinearArgs&, int64_t first_row, int64_t last_row, int64_t first_panel,
                           int64_t last_panel, void* scratch);
  void (*linear_tail[2])(const LinearArgs&, int64_t first_out, int64_t last_out);  // rows of the weight that lie as is
  void (*pack_panel)(void* panel, int64_t num_units, void* scratch);   // scratch: a panel
  void (*unpack_panel)(void* panel, int64_t num_units, void* scratch);

  void (*rms_norm[2])(const NormArgs&, int64_t first_row, int64_t last_row);
  void (*rope_and_cache[2])(const RopeAndCacheArgs&, int64_t first_row, int64_t last_row);
  void (*layer_norm[2])(const LayerNormArgs&, int64_t first_row, int64_t last_row);
  void (*activate[2])(const ActivationArgs&, int64_t first_row, int64_t last_row);

  int64_t (*draw_scratch_bytes)(int64_t size);
  int64_t (*draw_row)(const DrawArgs&, int64_t row, void* scratch);

  int64_t (*attention_scratch_bytes[2])(const AttentionArgs&);  // of `attend`, for kAttendRows rows
  // `after`: what the thread will most likely do then, so that its keys are on their way; may be null.
  void (*attend[2])(const AttentionArgs&, const AttentionItem&, const AttentionItem* after, void* scratch);
  // Bf16, one key/value head, up to kAttendTileRows rows times query heads, all keys; null where there is no AMX.
  int64_t (*attend_tile_scratch_bytes)(const AttentionArgs&);
  void (*attend_tile)(const AttentionArgs&, const AttentionItem&, void* scratch);
  // The result of one row from `count` partial results over parts of its keys.
  void (*merge[2])(const AttentionArgs&, int64_t row, const float* partials, int64_t count);

  QuantizedKernels quantized;
};

constexpr int64_t kAttendRows = 8;  // tokens in an item of `attend`, at most
constexpr int64_t kAttendTileRows = 1024;

// A partial result, of one row and all heads: for every query head its largest score, its sum of weights and its
// weighted sum [head_size].
inline int64_t partial_floats(const AttentionArgs& a) { return a.num_q_heads * (a.head_size + 2); }

inline int64_t slot_of(const AttentionArgs& a, int64_t span, int64_t position) {
  return a.block_tables[span * a.table_stride + position / a.block_size] * a.block_size + position % a.block_size;
}

namespace avx2 { void fill(Kernels&); }
namespace avx512 { void fill(Kernels&); }
namespace avx512_bf16 { void fill(Kernels&); }
namespace amx { void fill(Kernels&); }  // only what it does better than avx512_bf16

}  // namespace lullm
