// Kernels: the pieces of work that are compiled once per instruction set, and their arguments.
//
// A kernel does a range of one operation on the calling thread; the operations cut the ranges and hand them to the
// thread pool. All strides are in elements. Pointers to activations need the alignment of a pair of elements.
#pragma once

#include "attention/arguments.h"
#include "digest/digest.h"
#include "dtype.h"
#include "experts/arguments.h"
#include "quantized.h"
#include "state/arguments.h"

namespace lullm {

struct LoraArgs;  // `lora/arguments.h`
struct LoraGroup;

constexpr int64_t kMaxMembers = 64;  // of a group of workers

constexpr int kPacked = 0;

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
  float alpha = 0, limit = 0;  // of kClampedSilu
  int format = kPacked;  // of the weight: that, or narrow floats (`narrow/narrow.h`), in whole panels
  const int64_t* rows = nullptr;  // [num_rows]: which rows of x these are; null: x has no others

  int64_t offset_of(int64_t row) const { return (rows == nullptr ? row : rows[row]) * x_stride; }  // in x

  int64_t num_sides() const { return activation != kNoActivation ? 2 : 1; }
  int64_t out_of_side() const { return out / num_sides(); }
};

constexpr int64_t kLinearRows = 512;  // in an item of `linear_panels`, at most
constexpr int64_t kLinearPanels = 8;  // the same; half as many with an activation

// Results of so many rows go past the caches. Lines of a layer's results left them long ago, for the weights; a store would
// have to fetch each again, and beside reading of weights that costs a quarter of 32 rows' time (Xeon, 2 cores). Results of
// fewer rows are sooner read again than they leave.
constexpr int64_t kStreamedRows = 8;

inline bool may_stream(const void* y, int64_t row_bytes, int64_t num_rows) {
  return num_rows >= kStreamedRows && (reinterpret_cast<intptr_t>(y) | row_bytes) % 64 == 0;
}

struct NormArgs {
  const void* x;        // rows of `num_heads` heads of `size` elements each; a head is what is normed
  const void* residual; // [num_rows, size] or null: added to x first (then num_heads is 1)
  const void* weight;   // [size]
  void* y;              // rows of as many heads; may be x
  void* total;          // [num_rows, size]: x + residual; may be x or residual
  int64_t x_stride, y_stride;
  int64_t num_heads, size;
  float eps;
};

// Rows of which several workers have a part each.
struct SharedNormArgs {
  void* x;             // [num_rows, size]
  const void* weight;  // [size]
  float* squares;      // of all of a row, `squares_stride` apart
  int64_t x_stride, size, squares_stride, num_shares;
  float eps;
};

struct RopeAndCacheArgs {
  const void* qkv;          // [T, num_q_heads + 2 * num_kv_heads, head_size]
  const void* q_weight;     // [head_size]; null: query heads are not normed
  const void* k_weight;
  const int64_t* positions;
  const float* cos_sin;     // [max_len, head_size]
  void* q;                  // [T, num_q_heads, head_size]
  char* key_cache;          // [slots, num_kv_heads] rows of `row_bytes`
  char* value_cache;
  const float* key_scales;  // [num_kv_heads], of a cache of e4m3; null: all are 1
  const float* value_scales;
  const int64_t* slots;     // [T]; below 0: this row is written nowhere
  int64_t qkv_stride;
  int64_t num_q_heads, num_kv_heads, head_size, row_bytes;
  float eps;
};

using RopeAndCache = void (*)(const RopeAndCacheArgs&, int64_t first_row, int64_t last_row);

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

// Elements of a tensor in place: `y` plus `x`, times `value` or the element at `x`, or within (-value, value) by its tanh.
struct InPlaceArgs {
  void* y;
  const void* x;  // of `add` and `scale_by`; null
  float value;    // of `scale` and `soft_cap`
};

// See `Ops.xielu_`.
struct XieluArgs {
  void* y;
  const void *alpha_p, *alpha_n, *beta, *eps;  // one number each, of its type
};

// Heads of x [T, heads, head_size], in place: normed, if there is a weight, and rotated. Strides in elements.
struct RotateArgs {
  void* x;
  const void* weight;
  const int64_t* positions;
  const float* cos_sin;
  int64_t row_stride, head_stride, num_heads, head_size;
  float eps;
};

// y [T, heads, out + num_kept]: the first `in` elements of a head of x times its matrix, then the next ones as they are.
struct HeadProductArgs {
  const void* x;
  const void* weight;  // by head, `weight_stride` apart: [out, in], or [in, out] by inputs
  void* y;
  int64_t x_row_stride, x_head_stride, weight_stride, num_heads, in, out, num_kept;
  bool is_by_inputs;
};

// Rows of heads on their way into one side of a cache; see `RopeAndCacheArgs`.
struct WriteCacheArgs {
  const void* x;  // [T, num_heads, head_size], rows `stride` apart
  char* side;
  const float* scales;
  const int64_t* slots;
  int64_t stride, num_heads, head_size, row_bytes;
};

using WriteCache = void (*)(const WriteCacheArgs&, int64_t first_row, int64_t last_row);

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

