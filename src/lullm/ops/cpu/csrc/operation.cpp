// The operations behind the C interface: each cuts its work into items and hands them to the thread pool.
//
// Everything here is called through ctypes with plain pointers and numbers; the caller has checked shapes and types.
// Strides are in elements. A version number guards against a library that is older than its callers.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "isa.h"
#include "kernel_table.h"
#include "linear_item.h"
#include "mapped.h"
#include "operation.h"
#include "thread_pool.h"

using namespace lullm;

namespace {

// An item should take a few microseconds: long against handing it out, short against the whole.
constexpr int64_t kItemBytes = 64 * 1024;

constexpr int64_t kLinearItemsPerThread = 4;
constexpr int64_t kRunBytes = 8 * kItemBytes;  // of a weight, on one thread: starting anew costs a microsecond
constexpr int64_t kTailRows = 16, kTailOuts = 6;  // in an item of rows of a weight that lie as they are; at least so many of these
constexpr int64_t kCacheBytes = 1280 * 1024;  // of a second-level cache of 2 MiB; more than that was slower

// body(first, last) over [0, count) in items of about kItemBytes, each element costing `bytes`.
template <class Body>
void for_ranges(int64_t count, int64_t bytes, Body&& body) {
  const int64_t size = std::max<int64_t>(1, kItemBytes / std::max<int64_t>(1, bytes));
  parallel_for((count + size - 1) / size, [&](int64_t item) { body(item * size, std::min(count, (item + 1) * size)); });
}

}  // namespace

int64_t lullm::rows_of_block(const LinearArgs& a, int dtype) {
  const Kernels& k = kernels();
  const int64_t step = 2 * k.row_group[dtype](a), fitting = kCacheBytes / k.cached_row_bytes[dtype](a) / step * step - 2 * kPanelRows;
  const int64_t most_rows = std::clamp(fitting, int64_t{64}, kLinearRows);
  const int64_t fewest = (a.num_rows + most_rows - 1) / most_rows;
  return ((a.num_rows + fewest - 1) / fewest + step - 1) / step * step;
}

void lullm::prepare_rows_here(LinearArgs& a, int dtype, int64_t first, int64_t last) {
  const Kernels& k = kernels();
  const int64_t bytes = k.prepared_bytes[dtype](a), group = k.row_group[dtype](a);
  if (bytes == 0) return;
  a.x_prepared = scratch(kSharedScratch, bytes);
  for (; first < last; first += group) k.prepare_rows[dtype](a, first, std::min(last, first + group));
}

void lullm::prepare_rows(LinearArgs& a, int dtype) {
  const Kernels& k = kernels();
  const int64_t bytes = k.prepared_bytes[dtype](a), group = k.row_group[dtype](a);
  if (bytes == 0) return;
  a.x_prepared = scratch(kSharedScratch, bytes);
  parallel_for((a.num_rows + group - 1) / group, [&](int64_t item) {
    k.prepare_rows[dtype](a, item * group, std::min(a.num_rows, (item + 1) * group));
  });
}

namespace {

std::atomic<uint64_t> num_operations{0};

// Fills `x_prepared` with all rows, once per operation and thread. Lines that another core has written or read are slow to
// read and to write: 64 rows of 2 KiB times two panels take 23 microseconds if two cores prepare half of them each, and 8 if
// each prepares all of them for itself (Xeon).
void prepare_own_rows(LinearArgs& a, int dtype, uint64_t operation) {
  static thread_local uint64_t prepared_for = 0;
  const int64_t bytes = kernels().prepared_bytes[dtype](a);
  if (prepared_for != operation) prepare_rows_here(a, dtype, 0, a.num_rows);
  else if (bytes > 0) a.x_prepared = scratch(kSharedScratch, bytes);
  prepared_for = operation;
}

}  // namespace

