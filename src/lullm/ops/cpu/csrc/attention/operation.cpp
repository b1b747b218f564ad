// The attention operation: cuts a step into items and hands them to the thread pool.
//
// Where it cuts follows from the load and the number of threads, and changes no result (`arguments.h`).

#include "../operation.h"

#include <cstring>
#include <vector>

#include "../isa.h"
#include "../kernel_table.h"
#include "../thread_pool.h"
#include "rows.h"

using namespace lullm;

namespace {

constexpr int64_t kItemsPerThread = 6;
constexpr int64_t kFewItemsPerThread = 2;

// The rows of a span whose pieces are several items: their shares are [pieces, num_kv_heads, rows * group, floats].
struct Split {
  int64_t first_row, last_row, num_pieces;
  float* shares;
};

class Cut {
 public:
  Cut(const AttentionArgs& args, int64_t num_spans, int dtype)
      : a(args), num_spans(num_spans), num_threads(get_num_threads()), row_bytes(a.num_q_heads * a.head_size * size_of(dtype)) {
    add_many();
    add_few();
  }

  std::vector<AttentionItem> items;
  std::vector<Split> splits;

  int64_t piece_floats(const Split& split) const {
    return (split.last_row - split.first_row) * a.num_q_heads * share_floats(a.head_size);
  }

 private:
  int64_t rows_of(int64_t span) const { return a.query_starts[span + 1] - a.query_starts[span]; }
  bool is_few(int64_t span) const { return rows_of(span) * a.group() <= kFewQueries; }
  int64_t first_key(int64_t span, int64_t row) const {  // that a row of the step sees
    return std::max<int64_t>(0, a.first_seen(a.context_lens[span] - (a.query_starts[span + 1] - row) + 1));
  }

  // Neighbours share keys, or spans. Keys and values are packed once per item, so items are large as long as there are
  // enough for all threads.
  void add_many() {
    int64_t num_rows = 0, num_many = 0;
    for (int64_t span = 0; span < num_spans; span++)
      if (!is_few(span)) num_rows += rows_of(span) * a.num_q_heads, num_many++;
    const int64_t even_rows = num_rows / (kItemsPerThread * num_threads) / 64 * 64;
    const int64_t rows = std::max<int64_t>(1, std::clamp(even_rows, int64_t{64}, kManyQueries) / a.group());
    // A token's heads lie in one page of memory: one thread does several of them, then other tokens.
    const int64_t sets = std::clamp(num_threads / std::max<int64_t>(1, num_many), int64_t{1}, a.num_kv_heads);
    for (int64_t span = 0; span < num_spans; span++) {
      const int64_t begin = a.query_starts[span], end = a.query_starts[span + 1], context = a.context_lens[span];
      if (is_few(span)) continue;
      for (int64_t set = 0; set < sets; set++) {
        for (int64_t last = end; last > begin; last -= std::min(rows, last - begin)) {
          const int64_t first = std::max(begin, last - rows);
          for (int64_t head = a.num_kv_heads * set / sets; head < a.num_kv_heads * (set + 1) / sets; head++)
            items.push_back({span, first, last, head, head + 1, first_key(span, first),
                             std::min(context, context - (end - last) + a.ahead), nullptr, false});
        }
      }
    }
  }

  // A piece each, of all heads if these are enough for all threads.
  void add_few() {
    std::vector<AttentionItem> pieces;
    int64_t num_floats = 0;
    for (int64_t span = 0; span < num_spans; span++) {
      const int64_t row = a.query_starts[span], end = a.query_starts[span + 1], context = a.context_lens[span];
      if (!is_few(span)) continue;
      if (context == 0) {  // a row that sees nothing gives zeros
        std::memset(static_cast<char*>(a.out) + row * row_bytes, 0, (end - row) * row_bytes);
        continue;
      }
      AttentionItem item = {span, row, end, 0, a.num_kv_heads, first_key(span, row), context, nullptr, true};
      const int64_t first_piece = item.first_key / kPieceKeys, num_pieces = item.num_pieces();
      if (num_pieces > 1) {
        splits.push_back({row, end, num_pieces, nullptr});
        num_floats += num_pieces * piece_floats(splits.back());
      }
      for (int64_t piece = first_piece; piece < first_piece + num_pieces; piece++) {
        item.first_key = std::max(piece * kPieceKeys, first_key(span, row));
        item.last_key = std::min((piece + 1) * kPieceKeys, context);
        pieces.push_back(item);
      }
    }
    place_shares(pieces, num_floats);
    if (pieces.empty()) return;
    // Memory gives all heads of a token in one go faster than some: 4 x 1600 reads 21 GB/s whole, 18 in halves.
    const int64_t wanted = num_threads > 1 ? kFewItemsPerThread * num_threads : 1;
    const int64_t num_pieces = static_cast<int64_t>(pieces.size());
    const int64_t sets = std::clamp((wanted + num_pieces - 1) / num_pieces, int64_t{1}, a.num_kv_heads);
    for (int64_t set = 0; set < sets; set++) {
      for (AttentionItem item : pieces) {
        item.first_head = a.num_kv_heads * set / sets, item.last_head = a.num_kv_heads * (set + 1) / sets;
        items.push_back(item);
      }
    }
  }

