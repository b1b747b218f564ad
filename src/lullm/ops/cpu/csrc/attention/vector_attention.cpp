// Attention with vectors: FlashAttention (https://arxiv.org/abs/2205.14135) over the paged cache, for any number of rows.
//
// Few rows, as of a decode, take the key/value heads of a step one after the other, so that the keys of a token are read
// in one go, and read keys and values in place. For many rows of one head, the query heads of a group among them, a few
// steps are packed once, and all rows pass over these while they are in the cache.

#include "../flush_denormals.h"
#include "../kernel_table.h"
#include "direct.h"
#include "fold.h"
#include "products.h"
#include "rows.h"
#include "softmax.h"

namespace lullm {
namespace LULLM_ISA {
namespace {

// T: of queries and results, C: of the cache, E: of weights and values. A state is a row of one of the item's heads.
template <class T, class C, class E>
class VectorAttention {
  using K = std::conditional_t<std::is_same_v<E, Swapped>, E, KeyOperand<T, C>>;  // of queries and keys
  static constexpr bool kIsInteger = std::is_same_v<K, Int16>;
  static constexpr int64_t kHalfBytes = kStepKeys / 2 * sizeof(E);
  static constexpr int64_t kStepsAtOnce = 4;  // of many rows
  static constexpr int64_t kGroupsAtOnce = 2;  // of 16 keys; of few rows
  // Dot products of pairs take denormals for zero. So does all that lies between two of them, whatever they are made of.
  static constexpr bool kFlushes = kHasDotBits<E>;
  // Heads whose rows share lines are read one after the other (`attend_few_by_head`).
  static constexpr bool kByHead = sizeof(C) == 1;

 public:
  VectorAttention(const AttentionArgs& args, const AttentionItem& item, const AttentionItem* after, void* scratch)
      : a(args), item(item), after(after), rows(args, item), scoring(scoring_of(args)), size(args.head_size),
        padded(kAreBytes<K, C> ? (size + 63) / 64 * 64 : depth_of<K>(size) * kBlockElements<K>), num_blocks(4 * depth_of<K>(size)),
        num_states(item.num_heads() * rows.count) {
    char* p = static_cast<char*>(scratch);
    auto take = [&p](auto*& part, int64_t count) {
      part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(p);
      p += (count * static_cast<int64_t>(sizeof *part) + 63) / 64 * 64;
    };
    const int64_t num_packed = item.is_few ? 0 : kStepsAtOnce, num_rows = item.is_few ? kFewQueries : kRowsAtOnce;
    take(scales, std::max<int64_t>(1, num_packed));
    take(keys, num_packed * key_bytes<K>(size));
    take(values, num_packed * value_bytes<E>(size));
    take(products, (item.is_few ? std::max(num_states, num_rows) : num_rows) * kStepKeys);
    take(weights, (item.is_few ? std::max(num_states, num_rows) : num_rows) * kStepKeys);
    take(q, num_states * padded + kSpareBytes / static_cast<int64_t>(sizeof(K)));
    take(loaded, item.is_few ? 0 : kTileUnits * padded);
    take(q_units, kIsInteger ? num_states : 0);
    take(base, num_states);
    take(total, num_states * kLanes);
    take(sums, num_states * size);
    take(shares, has_shares() ? num_states * share_floats(size) : 0);
    num_bytes = p - static_cast<char*>(scratch);
  }

  int64_t scratch_bytes() const { return num_bytes; }

  void run() {
    load_queries();
    if (is_shared()) for_states([&](int64_t head, int64_t row) { clear(share_of(head, row), size); });
    find_keys(a, item, item.first_step(), found[item.first_step() % 2]);
    for (int64_t first = item.first_step(), last; first < item.last_step(); first = last) {
      last = std::min(item.last_step(), (first / kPieceSteps + 1) * kPieceSteps);
      std::fill_n(base, num_states, -INFINITY);
      std::memset(sums, 0, num_states * size * sizeof(float));
      attend_steps(first, last);
      item.is_few ? finish_piece<DirectOrder<C>>() : finish_piece<E>();
    }
    if (has_shares()) for_states([&](int64_t head, int64_t row) {
      float* share = share_of(head, row);
      write<float>(result_of(head, row), size,
                   with_sink(total_of(share, size), base_of(share, size), sink_of(a, head, row)), {share, kLanes});
    });
  }