void lullm::linear(LinearArgs a, int dtype) {
  const Kernels& k = kernels();
  const int64_t panels = panels_of(a, dtype);  // of the gates, or of all
  if (panels > 0) {
    const bool is_own = a.num_rows <= k.own_rows && tail_of(a, dtype) == 0;
    const uint64_t operation = ++num_operations;
    if (!is_own) prepare_rows(a, dtype);
    const int64_t panel_bytes = panel_bytes_of(a, dtype);
    const int64_t rows = rows_of_block(a, dtype);
    const int64_t row_blocks = (a.num_rows + rows - 1) / rows;
    // A few panels in a row where rows are many: then the next one can be fetched early. Enough items for all threads.
    const int64_t item_bytes = panel_bytes * a.num_sides();
    const int64_t items = kLinearItemsPerThread * get_num_threads();
    const int64_t item_panels =
        std::max({int64_t{1}, kItemBytes / item_bytes,
                  a.num_rows > 32 ? std::min(kLinearPanels / a.num_sides(), panels * row_blocks / items) : 1});
    const int64_t columns = (panels + item_panels - 1) / item_panels;
    // Items that run at the same time share a block of rows, which then stays in the cache. A few rows are one block,
    // and weights are read in long pieces then.
    const int64_t most = a.num_rows > 32 ? 1 : std::max<int64_t>(1, kRunBytes / (item_panels * item_bytes));
    parallel_for_runs(row_blocks * columns, most, [&](int64_t first, int64_t last) {
      const int64_t row = first / columns * rows, panel = first % columns * item_panels;
      LinearArgs own = a;
      if (is_own) prepare_own_rows(own, dtype, operation);
      multiply_panels(own, dtype, row, std::min(a.num_rows, row + rows), panel,
                      std::min(panels, panel + (last - first) * item_panels));
    });
  }
  if (panels > 0 && tail_of(a, dtype) > 0) return multiply_last_rows(a, dtype);
  const int64_t first = a.out - tail_of(a, dtype), bytes = a.in * size_of(dtype) * std::min(kTailRows, a.num_rows);
  const int64_t outs = std::max(kTailOuts, kItemBytes / bytes);
  const int64_t columns = (a.out - first + outs - 1) / outs;
  parallel_for((a.num_rows + kTailRows - 1) / kTailRows * columns, [&](int64_t item) {
    const int64_t row = item / columns * kTailRows, out = first + item % columns * outs;
    k.linear_tail[dtype](a, row, std::min(a.num_rows, row + kTailRows), out, std::min(a.out, out + outs));
  });
}

namespace {

void for_panels(void* weight, int64_t out, int64_t in, int dtype, void (*change)(const void*, int64_t, void*)) {
  const int64_t panel_bytes = kPanelRows * in * size_of(dtype);
  for_ranges(num_panels(out, in, dtype), panel_bytes, [&](int64_t first, int64_t last) {
    void* memory = scratch(kItemScratch, panel_bytes);
    for (int64_t panel = first; panel < last; panel++) {
      char* place = static_cast<char*>(weight) + panel * panel_bytes;
      std::memcpy(memory, place, panel_bytes);
      change(memory, units_of(in, dtype), place);
    }
  });
}

}  // namespace

LULLM_EXPORT const char* lullm_available_isas() { return available_isas(); }
LULLM_EXPORT int lullm_select_isa(const char* name) { return select_isa(name) ? 1 : 0; }
LULLM_EXPORT const char* lullm_selected_isa() { return selected_isa(); }
LULLM_EXPORT void lullm_set_num_threads(int num_threads) { set_num_threads(num_threads); }
LULLM_EXPORT int lullm_get_num_threads() { return get_num_threads(); }

// Products of `dtype` in registers only, on all threads: for the ceiling of a benchmark. Gives the number of operations.
LULLM_EXPORT int64_t lullm_spin_products(int64_t rounds, int dtype) {
  std::atomic<int64_t> operations{0};
  parallel_for(16 * get_num_threads(), [&](int64_t) { operations += kernels().spin_products[dtype](rounds); });
  return operations;
}

LULLM_EXPORT void lullm_pack_weight(void* weight, int64_t out, int64_t in, int dtype) {
  for_panels(weight, out, in, dtype, kernels().pack_panel);
}

LULLM_EXPORT void lullm_unpack_weight(void* weight, int64_t out, int64_t in, int dtype) {
  for_panels(weight, out, in, dtype, kernels().unpack_panel);
}

LULLM_EXPORT void lullm_linear(const void* x, const void* weight, const void* bias, void* y, int64_t x_stride,
                               int64_t y_stride, int64_t num_rows, int64_t in, int64_t out, int dtype) {
  if (num_rows > 0) linear({x, weight, bias, y, x_stride, y_stride, num_rows, in, out, nullptr, kNoActivation, false}, dtype);
}

LULLM_EXPORT void lullm_logits(const void* x, const void* weight, void* y, int64_t x_stride, int64_t num_rows, int64_t in,
                               int64_t out, int dtype) {
  if (num_rows > 0) linear({x, weight, nullptr, y, x_stride, out, num_rows, in, out, nullptr, kNoActivation, true}, dtype);
}