struct Kernels {
  // Rows [first, last) of x, one group of `row_group` rows, into `x_prepared`. Sizes in bytes, for all rows; 0: x is read
  // as it is.
  int64_t (*prepared_bytes[2])(const LinearArgs&);
  void (*prepare_rows[2])(const LinearArgs&, int64_t first, int64_t last);
  int64_t (*row_group[2])(const LinearArgs&);
  int64_t own_rows;  // up to so many rows of x each thread prepares for itself
  int64_t (*cached_row_bytes[2])(const LinearArgs&);  // what an item wants to have of each of its rows in the cache
  int64_t linear_scratch_bytes[2];
  void (*linear_panels[2])(const LinearArgs&, int64_t first_row, int64_t last_row, int64_t first_panel,
                           int64_t last_panel, void* scratch);
  bool prefers_dots;  // to products of floats, which have the same bits
  int64_t (*spin_products[2])(int64_t rounds);  // in registers only; how many operations those were
  // Rows of the weight that lie as they are.
  void (*linear_tail[2])(const LinearArgs&, int64_t first_row, int64_t last_row, int64_t first_out, int64_t last_out);
  void (*pack_panel)(const void* rows, int64_t num_units, void* panel);  // 32 rows, not in place
  void (*unpack_panel)(const void* panel, int64_t num_units, void* rows);

  void (*rms_norm[2])(const NormArgs&, int64_t first_row, int64_t last_row);
  void (*sum_squares[2])(const SharedNormArgs&, int64_t first_row, int64_t last_row);  // of this worker's part
  void (*norm_by_squares[2])(const SharedNormArgs&, int64_t first_row, int64_t last_row);
  RopeAndCache rope_and_cache[2][kNumCacheFormats];
  WriteCache write_cache[2][kNumCacheFormats];
  void (*multiply_head[2])(const HeadProductArgs&, int64_t head, int64_t first_row, int64_t last_row);
  void (*pack_head[2])(const HeadProductArgs&, int64_t head, void* packed);  // its matrix, as `pack_panel` leaves panels
  void (*layer_norm[2])(const LayerNormArgs&, int64_t first_row, int64_t last_row);
  void (*activate[2])(const ActivationArgs&, int64_t first_row, int64_t last_row);
  void (*add[2])(const InPlaceArgs&, int64_t first, int64_t last);
  void (*xielu[2])(const XieluArgs&, int64_t first, int64_t last);
  void (*scale[2])(const InPlaceArgs&, int64_t first, int64_t last);
  void (*soft_cap[2])(const InPlaceArgs&, int64_t first, int64_t last);
  void (*scale_by[2])(const InPlaceArgs&, int64_t first, int64_t last);
  void (*rotate[2])(const RotateArgs&, int64_t first_row, int64_t last_row);

  void (*route[2])(const RouteArgs&, int64_t first_row, int64_t last_row, void* scratch);
  void (*clamped_gate[2])(const ClampedGateArgs&, int64_t first_row, int64_t last_row);
  void (*mix[2])(const MixArgs&, int64_t first_row, int64_t last_row);

  void (*convolve[2])(const ConvolutionArgs&, const ConvolutionItem&, void* scratch);
  void (*keep_rows[2])(const ConvolutionArgs&, const ConvolutionItem&, void* scratch);
  void (*recur[2])(const RecurrenceArgs&, int64_t span, int64_t head, int64_t column_block, void* scratch);
  // By chunks, the heads of an item; null without tiles. `prepared`: see `RecurrenceArgs::prepares_ahead`.
  void (*prepare_chunk)(const RecurrenceArgs&, const Chunk&, int64_t group, char* prepared, void* scratch);
  void (*recur_chunks)(const RecurrenceArgs&, int64_t span, int64_t first_head, const char* prepared, void* scratch);
  void (*select[2])(const SelectiveArgs&, int64_t span, int64_t channel_block, void* scratch);
  void (*gate_units[2])(const GatedUnitArgs&, int64_t span, int64_t channel_block, void* scratch);
  void (*gated_norm[2])(const GatedNormArgs&, int64_t first_row, int64_t last_row, float* values);
  void (*multiply_rows[2])(const MultiplyArgs&, int64_t first_row, int64_t last_row);

  int64_t (*draw_scratch_bytes)(int64_t size);
  int64_t (*draw_row)(const DrawArgs&, int64_t row, void* scratch);

  AttentionKernels attend_few[2][kNumCacheFormats], attend_many[2][kNumCacheFormats];  // by `AttentionItem::is_few`
  // Folds a row's shares of `count` pieces, `stride` floats apart, into the first of them, and writes the result.
  // `sink`: of the row's head; may be null.
  void (*merge[2])(float* shares, int64_t stride, int64_t count, int64_t head_size, const float* sink, void* out);

  // The elements [first, last) of equal parts, added in their order.
  void (*sum_parts[3])(const void* const* parts, int64_t num_parts, void* out, int64_t first, int64_t last);

  // Whole stripes into the sums of a `Digest`, and to `to` if that is not null.
  void (*absorb)(DigestSums& sums, const char* from, char* to, int64_t num_stripes);

  QuantizedKernels quantized;

  // Both products of a part's adapter, for rows of a group: its ranks, and what is added to its outputs.
  void (*lora_inner[2])(const LoraArgs&, const LoraGroup&, int64_t part, int64_t first_row, int64_t last_row,
                        int64_t first_rank, int64_t last_rank);
  void (*lora_outer[2])(const LoraArgs&, const LoraGroup&, int64_t part, int64_t first_row, int64_t last_row,
                        int64_t first_out, int64_t last_out);
};

}  // namespace lullm