 private:
  bool has_shares() const { return item.shares == nullptr && item.num_pieces() > 1; }
  bool is_shared() const { return item.shares != nullptr || has_shares(); }
  int64_t state_of(int64_t head, int64_t row) const { return (head - item.first_head) * rows.count + row; }
  float* share_of(int64_t head, int64_t row) const {
    if (has_shares()) return shares + state_of(head, row) * share_floats(size);
    return item.shares + (head * rows.count + row) * share_floats(size);
  }
  T* result_of(int64_t head, int64_t row) const {
    return row_of(static_cast<T*>(a.out), a.num_q_heads * size, a, item, head, row);
  }

  template <class Body>
  void for_states(Body&& body) const {
    for (int64_t head = item.first_head; head < item.last_head; head++)
      for (int64_t row = 0; row < rows.count; row++) body(head, row);
  }

  void load_queries() const {
    if (item.is_few) return for_states([&](int64_t head, int64_t row) { load_query(head, row, q + state_of(head, row) * padded); });
    for (int64_t row = 0; row < rows.count; row += kRowsAtOnce) {
      const int64_t count = std::min<int64_t>(kRowsAtOnce, rows.count - row);
      for (int64_t i = 0; i < count; i++) load_query(item.first_head, row + i, loaded + i * padded);
      gather_units(reinterpret_cast<const char*>(loaded), padded * sizeof(K), count, reinterpret_cast<char*>(q + row * padded));
    }
  }

  void load_query(int64_t head, int64_t row, K* to) const {
    const T* from = row_of(static_cast<const T*>(a.q), a.q_stride, a, item, head, row);
    if constexpr (kIsInteger) q_units[state_of(head, row)] = quantize_query(from, size, to);
    else if constexpr (std::is_same_v<T, K>) std::memcpy(to, from, size * sizeof(K));
    else for (int64_t d = 0; d < size; d += kLanes) store(reinterpret_cast<float*>(to + d), load_units<K>(from + d, kLanes));
    std::memset(to + size, 0, (padded - size) * sizeof(K));
  }

  // `between` is called after each of the `num_blocks` of keys.
  template <class Between>
  void pack(int64_t step, int64_t head, int64_t place, Between&& between) {
    const StepKeys& own = found[step % 2];
    const int64_t head_at = head * a.row_bytes;
    const CacheRows own_values = {a.value_cache + head_at, own.offset};
    char* to = values + place * value_bytes<E>(size);
    constexpr int64_t num_units = kStepUnits<E>;
    int64_t block = 0;
    const CacheRows own_keys = {a.key_cache + head_at, own.offset};
    with_elements<E, C>(size, own_values, kStepKeys, [&](auto value) {
      auto pack_next = [&] {
        pack_values<E, decltype(value)>(size, own_values, num_units * block / num_blocks,
                                        num_units * (block + 1) / num_blocks, to);
        block++;
        between();
      };
      with_elements<K, C>(size, own_keys, kStepKeys, [&](auto key) {
        pack_keys<K, decltype(key)>(size, own_keys, keys + place * key_bytes<K>(size), pack_next);
      });
    });
  }

  // The item that the next step is of; its keys are found.
  const AttentionItem& find_next(int64_t step) {
    const bool is_last = step + 1 == item.last_step();
    const AttentionItem& coming = is_last && after != nullptr ? *after : item;
    find_keys(a, coming, is_last ? coming.first_step() : step + 1, found[(step + 1) % 2]);
    return coming;
  }

  void attend_steps(int64_t first, int64_t last) {
    const FlushDenormals flush(kFlushes);
    if constexpr (!std::is_same_v<E, Swapped>) {
      if (item.is_few) return attend_few();
    }
    for (int64_t step = first; step < last; step += kStepsAtOnce)
      attend_many(step, std::min(last, step + kStepsAtOnce));
  }

