// Rows: what the rows of an item see. StepKeys: where the keys of a step lie.
#pragma once

#include "../processor.h"
#include "arguments.h"

namespace lullm {
namespace {

// The rows of one key/value head: token after token, the query heads of the group side by side.
class Rows {
 public:
  Rows(const AttentionArgs& a, const AttentionItem& item)
      : group(a.group()), count((item.last_row - item.first_row) * group), args(a) {
    const int64_t begin = a.query_starts[item.span];
    context = a.context_lens[item.span];
    first_limit = context - (a.query_starts[item.span + 1] - begin) + item.first_row - begin + 1;
  }

  // A row sees the keys before its limit, from `first_seen` on. Rows past the end repeat the last one.
  int64_t limit(int64_t row) const { return std::min(context, own_limit(row) + args.ahead); }
  int64_t first_step(int64_t row) const { return std::max<int64_t>(0, first_seen(row)) / kStepKeys; }
  int64_t last_step(int64_t row) const { return (limit(row) + kStepKeys - 1) / kStepKeys; }

  // Which of a step's 64 keys a row sees.
  uint64_t mask(int64_t row, int64_t step) const {
    const int64_t visible = limit(row) - step * kStepKeys;
    return below(visible) & ~below(first_seen(row) - step * kStepKeys);
  }
  int64_t first_seen(int64_t row) const { return args.first_seen(own_limit(row)); }

  const int64_t group, count;

 private:
  int64_t own_limit(int64_t row) const { return first_limit + std::min(row, count - 1) / group; }
  static uint64_t below(int64_t keys) {
    return keys >= 64 ? ~uint64_t{0} : keys <= 0 ? 0 : (uint64_t{1} << keys) - 1;
  }
  const AttentionArgs& args;
  int64_t context, first_limit;
};

// The element of row `row` in a tensor [T, heads, head_size]; the caches' heads are those of the item.
template <class T>
T* row_of(T* tensor, int64_t stride, const AttentionArgs& a, const AttentionItem& item, int64_t head, int64_t row) {
  return tensor + (item.first_row + row / a.group()) * stride + (head * a.group() + row % a.group()) * a.head_size;
}

// The sink of a row's query head; null: there is none.
inline const float* sink_of(const AttentionArgs& a, int64_t head, int64_t row) {
  return a.sinks == nullptr ? nullptr : a.sinks + head * a.group() + row % a.group();
}

// Where the keys of a step lie: offsets of head 0 in bytes. `first` to `last` are the item's own; the others repeat the
// nearest of those: they are finite, and no row sees them.
struct StepKeys {
  int64_t first, last;
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
  keys.first = first - begin, keys.last = last - begin;
  for (int64_t i = 0; i < keys.first; i++) keys.offset[i] = keys.offset[keys.first];
  for (int64_t i = keys.last; i < kStepKeys; i++) keys.offset[i] = keys.offset[keys.last - 1];
}

// Fetches what comes next into the second-level cache, a few lines at a time between other work.
//
// It takes the item's heads of a token in one go, token after token, so that the processor's own prefetcher runs ahead.
// Head after head, 256 bytes of a token at a time, decodes read 19 GB/s where this order reads 22 (Xeon, 2 cores). Lines of
// keys and of values take turns: a token's keys, then its values, e4m3 takes 1.05 of the time and integers 1.01, four
// tokens at a time 1.07 more.
class Ahead {
 public:
  Ahead(const AttentionArgs& a, const StepKeys& keys, int64_t first_head, int64_t last_head)
      : bases{a.key_cache + first_head * a.row_bytes, a.value_cache + first_head * a.row_bytes},
        offset(keys.offset + keys.first), last_offset(keys.offset + keys.last),
        num_bytes((last_head - first_head) * a.row_bytes), at(num_bytes) {}

  int64_t num_lines() const { return (last_offset - offset) * 2 * ((num_bytes + 63) / 64); }

  // One more where `count` is odd.
  void fetch(int64_t count) {
    for (; count > 0; count -= 2, at += 64) {
      if (at >= num_bytes) {
        if (offset == last_offset) return;
        key = bases[0] + *offset, value = bases[1] + *offset;
        offset++, at = 0;
      }
      fetch_far(key + at);
      fetch_far(value + at);
    }
  }

 private:
  const char* const bases[2];
  const int64_t *offset, *const last_offset;
  const int64_t num_bytes;
  int64_t at;
  const char *key = nullptr, *value = nullptr;
};

// Fetches the keys or the values of one head, which come next, into the first-level cache.
//
// For kernels that read in place: their loads would else queue behind those of lines that come from memory. A step of one
// head and side is 16 KiB, so that two of them fit. Each token's lines go together: elements of all tokens first, 4 x 1600
// take 2.5 ms a layer where this order takes 2.2 (AVX-512, one thread).
class Near {
 public:
  Near(const char* first, const StepKeys& keys, int64_t num_bytes)
      : first(first), offset(keys.offset + keys.first), end(keys.offset + keys.last), num_bytes(num_bytes),
        num_lines((num_bytes + 63) / 64) {}

  // Whole rows, as many as `count` lines and those left over before make.
  void fetch(int64_t count) {
    for (due += count; due >= num_lines && offset != end; due -= num_lines) {
      const char* row = first + *offset++;
      for (int64_t at = 0; at < num_bytes; at += 64) fetch_near(row + at);
    }
  }