  void place_shares(std::vector<AttentionItem>& pieces, int64_t num_floats) {
    if (num_floats == 0) return;
    float* shares = static_cast<float*>(scratch(kPartialScratch, num_floats * sizeof(float)));
    auto piece = pieces.begin();
    for (Split& split : splits) {
      split.shares = shares;
      while (piece->first_row != split.first_row) piece++;
      for (int64_t i = 0; i < split.num_pieces; i++, piece++, shares += piece_floats(split)) piece->shares = shares;
    }
  }

  const AttentionArgs& a;
  const int64_t num_spans, num_threads, row_bytes;
};

void attention(const AttentionArgs& a, int64_t num_spans, int dtype, int format) {
  const Kernels& k = kernels();
  const Cut cut(a, num_spans, dtype);
  const int64_t num_items = static_cast<int64_t>(cut.items.size());
  parallel_for(num_items, [&](int64_t index) {
    const AttentionItem& item = cut.items[index];
    const AttentionKernels& kernel = item.is_few ? k.attend_few[dtype][format] : k.attend_many[dtype][format];
    const AttentionItem* after = index + 1 < num_items ? &cut.items[index + 1] : nullptr;
    kernel.attend(a, item, after, scratch(kItemScratch, kernel.scratch_bytes(a, item)));
  });
  parallel_for(static_cast<int64_t>(cut.splits.size()), [&](int64_t index) {
    const Split& split = cut.splits[index];
    const int64_t rows = (split.last_row - split.first_row) * a.group(), row_floats = share_floats(a.head_size);
    for (int64_t head = 0; head < a.num_kv_heads; head++) {
      for (int64_t row = 0; row < rows; row++) {
        const int64_t q_row = (split.first_row + row / a.group()) * a.num_q_heads + head * a.group() + row % a.group();
        k.merge[dtype](split.shares + (head * rows + row) * row_floats, cut.piece_floats(split), split.num_pieces,
                       a.head_size, sink_of(a, head, row),
                       static_cast<char*>(a.out) + q_row * a.head_size * size_of(dtype));
      }
    }
  });
}

}  // namespace

LULLM_EXPORT void lullm_attention(const void* q, const void* key_cache, const void* value_cache,
                                  const float* key_scales, const float* value_scales, const float* sinks,
                                  const int64_t* block_tables, const int64_t* context_lens, const int64_t* query_starts,
                                  void* out, int64_t q_stride, int64_t table_stride, int64_t block_size,
                                  int64_t num_q_heads, int64_t num_kv_heads, int64_t head_size, int64_t row_bytes,
                                  int64_t num_spans, int64_t window, float scale, float soft_cap, int is_chunked,
                                  int dtype, int format) {
  attention({q, static_cast<const char*>(key_cache), static_cast<const char*>(value_cache), key_scales, value_scales,
             sinks, block_tables, context_lens, query_starts, out, q_stride, table_stride, block_size, num_q_heads,
             num_kv_heads, head_size, row_bytes, window > 0 ? window : kNoWindow, is_chunked != 0,
             scale, soft_cap},
            num_spans, dtype, format);
}

// Keys and values are a cache with a block for each row, in order.
LULLM_EXPORT void lullm_mutual_attention(const void* q, const void* k, const void* v, void* out, const int64_t* starts,
                                         int64_t q_stride, int64_t num_q_heads, int64_t num_kv_heads, int64_t head_size,
                                         int64_t num_spans, int64_t reach, float scale, int dtype) {
  std::vector<int64_t> lens(num_spans);
  for (int64_t span = 0; span < num_spans; span++) lens[span] = starts[span + 1] - starts[span];
  const int64_t longest = num_spans == 0 ? 0 : *std::max_element(lens.begin(), lens.end());
  std::vector<int64_t> tables(num_spans * longest);
  for (int64_t span = 0; span < num_spans; span++)
    for (int64_t row = 0; row < longest; row++) tables[span * longest + row] = starts[span] + row;
  AttentionArgs a = {q, static_cast<const char*>(k), static_cast<const char*>(v), nullptr, nullptr, nullptr, tables.data(),
                     lens.data(), starts, out, q_stride, longest, 1, num_q_heads, num_kv_heads, head_size,
                     head_size * size_of(dtype), reach < 0 ? kNoWindow : reach + 1, false, scale, 0};
  a.ahead = reach < 0 ? longest : reach;
  attention(a, num_spans, dtype, kPlainCache);
}