  void attend_few() {
    if constexpr (kByHead) {
      attend_few_by_head();
    } else if (fetches_in_order()) {
      // In short parts: 32 keys and 64 values at once, 4 x 1600 take 1.3 of the time (EPYC of Zen 3, 2 cores). With 32
      // registers a group's sums alone would wait for each other's products.
      attend_few<kRegisters >= 32 ? kGroupsAtOnce : 1>(num_near_tokens(item.num_heads() * a.row_bytes));
    } else {
      attend_few<kGroupsAtOnce>(kStepKeys);
    }
  }

  // Of a step the keys of all heads, some at a time, then the values of all heads, some at a time: memory is read in large
  // pieces, always a little ahead of the products. kGroups: of keys at once.
  template <int64_t kGroups>
  void attend_few(int64_t values_at_once) {
    // AVX2 takes a line by two loads, and gains from more time between a fetch and these: 5 %; AVX-512 loses 2 %.
    constexpr int64_t kDistance = kRegisters >= 32 ? 32 : 64, kKeysAtOnce = 16 * kGroups;
    StepsAhead steps(a, item, after);
    RowsAhead keys_ahead(a, steps, a.key_cache, kKeysAtOnce, item.first_step(), kDistance);
    RowsAhead values_ahead(a, steps, a.value_cache, values_at_once, item.first_step(), kDistance);
    auto for_parts = [&](int64_t count, int64_t at_once, auto&& body) {
      for (int64_t first = 0; first < count; first += at_once)
        for (int64_t head = item.first_head; head < item.last_head; head++)
          body(first, std::min(at_once, count - first), head);
    };
    for (int64_t step = item.first_step(); step < item.last_step(); step++) {
      steps.enter(step);
      const StepKeys& own = steps.keys(step);
      const int64_t count = item.keys_in(step);
      std::memset(products, 0, num_states * kStepKeys * sizeof(float));
      for_parts(count, kKeysAtOnce, [&](int64_t first, int64_t num_keys, int64_t head) {
        multiply_few<kGroups>(own, head, first, num_keys, products_of(head), fetch_beside(keys_ahead, size * sizeof(C)));
      });
      for_parts(count, values_at_once, [&](int64_t first, int64_t num_keys, int64_t head) {
        E* own_weights = weights + state_of(head, 0) * kStepKeys;
        if (first == 0) weigh_few(step, own, head, products_of(head), own_weights);
        add_few(own, head, first, num_keys, own_weights, fetch_beside(values_ahead, size * sizeof(C)));
      });
    }
  }

  // Rows of 8 bits take more products than memory. Keys or values of one head, which come next, are fetched into the
  // first-level cache; a token's heads, whose rows share lines, in one go into the second-level cache, a step early: 4 x 1600
  // take 0.87 of the time.
  void attend_few_by_head() {
    constexpr int64_t kKeysAtOnce = 16 * kGroupsAtOnce;
    for (int64_t step = item.first_step(); step < item.last_step(); step++) {
      const AttentionItem& coming = find_next(step);
      const int64_t count = item.keys_in(step);
      const StepKeys &own = found[step % 2], &next = found[(step + 1) % 2];
      Ahead tokens(a, next, coming.first_head, coming.last_head);
      for (int64_t head = item.first_head; head < item.last_head; head++) {
        Near values_ahead(a.value_cache + head * a.row_bytes, own, a.row_bytes);
        std::memset(products, 0, rows.count * kStepKeys * sizeof(float));
        for (int64_t first = 0; first < count; first += kKeysAtOnce)
          multiply_few<kGroupsAtOnce>(own, head, first, std::min(kKeysAtOnce, count - first), products,
                                      fetch_beside(values_ahead, tokens));
        weigh_few(step, own, head, products, weights);
        const bool is_last = head + 1 == item.last_head;
        const int64_t next_head = is_last ? coming.first_head : head + 1;
        Near keys_ahead(a.key_cache + next_head * a.row_bytes, is_last ? next : own, a.row_bytes);
        add_few(own, head, 0, count, weights, fetch_beside(keys_ahead, tokens));
      }
      tokens.fetch(tokens.num_lines());
    }
  }

