// The C interface of the operations over activations: what Python calls one by one, and `replay.cpp` all in a row.
//
// Called through ctypes with plain pointers and numbers; the caller has checked shapes and types. Strides are in
// elements. Those that return an int return 0, and have done nothing, if they cannot do what is asked.
#pragma once

#include <cstdint>

#define LULLM_EXPORT extern "C" __attribute__((visibility("default")))

LULLM_EXPORT void lullm_linear(const void* x, const void* weight, const void* bias, void* y, int64_t x_stride,
                               int64_t y_stride, int64_t num_rows, int64_t in, int64_t out, int dtype);
// The product as floats, [num_rows, out], whatever the dtype of x and weight.
LULLM_EXPORT void lullm_logits(const void* x, const void* weight, void* y, int64_t x_stride, int64_t num_rows,
                               int64_t in, int64_t out, int dtype);
// y [num_rows, out / 2] = activation(gate) * up of a weight [out, in] of gates, then ups (see `Activation`). 0 if its
// halves are not whole panels.
LULLM_EXPORT int lullm_gated_linear(const void* x, const void* weight, const void* bias, void* y, int64_t x_stride,
                                    int64_t num_rows, int64_t in, int64_t out, int activation, int dtype);
// Rows of a packed weight [V, H]. 0 if a token id is out of range.
LULLM_EXPORT int lullm_embedding(const int64_t* token_ids, const void* weight, void* y, int64_t num_tokens,
                                 int64_t vocab_size, int64_t hidden_size, int dtype);
LULLM_EXPORT void lullm_rms_norm(const void* x, const void* residual, const void* weight, void* y, void* total,
                                 int64_t x_stride, int64_t y_stride, int64_t num_rows, int64_t num_heads, int64_t size,
                                 float eps, int dtype);
// RMSNorm in place of rows of which several workers have a part each: squares [num_rows] of the parts, `squares_stride`
// apart, to be summed over the workers, and then the norm by the sums.
LULLM_EXPORT void lullm_sum_squares(void* x, float* squares, int64_t x_stride, int64_t num_rows, int64_t size,
                                    int64_t squares_stride, int dtype);
LULLM_EXPORT void lullm_norm_by_squares(void* x, const void* weight, float* squares, int64_t x_stride, int64_t num_rows,
                                        int64_t size, int64_t squares_stride, int64_t num_shares, float eps, int dtype);
// A head of a token takes `row_bytes` in the cache, at least what it holds.
LULLM_EXPORT void lullm_rope_and_cache(const void* qkv, const void* q_weight, const void* k_weight,
                                       const int64_t* positions, const float* cos_sin, void* q, void* key_cache,
                                       void* value_cache, const float* key_scales, const float* value_scales,
                                       const int64_t* slots, int64_t qkv_stride, int64_t num_rows, int64_t num_q_heads,
                                       int64_t num_kv_heads, int64_t head_size, int64_t row_bytes, float eps, int dtype,
                                       int format);
// Heads as they are into one side of a cache.
LULLM_EXPORT void lullm_write_cache(const void* x, void* side, const float* scales, const int64_t* slots, int64_t stride,
                                    int64_t num_rows, int64_t num_heads, int64_t head_size, int64_t row_bytes, int dtype,
                                    int format);
// See `HeadProductArgs`.
LULLM_EXPORT void lullm_multiply_heads(const void* x, const void* weight, void* y, int64_t x_row_stride,
                                       int64_t x_head_stride, int64_t weight_stride, int64_t num_rows, int64_t num_heads,
                                       int64_t in, int64_t out, int64_t num_kept, int is_by_inputs, int dtype);
LULLM_EXPORT void lullm_layer_norm(const void* x, const void* weight, const void* bias, void* y, int64_t x_stride,
                                   int64_t num_rows, int64_t size, float eps, int dtype);
// y [num_rows, size] = activation(x), or with ups activation(gate) * up of x [num_rows, 2 * size], gates first.
LULLM_EXPORT void lullm_activate(const void* x, void* y, int64_t stride, int64_t num_rows, int64_t size, int activation,
                                 int has_ups, int dtype);
// In place, of `count` elements: y + x; y * factor; cap * tanh(y / cap); y * the element at `factor`.
LULLM_EXPORT void lullm_add(void* y, const void* x, int64_t count, int dtype);
LULLM_EXPORT void lullm_scale(void* y, int64_t count, float factor, int dtype);
LULLM_EXPORT void lullm_soft_cap(void* y, int64_t count, float cap, int dtype);
// xIELU in place; the four numbers have the type of y.
LULLM_EXPORT void lullm_xielu(void* y, const void* alpha_p, const void* alpha_n, const void* beta, const void* eps,
                              int64_t count, int dtype);
// Rows of y behind rows of x; strides and sizes in bytes.
LULLM_EXPORT void lullm_join(const void* x, const void* y, void* joined, int64_t x_stride, int64_t y_stride, int64_t num_rows,
                             int64_t x_bytes, int64_t y_bytes);