LULLM_EXPORT int lullm_gated_linear(const void* x, const void* weight, const void* bias, void* y, int64_t x_stride,
                                    int64_t num_rows, int64_t in, int64_t out, int activation, int dtype) {
  if (out % (2 * kPanelRows) != 0 || num_panels(out, in, dtype) == 0) return 0;
  const Activation kind = static_cast<Activation>(activation);
  if (num_rows > 0) linear({x, weight, bias, y, x_stride, out / 2, num_rows, in, out, nullptr, kind, false}, dtype);
  return 1;
}

// Rows of a packed weight [V, H]. 0, and nothing done, if a token id is out of range.
LULLM_EXPORT int lullm_embedding(const int64_t* token_ids, const void* weight, void* y, int64_t num_tokens,
                                  int64_t vocab_size, int64_t hidden_size, int dtype) {
  for (int64_t i = 0; i < num_tokens; i++)
    if (token_ids[i] < 0 || token_ids[i] >= vocab_size) return 0;
  const int64_t row_bytes = hidden_size * size_of(dtype), units = units_of(hidden_size, dtype);
  const int64_t packed_rows = num_panels(vocab_size, hidden_size, dtype) * kPanelRows;
  for_ranges(num_tokens, 16 * row_bytes, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
      const int64_t row = token_ids[i];
      char* to = static_cast<char*>(y) + i * row_bytes;
      if (row >= packed_rows) {
        std::memcpy(to, static_cast<const char*>(weight) + row * row_bytes, row_bytes);
        continue;
      }
      const char* panel = static_cast<const char*>(weight) + row / kPanelRows * kPanelRows * row_bytes;
      if (const char* rows = mapped_rows(panel)) {
        std::memcpy(to, rows + row % kPanelRows * row_bytes, row_bytes);
        continue;
      }
      const char* from = panel + row % kPanelRows / kTileRows * kTileBytes + row % kTileRows * 4;
      // A line for each unit, so 16 times the row's bytes: 1024 rows of 2 KiB read at the memory's speed, 32 GB/s.
      for (int64_t tile = 0; tile < units; tile += kTileUnits, from += 2 * kTileBytes)
        for (int64_t unit = 0; unit < kTileUnits; unit++) std::memcpy(to + (tile + unit) * 4, from + unit * kTileRows * 4, 4);
    }
  });
  return 1;
}

LULLM_EXPORT void lullm_rms_norm(const void* x, const void* residual, const void* weight, void* y, void* total,
                                 int64_t x_stride, int64_t y_stride, int64_t num_rows, int64_t num_heads, int64_t size,
                                 float eps, int dtype) {
  const NormArgs a = {x, residual, weight, y, total, x_stride, y_stride, num_heads, size, eps};
  for_ranges(num_rows, 2 * num_heads * size * size_of(dtype),
             [&](int64_t first, int64_t last) { kernels().rms_norm[dtype](a, first, last); });
}

LULLM_EXPORT void lullm_sum_squares(void* x, float* squares, int64_t x_stride, int64_t num_rows, int64_t size,
                                    int64_t squares_stride, int dtype) {
  const SharedNormArgs a = {x, nullptr, squares, x_stride, size, squares_stride, 1, 0.0f};
  for_ranges(num_rows, size * size_of(dtype),
             [&](int64_t first, int64_t last) { kernels().sum_squares[dtype](a, first, last); });
}

LULLM_EXPORT void lullm_norm_by_squares(void* x, const void* weight, float* squares, int64_t x_stride, int64_t num_rows,
                                        int64_t size, int64_t squares_stride, int64_t num_shares, float eps, int dtype) {
  const SharedNormArgs a = {x, weight, squares, x_stride, size, squares_stride, num_shares, eps};
  for_ranges(num_rows, 2 * size * size_of(dtype),
             [&](int64_t first, int64_t last) { kernels().norm_by_squares[dtype](a, first, last); });
}

LULLM_EXPORT void lullm_rope_and_cache(const void* qkv, const void* q_weight, const void* k_weight,
                                       const int64_t* positions, const float* cos_sin, void* q, void* key_cache,
                                       void* value_cache, const float* key_scales, const float* value_scales,
                                       const int64_t* slots, int64_t qkv_stride, int64_t num_rows, int64_t num_q_heads,
                                       int64_t num_kv_heads, int64_t head_size, int64_t row_bytes, float eps, int dtype,
                                       int format) {
  const RopeAndCacheArgs a = {qkv, q_weight, k_weight, positions, cos_sin, q, static_cast<char*>(key_cache),
                              static_cast<char*>(value_cache), key_scales, value_scales, slots, qkv_stride, num_q_heads,
                              num_kv_heads, head_size, row_bytes, eps};
  for_ranges(num_rows, 2 * (num_q_heads + 2 * num_kv_heads) * head_size * size_of(dtype),
             [&](int64_t first, int64_t last) { kernels().rope_and_cache[dtype][format](a, first, last); });
}