  float* products_of(int64_t head) const { return products + state_of(head, 0) * kStepKeys; }

  template <int64_t kGroups, class Between>
  void multiply_few(const StepKeys& own, int64_t head, int64_t first, int64_t count, float* to, Between&& between) const {
    const CacheRows own_keys = {a.key_cache + head * a.row_bytes, own.offset};
    const Scores<K> scores = {q + state_of(head, 0) * padded, padded, to};
    with_elements<K, C>(size, {own_keys.first, own_keys.offset + first}, count, [&](auto key) {
      multiply_keys<K, decltype(key), kGroups>(size, own_keys, first, scores, rows.count, between);
    });
  }

  void weigh_few(int64_t step, const StepKeys& own, int64_t head, float* from, E* to) {
    const Scoring head_scoring = scoring.with(find_scales<E, C>(a, head, own, scales));
    for (int64_t row = 0; row < rows.count; row++)
      weigh(head_scoring, state_of(head, row), rows.mask(row, step), from + row * kStepKeys, to + row * kStepKeys);
  }

  template <class Between>
  void add_few(const StepKeys& own, int64_t head, int64_t first, int64_t count, const E* from, Between&& between) const {
    const CacheRows own_values = {a.value_cache + head * a.row_bytes, own.offset + first};
    with_elements<E, C>(size, own_values, count, [&](auto value) {
      for (int64_t row = 0; row < rows.count; row += kRowsAtOnce)
        add_values<E, decltype(value)>({from + row * kStepKeys + first, sums + state_of(head, row) * size, size, row == 0},
                                       rows.count - row, own_values, count, between);
    });
  }

  void attend_many(int64_t first, int64_t last) {
    for (int64_t step = first; step < last; step++) {
      const AttentionItem& coming = find_next(step);
      Ahead ahead(a, found[(step + 1) % 2], coming.first_head, coming.last_head);
      const int64_t num_lines = ahead.num_lines() / num_blocks + 1;
      find_scales<E, C>(a, item.first_head, found[step % 2], scales + step - first);
      pack(step, item.first_head, step - first, [&] { ahead.fetch(num_lines); });
    }
    for (int64_t row = 0; row < rows.count; row += kRowsAtOnce) {
      const int64_t count = std::min<int64_t>(kRowsAtOnce, rows.count - row);
      for (int64_t step = std::max(first, rows.first_step(row)); step < last && step < rows.last_step(row + count - 1); step++)
        attend_rows(row, count, step, step - first);
    }
  }

  void attend_rows(int64_t row, int64_t count, int64_t step, int64_t place) const {
    // What lies behind the last row's own key would add exact zeros.
    const int64_t num_keys = std::min(kStepKeys, rows.limit(row + count - 1) - step * kStepKeys);
    multiply<OfKeys>(Product<K>{q + row * padded, keys + place * key_bytes<K>(size), depth_of<K>(size), 4 * kBlockBytes,
                                kBlockBytes, products, kStepKeys},
                     count, (num_keys + kLanes - 1) / kLanes);
    const Scoring step_scoring = scoring.with(has_scales<E, C>(a) ? scales + place : nullptr);
    const uint64_t seen_by_all = rows.mask(row, step) & rows.mask(row + count - 1, step);
    for (int64_t i = 0; i < count; i++)
      weigh(step_scoring, row + i, ~seen_by_all == 0 ? seen_by_all : rows.mask(row + i, step), products + i * kStepKeys, weights + i * kStepKeys);
    multiply<OfValues>(Product<E>{weights, values + place * value_bytes<E>(size),
                                  (num_keys + kBlockElements<E> - 1) / kBlockElements<E>, kBlockBytes,
                                  kStepBlocks<E> * kBlockBytes, sums + row * size, size},
                       count, size / kLanes);
  }