LULLM_EXPORT void lullm_scale_by(void* y, const void* factor, int64_t count, int dtype);
LULLM_EXPORT void lullm_rotate(void* x, const void* weight, const int64_t* positions, const float* cos_sin,
                               int64_t row_stride, int64_t head_stride, int64_t num_rows, int64_t num_heads,
                               int64_t head_size, float eps, int dtype);
// `sinks` [num_q_heads] may be null, as the scales [num_kv_heads] of a cache of e4m3. No soft cap: 0.
LULLM_EXPORT void lullm_attention(const void* q, const void* key_cache, const void* value_cache, const float* key_scales,
                                  const float* value_scales, const float* sinks, const int64_t* block_tables,
                                  const int64_t* context_lens, const int64_t* query_starts, void* out, int64_t q_stride,
                                  int64_t table_stride, int64_t block_size, int64_t num_q_heads, int64_t num_kv_heads,
                                  int64_t head_size, int64_t row_bytes, int64_t num_spans, int64_t window, float scale,
                                  float soft_cap, int is_chunked, int dtype, int format);

// See `Ops.mutual_attention`. k and v: [T, num_kv_heads, head_size] without gaps. starts: [num_spans + 1]. reach: below 0
// is none.
LULLM_EXPORT void lullm_mutual_attention(const void* q, const void* k, const void* v, void* out, const int64_t* starts,
                                         int64_t q_stride, int64_t num_q_heads, int64_t num_kv_heads, int64_t head_size,
                                         int64_t num_spans, int64_t reach, float scale, int dtype);
// In the row rows[i] of logits: -inf where the bit of a token in the row i of `allowed` [num_rows, num_words] is not set.
LULLM_EXPORT void lullm_forbid(float* logits, const int64_t* rows, const uint32_t* allowed, int64_t num_rows,
                               int64_t stride, int64_t size, int64_t num_words);
LULLM_EXPORT void lullm_draw_tokens(float* logits, const float* temperatures, const int32_t* top_k, const double* top_p,
                                    const float* min_p_floors, const uint64_t* keys, int64_t* token_ids,
                                    int64_t num_rows, int64_t stride, int64_t size, int writes_logits);
// Draws from the rows rows[i] of logits as if `lullm_forbid` had been there; the logits stay. The other arrays have an
// element per row drawn from.
LULLM_EXPORT void lullm_draw_allowed(const float* logits, const int64_t* rows, const uint32_t* allowed,
                                     const float* temperatures, const int32_t* top_k, const double* top_p,
                                     const float* min_p_floors, const uint64_t* keys, int64_t* token_ids,
                                     int64_t num_rows, int64_t stride, int64_t size, int64_t num_words);
// The experts of every row of products, ascending, and their shares; see `RouteArgs`.
LULLM_EXPORT void lullm_route(const void* products, const float* correction, const float* factors, int64_t* experts,
                              float* shares, int64_t stride, int64_t num_rows, int64_t num_experts, int64_t num_used,
                              int64_t num_groups, int64_t num_used_groups, int64_t num_group_scores, float scale,
                              int is_sigmoid, int normalizes, int dtype);
// Sorts (row, expert) by the expert's slot: the sorted rows starts[s] .. starts[s + 1] are those of the slot s, `rows`
// [num_rows * num_used] are their rows, and `places` [num_rows, num_used] is where each has gone. Adds the rows of each
// expert to `load`. 0 if an expert is out of range.
LULLM_EXPORT int lullm_sort_rows(const int64_t* experts, const int64_t* slots, int64_t* load, int64_t* starts,
                                 int64_t* rows, int64_t* places, int64_t num_rows, int64_t num_used,
                                 int64_t num_experts);
// Sorted rows times the matrix [out, in] of their expert; `rows` null: x is sorted itself. With `bits` the matrices are
// quantized, with 0 packed. Of the outputs `out` from `first_out`, a multiple of 32, on; with an activation all, as
// `lullm_gated_linear`. Experts without rows are not read.
LULLM_EXPORT int lullm_grouped_linear(const void* x, const void* const* weights, const void* const* biases, void* y,
                                      const int64_t* starts, const int64_t* rows, int64_t x_stride, int64_t y_stride,
                                      int64_t num_groups, int64_t in, int64_t first_out, int64_t out, int bits,
                                      int activation, float alpha, float limit, int dtype);
LULLM_EXPORT void lullm_clamped_gate(const void* x, void* y, int64_t num_rows, int64_t size, float alpha, float limit,
                                     int dtype);
// Results of the sorted rows from `*first_place` to before `*last_place`, which are those of the experts that are here.
LULLM_EXPORT void lullm_mix(const void* parts, const int64_t* places, const float* shares, const void* shared,
                            const void* shared_gate, void* y, const int64_t* first_place, const int64_t* last_place,
                            int64_t stride, int64_t num_rows, int64_t size, int64_t num_used, int dtype);
LULLM_EXPORT void lullm_quantized_linear(const void* x, const void* weight, const void* bias, void* y, int64_t x_stride,
                                         int64_t y_stride, int64_t num_rows, int64_t in, int64_t out, int bits,
                                         int activation, int dtype);