LULLM_EXPORT void lullm_write_cache(const void* x, void* side, const float* scales, const int64_t* slots, int64_t stride,
                                    int64_t num_rows, int64_t num_heads, int64_t head_size, int64_t row_bytes, int dtype,
                                    int format) {
  const WriteCacheArgs a = {x, static_cast<char*>(side), scales, slots, stride, num_heads, head_size, row_bytes};
  for_ranges(num_rows, 2 * num_heads * head_size * size_of(dtype),
             [&](int64_t first, int64_t last) { kernels().write_cache[dtype][format](a, first, last); });
}

LULLM_EXPORT void lullm_layer_norm(const void* x, const void* weight, const void* bias, void* y, int64_t x_stride,
                                   int64_t num_rows, int64_t size, float eps, int dtype) {
  const LayerNormArgs a = {x, weight, bias, y, x_stride, size, eps};
  for_ranges(num_rows, 3 * size * size_of(dtype),
             [&](int64_t first, int64_t last) { kernels().layer_norm[dtype](a, first, last); });
}

LULLM_EXPORT void lullm_activate(const void* x, void* y, int64_t stride, int64_t num_rows, int64_t size, int activation,
                                 int has_ups, int dtype) {
  const ActivationArgs a = {x, y, stride, size, static_cast<Activation>(activation), has_ups != 0};
  for_ranges(num_rows, 6 * size * size_of(dtype),
             [&](int64_t first, int64_t last) { kernels().activate[dtype](a, first, last); });
}

LULLM_EXPORT void lullm_add(void* y, const void* x, int64_t count, int dtype) {
  const InPlaceArgs a = {y, x, 0.0f};
  for_ranges(count, 3 * size_of(dtype), [&](int64_t first, int64_t last) { kernels().add[dtype](a, first, last); });
}

LULLM_EXPORT void lullm_xielu(void* y, const void* alpha_p, const void* alpha_n, const void* beta, const void* eps,
                              int64_t count, int dtype) {
  const XieluArgs a = {y, alpha_p, alpha_n, beta, eps};
  for_ranges(count, 6 * size_of(dtype), [&](int64_t first, int64_t last) { kernels().xielu[dtype](a, first, last); });
}

LULLM_EXPORT void lullm_join(const void* x, const void* y, void* joined, int64_t x_stride, int64_t y_stride, int64_t num_rows,
                             int64_t x_bytes, int64_t y_bytes) {
  for_ranges(num_rows, x_bytes + y_bytes, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row++) {
      char* to = static_cast<char*>(joined) + row * (x_bytes + y_bytes);
      std::memcpy(to, static_cast<const char*>(x) + row * x_stride, x_bytes);
      std::memcpy(to + x_bytes, static_cast<const char*>(y) + row * y_stride, y_bytes);
    }
  });
}

LULLM_EXPORT void lullm_scale(void* y, int64_t count, float factor, int dtype) {
  const InPlaceArgs a = {y, nullptr, factor};
  for_ranges(count, 2 * size_of(dtype), [&](int64_t first, int64_t last) { kernels().scale[dtype](a, first, last); });
}

LULLM_EXPORT void lullm_soft_cap(void* y, int64_t count, float cap, int dtype) {
  const InPlaceArgs a = {y, nullptr, cap};
  for_ranges(count, 6 * size_of(dtype), [&](int64_t first, int64_t last) { kernels().soft_cap[dtype](a, first, last); });
}

LULLM_EXPORT void lullm_scale_by(void* y, const void* factor, int64_t count, int dtype) {
  const InPlaceArgs a = {y, factor, 0.0f};
  for_ranges(count, 2 * size_of(dtype), [&](int64_t first, int64_t last) { kernels().scale_by[dtype](a, first, last); });
}

LULLM_EXPORT void lullm_rotate(void* x, const void* weight, const int64_t* positions, const float* cos_sin,
                               int64_t row_stride, int64_t head_stride, int64_t num_rows, int64_t num_heads,
                               int64_t head_size, float eps, int dtype) {
  const RotateArgs a = {x, weight, positions, cos_sin, row_stride, head_stride, num_heads, head_size, eps};
  for_ranges(num_rows, 2 * num_heads * head_size * size_of(dtype),
             [&](int64_t first, int64_t last) { kernels().rotate[dtype](a, first, last); });
}

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// A row without the tokens whose bits are not set; `from` may be `to`.
void keep_allowed(const float* from, const uint32_t* allowed, float* to, int64_t size) {
  for (int64_t first = 0; first < size; first += 32) {
    const uint32_t word = allowed[first / 32];
    const int64_t count = std::min<int64_t>(32, size - first);
    if (word == 0) {  // most words of most grammars
      std::fill_n(to + first, count, kNever);
    } else if (word != ~uint32_t{0}) {
      for (int64_t bit = 0; bit < count; bit++) to[first + bit] = (word >> bit & 1) ? from[first + bit] : kNever;
    } else if (from != to) {
      std::copy_n(from + first, count, to + first);
    }
  }
}