 private:
  const char* const first;
  const int64_t *offset, *const end;
  const int64_t num_bytes, num_lines;
  int64_t due = 0;
};

// The keys of an item's steps, found some steps early, and behind the last those of the steps of what the thread will most
// likely do then (`after`, may be null).
class StepsAhead {
 public:
  static constexpr int64_t kAhead = 3;

  StepsAhead(const AttentionArgs& a, const AttentionItem& item, const AttentionItem* after) : a(a), item(item), after(after) {
    for (int64_t i = 0; i < kAhead; i++) find(item.first_step() + i);
  }

  // To be called for every step: those up to kAhead later are found then.
  void enter(int64_t step) { find(step + kAhead); }

  // Of the last steps that were found, up to `newest`.
  const StepKeys& keys(int64_t step) const { return found[step % (kAhead + 1)]; }
  int64_t newest() const { return last_found; }
  const AttentionItem& item_of(int64_t step) const { return step < item.last_step() || after == nullptr ? item : *after; }

 private:
  void find(int64_t step) {
    const AttentionItem& of = item_of(step);
    const int64_t own = step < item.last_step() ? step : of.first_step() + step - item.last_step();
    find_keys(a, of, std::min(own, of.last_step() - 1), found[step % (kAhead + 1)]);
    last_found = step;
  }

  const AttentionArgs& a;
  const AttentionItem &item, *after;
  StepKeys found[kAhead + 1];
  int64_t last_found = 0;
};

// Tokens of which half of the first-level cache holds one side: so many are in use, so many on their way.
constexpr int64_t kNearBytes = 16 << 10;
inline int64_t num_near_tokens(int64_t token_bytes) {
  return std::clamp(kNearBytes / token_bytes / 4 * 4, int64_t{4}, kStepKeys);
}

// Fetches the rows of a cache into the second-level cache before they are read: of a step `num_keys` keys at a time, one
// head after the other.
//
// Such a part of all heads is one piece of memory, or two, and is read as a whole. On Intel's processors it is fetched in
// the order in which it is read, `distance` rows before. The distance is short: 64 rows of one head lie 2 KiB apart, so they
// share eight of the 64 sets of the first-level cache, and 4 x 1600 read 4 % less so far ahead (Xeon, 2 cores). AMD's fetch
// such rows slowly (lines 2 KiB apart 8 GB/s, side by side 17; EPYC of Zen 3, 2 cores): there a part is fetched in memory's
// order, all heads of a token at once, while the part before is read; short ones into the first-level cache. Fetches go in
// small portions between other work: bursts take the places for lines on their way from the loads behind them, and 32 x 160
// read 10 % less.
class RowsAhead {
 public:
  RowsAhead(const AttentionArgs& a, const StepsAhead& steps, const char* cache, int64_t num_keys, int64_t step,
            int64_t distance)
      : steps(steps), cache(cache), num_keys(num_keys), head_bytes(a.row_bytes), by_token(fetches_in_order()),
        is_near(by_token && num_keys * steps.item_of(step).num_heads() * head_bytes <= kNearBytes), step(step) {
    enter_step();
    if (by_token) {
      next_part();
    } else {
      for (; distance >= num_keys; distance -= num_keys) next_head();
      for (; distance > 0; distance--) next_row();
    }
  }

  // Of one head each.
  void fetch(int64_t num_rows) {
    for (; num_rows > 0; num_rows--, at += head_bytes) {
      if (at >= row_end) next_row();
      const char* line = at - reinterpret_cast<uintptr_t>(at) % 64;  // of 8 bits, rows begin anywhere in a line
      for (; line < at + head_bytes; line += 64) is_near ? fetch_near(line) : fetch_far(line);
    }
  }

 private:
  void enter_step() {
    item = &steps.item_of(step), found = &steps.keys(step);
    first_key = 0;
    enter_part();
  }
  void enter_part() {
    head = item->first_head;
    enter_head();
  }
  void enter_head() {
    key = first_key, end = std::min(first_key + num_keys, found->last);
    enter_row();
  }
  void enter_row() {
    at = cache + head * head_bytes + found->offset[key];
    row_end = at + (by_token ? item->last_head - head : 1) * head_bytes;
  }
  __attribute__((noinline)) void next_row() {  // inlined, it takes registers from the loops around it
    if (++key < end) return enter_row();
    next_head();
  }
  void next_head() {
    if (!by_token && ++head < item->last_head) return enter_head();
    next_part();
  }
  void next_part() {
    first_key += num_keys;
    if (first_key < found->last) return enter_part();
    if (step < steps.newest()) step++;  // else the same again: short steps of few heads are left faster than they are found
    enter_step();
  }

  const StepsAhead& steps;
  const char* const cache;
  const int64_t num_keys, head_bytes;
  const bool by_token;  // a row is all heads of one, not one head
  const bool is_near;
  int64_t step;
  const AttentionItem* item;
  const StepKeys* found;
  int64_t first_key, head, key, end;
  const char *at, *row_end;
};

// Between products: is told how many bytes were read of the cache, and fetches as much of what comes next.
inline auto fetch_beside(Near& rows, Ahead& tokens) {
  return [&](int64_t num_bytes) {
    rows.fetch(2 * num_bytes / 64);  // rows begin anywhere in a line, so that 128 bytes are parts of three
    tokens.fetch(num_bytes / 64);
  };
}
inline auto fetch_beside(RowsAhead& ahead, int64_t row_bytes) {
  return [&ahead, row_bytes, due = int64_t{0}](int64_t num_bytes) mutable {
    for (due += num_bytes; due >= row_bytes; due -= row_bytes) ahead.fetch(1);
  };
}

}  // namespace
}  // namespace lullm
