// The operations of recurrent layers, cut into items: spans times heads and columns, or channels; or rows.

#include <algorithm>
#include <vector>

#include "../isa.h"
#include "../kernel_table.h"
#include "../operation.h"
#include "../thread_pool.h"

using namespace lullm;

namespace {

constexpr int64_t kItemElements = 16 * 1024;

// body(first, last) over the rows, in items of about kItemElements elements.
template <class Body>
void for_rows(int64_t num_rows, int64_t size, Body&& body) {
  const int64_t rows = std::max<int64_t>(1, kItemElements / std::max<int64_t>(1, size));
  parallel_for((num_rows + rows - 1) / rows, [&](int64_t item) { body(item * rows, std::min(num_rows, (item + 1) * rows)); });
}

// The item in parts of kConvolvedChannels.
void add_channels(std::vector<ConvolutionItem>& items, ConvolutionItem item) {
  const int64_t last = item.last_channel;
  for (; item.first_channel < last; item.first_channel = item.last_channel) {
    item.last_channel = std::min(last, item.first_channel + kConvolvedChannels);
    items.push_back(item);
  }
}

// Chunks side by side, as far as a group's heads share them, if that is ahead of the heads; then heads through their chunks.
void recur_chunks(const RecurrenceArgs& a) {
  const auto own = [&] { return scratch(kItemScratch, a.chunk_scratch_bytes()); };
  std::vector<Chunk> chunks;
  std::vector<int64_t> first_of_span;
  for (int64_t span = 0; span < a.state.num_spans && a.prepares_ahead(); span++) {
    first_of_span.push_back(static_cast<int64_t>(chunks.size()));
    for (int64_t i = 0; i < a.state.num_chunks(span); i++) chunks.push_back(a.state.chunk(span, i));
  }
  const int64_t num_prepared = static_cast<int64_t>(chunks.size()) * a.num_groups;
  char* prepared = static_cast<char*>(scratch(kSharedScratch, num_prepared * a.prepared_bytes()));
  parallel_for(num_prepared, [&](int64_t item) {
    kernels().prepare_chunk(a, chunks[item / a.num_groups], item % a.num_groups, prepared + item * a.prepared_bytes(), own());
  });
  const int64_t items = a.num_heads / a.heads_of_item();
  parallel_for(a.state.num_spans * items, [&](int64_t item) {
    const int64_t span = item / items, head = item % items * a.heads_of_item();
    const char* of_span = nullptr;
    if (a.prepares_ahead()) of_span = prepared + (first_of_span[span] * a.num_groups + head / a.heads_of_group()) * a.prepared_bytes();
    kernels().recur_chunks(a, span, head, of_span, own());
  });
}

}  // namespace

LULLM_EXPORT void lullm_causal_convolution(const void* x, const void* weight, const void* bias, void* y, void* key_cache,
                                           void* value_cache, const int64_t* block_tables, const int64_t* context_lens,
                                           const int64_t* query_starts, int64_t num_spans, int64_t table_stride,
                                           int64_t num_blocks, int64_t block_bytes, int64_t page_len, int64_t offset,
                                           int64_t x_stride, int64_t num_channels, int64_t kernel_size, int activates,
                                           int dtype) {
  const ConvolutionArgs a = {{static_cast<char*>(key_cache), static_cast<char*>(value_cache), block_tables, context_lens,
                              query_starts, num_spans, table_stride, num_blocks, block_bytes, page_len, offset},
                             x, weight, bias, y, x_stride, num_channels, kernel_size, activates != 0};
  std::vector<ConvolutionItem> items, ends;  // the states of spans of several items change when all have read them
  for (int64_t span = 0; span < num_spans; span++) {
    const int64_t num_rows = a.state.num_rows(span);
    const bool is_whole = num_rows <= kConvolvedRows;
    for (int64_t row = 0; row < num_rows; row += kConvolvedRows)
      add_channels(items, {span, row, std::min(num_rows, row + kConvolvedRows), 0, num_channels, is_whole});
    if (!is_whole) add_channels(ends, {span, 0, num_rows, 0, num_channels, false});
  }
  const auto run = [&](const std::vector<ConvolutionItem>& some, auto kernel) {
    parallel_for(static_cast<int64_t>(some.size()), [&](int64_t i) { kernel(a, some[i], scratch(kItemScratch, a.scratch_bytes())); });
  };
  run(items, kernels().convolve[dtype]);
  run(ends, kernels().keep_rows[dtype]);
}