// The best of the allowed tokens, the first of equals; -1 as `draw_row` has it.
int64_t best_allowed(const float* logits, const uint32_t* allowed, int64_t size) {
  float best = kNever;
  int64_t place = -1;
  for (int64_t first = 0; first < size; first += 32) {
    for (uint32_t word = allowed[first / 32]; word != 0; word &= word - 1) {
      const int64_t id = first + __builtin_ctz(word);
      if (id >= size) break;
      if (std::isnan(logits[id])) return -1;
      if (logits[id] > best) best = logits[id], place = id;
    }
  }
  return std::isfinite(best) ? place : -1;
}

int64_t count_bits(const uint32_t* words, int64_t num_words) {
  int64_t count = 0;
  for (int64_t i = 0; i < num_words; i++) count += __builtin_popcount(words[i]);
  return count;
}

}  // namespace

LULLM_EXPORT void lullm_forbid(float* logits, const int64_t* rows, const uint32_t* allowed, int64_t num_rows,
                               int64_t stride, int64_t size, int64_t num_words) {
  parallel_for(num_rows, [&](int64_t i) {
    float* row = logits + rows[i] * stride;
    keep_allowed(row, allowed + i * num_words, row, size);
  });
}

LULLM_EXPORT void lullm_draw_tokens(float* logits, const float* temperatures, const int32_t* top_k, const double* top_p,
                                    const float* min_p_floors, const uint64_t* keys, int64_t* token_ids,
                                    int64_t num_rows, int64_t stride, int64_t size, int writes_logits) {
  const DrawArgs a = {logits, temperatures, top_k, top_p, min_p_floors, keys, stride, size, writes_logits != 0};
  const int64_t bytes = kernels().draw_scratch_bytes(size);
  parallel_for(num_rows, [&](int64_t row) { token_ids[row] = kernels().draw_row(a, row, scratch(kItemScratch, bytes)); });
}

LULLM_EXPORT void lullm_draw_allowed(const float* logits, const int64_t* rows, const uint32_t* allowed,
                                     const float* temperatures, const int32_t* top_k, const double* top_p,
                                     const float* min_p_floors, const uint64_t* keys, int64_t* token_ids,
                                     int64_t num_rows, int64_t stride, int64_t size, int64_t num_words) {
  constexpr int64_t kFew = 4096;  // more of them are quicker to copy and look at sixteen at a time
  const int64_t bytes = kernels().draw_scratch_bytes(size);
  parallel_for(num_rows, [&](int64_t i) {
    const float* row = logits + rows[i] * stride;
    const uint32_t* words = allowed + i * num_words;
    if (temperatures[i] == 0.0f && count_bits(words, num_words) <= kFew) {
      token_ids[i] = best_allowed(row, words, size);
      return;
    }
    char* memory = static_cast<char*>(scratch(kItemScratch, bytes + size * sizeof(float)));
    float* kept = reinterpret_cast<float*>(memory + bytes);  // stays in the cache from row to row
    keep_allowed(row, words, kept, size);
    const DrawArgs a = {kept, temperatures + i, top_k + i, top_p + i, min_p_floors + i, keys + i, size, size, false};
    token_ids[i] = kernels().draw_row(a, 0, memory);
  });
}

// Whole blocks of `block_bytes`, in each of `num_caches` tensors or from each to its counterpart, pair after pair.
LULLM_EXPORT void lullm_copy_blocks(const void* const* sources, void* const* destinations, int64_t num_caches,
                                    const int64_t* pairs, int64_t num_pairs, int64_t block_bytes) {
  parallel_for(num_caches, [&](int64_t cache) {
    for (int64_t i = 0; i < num_pairs; i++) {
      const char* from = static_cast<const char*>(sources[cache]) + pairs[2 * i] * block_bytes;
      char* to = static_cast<char*>(destinations[cache]) + pairs[2 * i + 1] * block_bytes;
      if (from != to) std::memcpy(to, from, block_bytes);
    }
  });
}