  // `mask`: the keys that the row sees. `place`: of its weights.
  void weigh(const Scoring& own_scoring, int64_t state, uint64_t mask, float* row_products, E* own_weights) const {
    char* to = reinterpret_cast<char*>(own_weights);
    float &own = base[state], *own_total = total + state * kLanes;
    if (mask == 0) {
      std::memset(to, 0, 2 * kHalfBytes);
      return;
    }
    bool is_done = true;
    if constexpr (kIsInteger) {
      for (int64_t j = 0; j < kStepKeys; j += kLanes)
        store(row_products + j, mul(to_floats(load_integers(row_products + j)), set1(q_units[state])));
    }
    adjust(row_products, own_scoring);
    if (own == -INFINITY) weigh_row<E, true, true>(row_products, own_scoring, mask, own, own_total, to, kHalfBytes);
    else if (~mask == 0) is_done = weigh_row<E, false, false>(row_products, own_scoring, mask, own, own_total, to, kHalfBytes);
    else is_done = weigh_row<E, false, true>(row_products, own_scoring, mask, own, own_total, to, kHalfBytes);
    if (!is_done)
      revise<E>(row_products, own_scoring, mask, own, own_total, to, kHalfBytes, sums + state * size, kLanes, size);
  }

  // Order: of the sums (`fold.h`).
  template <class Order>
  void finish_piece() const {
    for_states([&](int64_t head, int64_t row) {
      const int64_t state = state_of(head, row);
      const float all = base[state] == -INFINITY ? 0 : sum(load(total + state * kLanes));
      const Sums own = {sums + state * size, kLanes};
      if (is_shared()) fold<Order>(share_of(head, row), size, base[state], all, own);
      else write<Order>(result_of(head, row), size, with_sink(all, base[state], sink_of(a, head, row)), own);
    });
  }

  const AttentionArgs& a;
  const AttentionItem& item;
  const AttentionItem* after;
  const Rows rows;
  const Scoring scoring;
  const int64_t size, padded, num_blocks, num_states;
  StepKeys found[2];  // of a step and the next, by their numbers' last bit
  StepScales* scales;       // of a step of one head, or of those that are packed
  char *keys, *values;
  float* products;  // [rows at once, kStepKeys], of a step; of few rows [states, kStepKeys]
  E* weights;       // [rows at once, kStepKeys]
  K* q;             // [states, padded]; of many rows, by groups and units
  K* loaded;        // [16, padded], rows of a group
  float* q_units;   // [states], of integers
  float *base, *total, *sums, *shares;  // [states], [states, kLanes], [states, size], [states, share_floats]
  int64_t num_bytes;
};

template <class T, class C, class E = Operand<T, C>>
int64_t scratch_bytes(const AttentionArgs& a, const AttentionItem& item) {
  return VectorAttention<T, C, E>(a, item, nullptr, nullptr).scratch_bytes();
}

template <class T, class C, class E = Operand<T, C>>
void attend(const AttentionArgs& a, const AttentionItem& item, const AttentionItem* after, void* scratch) {
  VectorAttention<T, C, E>(a, item, after, scratch).run();
}

template <class T>
void fill_formats(Kernels& kernels, DType dtype) {
  auto fill = [&](CacheFormat format, AttentionKernels own) {
    kernels.attend_few[dtype][format] = kernels.attend_many[dtype][format] = own;
  };
  fill(kPlainCache, {scratch_bytes<T, T>, attend<T, T>});
  fill(kInt8Cache, {scratch_bytes<T, Int8>, attend<T, Int8>});
  fill(kFloat8Cache, {scratch_bytes<T, Float8>, attend<T, Float8>});
}

}  // namespace

void fill_attention(Kernels& kernels) {
  fill_formats<float>(kernels, kFloat32);
  fill_formats<Bf16>(kernels, kBFloat16);
#if defined(LULLM_HAS_DOTS)
  if (!kernels.prefers_dots)
    kernels.attend_many[kBFloat16][kPlainCache] = {scratch_bytes<Bf16, Bf16, Swapped>, attend<Bf16, Bf16, Swapped>};
#endif
  kernels.merge[kFloat32] = merge<float>;
  kernels.merge[kBFloat16] = merge<Bf16>;
}

}  // namespace LULLM_ISA
}  // namespace lullm