LULLM_EXPORT void lullm_recurrence(const void* queries, const void* keys, const void* values, const void* betas,
                                   const void* steps, const float* a_log, const float* dt_bias, const float* skip, void* y,
                                   void* key_cache, void* value_cache, const int64_t* block_tables,
                                   const int64_t* context_lens, const int64_t* query_starts, int64_t num_spans,
                                   int64_t table_stride, int64_t num_blocks, int64_t block_bytes, int64_t page_len,
                                   int64_t offset, int64_t key_stride, int64_t value_stride, int64_t step_stride,
                                   int64_t num_groups, int64_t num_heads, int64_t key_dim, int64_t value_dim,
                                   float least_step, float most_step, int keeps_tokens, int decays_by_key,
                                   int dtype) {
  const RecurrenceArgs a = {{static_cast<char*>(key_cache), static_cast<char*>(value_cache), block_tables, context_lens,
                             query_starts, num_spans, table_stride, num_blocks, block_bytes, page_len, offset},
                            queries, keys, values, betas, steps, a_log, dt_bias, skip, y, key_stride, value_stride,
                            step_stride, num_groups, num_heads, key_dim, value_dim, least_step, most_step, keeps_tokens != 0,
                            decays_by_key != 0};
  if (a.keeps_tokens && dtype == kBFloat16 && kernels().recur_chunks != nullptr) return recur_chunks(a);
  const int64_t columns = a.num_column_blocks(), num_items = num_heads * columns;
  parallel_for(num_spans * num_items, [&](int64_t item) {
    const int64_t within = item % num_items;
    kernels().recur[dtype](a, item / num_items, within / columns, within % columns, scratch(kItemScratch, a.scratch_bytes()));
  });
}

LULLM_EXPORT void lullm_selective_scan(const void* x, const void* bc, const void* steps, const float* a_log,
                                       const float* dt_bias, const float* skip, void* y, void* key_cache,
                                       void* value_cache, const int64_t* block_tables, const int64_t* context_lens,
                                       const int64_t* query_starts, int64_t num_spans, int64_t table_stride,
                                       int64_t num_blocks, int64_t block_bytes, int64_t page_len, int64_t offset,
                                       int64_t x_stride, int64_t bc_stride, int64_t step_stride, int64_t num_channels,
                                       int64_t state_size, int dtype) {
  const SelectiveArgs a = {{static_cast<char*>(key_cache), static_cast<char*>(value_cache), block_tables, context_lens,
                            query_starts, num_spans, table_stride, num_blocks, block_bytes, page_len, offset},
                           x, bc, steps, a_log, dt_bias, skip, y, x_stride, bc_stride, step_stride, num_channels, state_size};
  const int64_t num_items = a.num_channel_blocks();
  parallel_for(num_spans * num_items, [&](int64_t item) {
    kernels().select[dtype](a, item / num_items, item % num_items, scratch(kItemScratch, a.scratch_bytes()));
  });
}

LULLM_EXPORT void lullm_rg_lru(const void* x, const void* inputs, const void* decays, const float* rate,
                               const float* input_bias, const float* decay_bias, void* y, void* key_cache, void* value_cache,
                               const int64_t* block_tables, const int64_t* context_lens, const int64_t* query_starts,
                               int64_t num_spans, int64_t table_stride, int64_t num_blocks, int64_t block_bytes,
                               int64_t page_len, int64_t offset, int64_t x_stride, int64_t input_stride, int64_t decay_stride,
                               int64_t num_channels, int dtype) {
  const GatedUnitArgs a = {{static_cast<char*>(key_cache), static_cast<char*>(value_cache), block_tables, context_lens,
                            query_starts, num_spans, table_stride, num_blocks, block_bytes, page_len, offset},
                           x, inputs, decays, rate, input_bias, decay_bias, y, x_stride, input_stride, decay_stride, num_channels};
  const int64_t num_items = a.num_channel_blocks();
  parallel_for(num_spans * num_items, [&](int64_t item) {
    kernels().gate_units[dtype](a, item / num_items, item % num_items, scratch(kItemScratch, a.scratch_bytes()));
  });
}

LULLM_EXPORT void lullm_gated_rms_norm(const void* x, const void* gate, const void* weight, void* y, int64_t x_stride,
                                       int64_t gate_stride, int64_t num_rows, int64_t num_groups, int64_t size,
                                       int64_t weight_stride, float eps, int gates_first, int dtype) {
  const GatedNormArgs a = {x, gate, weight, y, x_stride, gate_stride, num_groups, size, weight_stride, eps, gates_first != 0};
  const auto values = [&] { return static_cast<float*>(scratch(kItemScratch, (size + 15) / 16 * 64)); };
  for_rows(num_rows, num_groups * size,
           [&](int64_t first, int64_t last) { kernels().gated_norm[dtype](a, first, last, values()); });
}

LULLM_EXPORT void lullm_multiply(void* y, const void* x, int64_t y_stride, int64_t x_stride, int64_t num_rows, int64_t size,
                                 int64_t stretch, int gating, int dtype) {
  const MultiplyArgs a = {y, x, y_stride, x_stride, size, stretch, gating};
  for_rows(num_rows, size, [&](int64_t first, int64_t last) { kernels().multiply_rows[dtype](a, first, last); });
}
