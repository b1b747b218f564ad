// Rows: what the rows of an item see. StepKeys: where the keys of a step lie.
#pragma once

#include "arguments.h"

namespace lullm {

// The rows of one key/value head: token after token, the query heads of the group side by side.
class Rows {
 public:
  Rows(const AttentionArgs& a, const AttentionItem& item)
      : group(a.group()), count((item.last_row - item.first_row) * group), window(a.window) {
    const int64_t begin = a.query_starts[item.span];
    const int64_t start = a.context_lens[item.span] - (a.query_starts[item.span + 1] - begin);
    first_limit = start + item.first_row - begin + 1;
  }

  // A row sees the keys before its limit, down to the window. Rows past the end repeat the last one.
  int64_t limit(int64_t row) const { return first_limit + std::min(row, count - 1) / group; }
  int64_t first_step(int64_t row) const { return std::max<int64_t>(0, limit(row) - window) / kStepKeys; }
  int64_t last_step(int64_t row) const { return (limit(row) + kStepKeys - 1) / kStepKeys; }

  // Which of a step's 64 keys a row sees.
  uint64_t mask(int64_t row, int64_t step) const {
    const int64_t visible = limit(row) - step * kStepKeys;
    return below(visible) & ~below(visible - window);
  }

  const int64_t group, count, window;

 private:
  static uint64_t below(int64_t keys) {
    return keys >= 64 ? ~uint64_t{0} : keys <= 0 ? 0 : (uint64_t{1} << keys) - 1;
  }
  int64_t first_limit;
};

// The element of row `row` in a tensor [T, heads, head_size]; the caches' heads are those of the item.
template <class T>
T* row_of(T* tensor, int64_t stride, const AttentionArgs& a, const AttentionItem& item, int64_t head, int64_t row) {
  return tensor + (item.first_row + row / a.group()) * stride + (head * a.group() + row % a.group()) * a.head_size;
}

// Offsets of head 0 in bytes. Keys of the step that are not the item's repeat the nearest of its own: they are finite,
// and nobody sees them.
struct StepKeys {
  int64_t offset[kStepKeys];
};

inline void find_keys(const AttentionArgs& a, const AttentionItem& item, int64_t step, StepKeys& keys) {
  const int64_t begin = step * kStepKeys, slot_bytes = a.num_kv_heads * a.row_bytes;
  const int64_t first = std::max(begin, item.first_key), last = std::min(begin + kStepKeys, item.last_key);
  const int64_t* block = a.block_tables + item.span * a.table_stride + first / a.block_size;
  for (int64_t key = first, place = first % a.block_size; key < last; key++) {
    keys.offset[key - begin] = (*block * a.block_size + place) * slot_bytes;
    if (++place == a.block_size) place = 0, block++;
  }
  for (int64_t i = 0; i < first - begin; i++) keys.offset[i] = keys.offset[first - begin];
  for (int64_t i = last - begin; i < kStepKeys; i++) keys.offset[i] = keys.offset[last - begin - 1];
}

}  // namespace lullm