// The product as floats, [num_rows, out], whatever the dtype of x.
LULLM_EXPORT void lullm_quantized_logits(const void* x, const void* weight, void* y, int64_t x_stride, int64_t num_rows,
                                         int64_t in, int64_t out, int bits, int dtype);
// Rows of a weight [V, H] of 8 bits. 0 if a token id is out of range.
LULLM_EXPORT int lullm_quantized_embedding(const int64_t* token_ids, const void* weight, void* y, int64_t num_tokens,
                                           int64_t vocab_size, int64_t hidden_size, int bits, int dtype);
// Recurrent layers; see `state/arguments.h`. The states of the step's spans lie in blocks of the KV cache, and move on.
LULLM_EXPORT void lullm_causal_convolution(const void* x, const void* weight, const void* bias, void* y, void* key_cache,
                                           void* value_cache, const int64_t* block_tables, const int64_t* context_lens,
                                           const int64_t* query_starts, int64_t num_spans, int64_t table_stride,
                                           int64_t num_blocks, int64_t block_bytes, int64_t page_len, int64_t offset,
                                           int64_t x_stride, int64_t num_channels, int64_t kernel_size, int activates,
                                           int dtype);
// Without `betas` a state space, with them the gated delta rule. Both have the rows of `steps`. `keeps_tokens`: behind the
// states there is room for the tokens of a chunk (`RecurrenceArgs`). `decays_by_key`: `steps` and `dt_bias` have a number
// for every element of a head's key.
LULLM_EXPORT void lullm_recurrence(const void* queries, const void* keys, const void* values, const void* betas,
                                   const void* steps, const float* a_log, const float* dt_bias, const float* skip, void* y,
                                   void* key_cache, void* value_cache, const int64_t* block_tables,
                                   const int64_t* context_lens, const int64_t* query_starts, int64_t num_spans,
                                   int64_t table_stride, int64_t num_blocks, int64_t block_bytes, int64_t page_len,
                                   int64_t offset, int64_t key_stride, int64_t value_stride, int64_t step_stride,
                                   int64_t num_groups, int64_t num_heads, int64_t key_dim, int64_t value_dim,
                                   float least_step, float most_step, int keeps_tokens, int decays_by_key, int dtype);
LULLM_EXPORT void lullm_selective_scan(const void* x, const void* bc, const void* steps, const float* a_log,
                                       const float* dt_bias, const float* skip, void* y, void* key_cache,
                                       void* value_cache, const int64_t* block_tables, const int64_t* context_lens,
                                       const int64_t* query_starts, int64_t num_spans, int64_t table_stride,
                                       int64_t num_blocks, int64_t block_bytes, int64_t page_len, int64_t offset,
                                       int64_t x_stride, int64_t bc_stride, int64_t step_stride, int64_t num_channels,
                                       int64_t state_size, int dtype);
LULLM_EXPORT void lullm_rg_lru(const void* x, const void* inputs, const void* decays, const float* rate,
                               const float* input_bias, const float* decay_bias, void* y, void* key_cache, void* value_cache,
                               const int64_t* block_tables, const int64_t* context_lens, const int64_t* query_starts,
                               int64_t num_spans, int64_t table_stride, int64_t num_blocks, int64_t block_bytes,
                               int64_t page_len, int64_t offset, int64_t x_stride, int64_t input_stride, int64_t decay_stride,
                               int64_t num_channels, int dtype);
LULLM_EXPORT void lullm_gated_rms_norm(const void* x, const void* gate, const void* weight, void* y, int64_t x_stride,
                                       int64_t gate_stride, int64_t num_rows, int64_t num_groups, int64_t size,
                                       int64_t weight_stride, float eps, int gates_first, int dtype);
// Groups of workers over memory that they share; see `collective/`. 0: a member is lost.
// In place, the sum of all members' x.
LULLM_EXPORT int lullm_all_reduce(void* group, void* x, int64_t count, int dtype);
// y [num_rows, members * row_bytes]: the rows of all members beside each other.
LULLM_EXPORT int lullm_all_gather(void* group, const void* x, void* y, int64_t num_rows, int64_t row_bytes);
LULLM_EXPORT int lullm_deal_rows(void* group, const void* x, void* y, int64_t num_rows, int64_t row_bytes);
LULLM_EXPORT int lullm_send(void* group, const void* x, int64_t num_bytes, int64_t to);
LULLM_EXPORT int lullm_receive(void* group, void* x, int64_t num_bytes, int64_t from);
// y *= gating(x) of rows; see `Gating`.
LULLM_EXPORT void lullm_multiply(void* y, const void* x, int64_t y_stride, int64_t x_stride, int64_t num_rows, int64_t size,
                                 int64_t stretch, int gating, int dtype);
// Adds the products of adapters to the results of a linear layer; see `LoraArgs`. places [num_rows]: below 0: no adapter.
LULLM_EXPORT void lullm_add_lora(const void* x, void* y, const int64_t* places, const void* a, const void* b,
                                 const int64_t* ranks, const int64_t* part_sizes, int64_t x_stride, int64_t y_stride,
                                 int64_t num_rows, int64_t in, int64_t out, int64_t num_places, int64_t num_parts,
                                 int64_t max_rank, int dtype);
