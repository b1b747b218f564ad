// Attention with AMX for a few query rows of each key/value head, as in a decode.
//
// The same products as for many rows (`tile_attention.cpp`), each sum in the same order, so the same bits. But here keys
// are first operands, which is how they lie in the cache, and queries are packed as second ones: 16 keys times the rows.
// Products of tiles run over the depth in the same order either way, and the scores come out transposed. Weights and sums
// are tiles of as many rows as there are: products, loads and stores of 16 would take longer than all else.
//
// Memory is the limit, so it is read all the time and in one piece: 16 keys of all heads, 32 values of all heads. While the
// values of a step are packed, the products of the next step's keys and of the values packed before run in between, and no
// part waits for what another one stores.

#include "../kernel_table.h"
#include "fold.h"
#include "rows.h"
#include "softmax.h"
#include "tile_few_products.h"

namespace lullm {
namespace amx {

void fill_few_rows(Kernels&);

namespace {

// C: of the cache. Heads count from the item's first.
template <class C>
class FewRows {
  using AheadOf = std::conditional_t<std::is_same_v<C, Int8>, TokensAhead, RowsAhead>;

 public:
  FewRows(const AttentionArgs& args, const AttentionItem& item, const AttentionItem* after, void* scratch)
      : a(args), item(item), after(after), rows(args, item), scoring(scoring_of(args)), size(args.head_size),
        depth(depth_of<Bf16>(size)), num_heads(item.last_head - item.first_head), num_columns((rows.count + 3) / 4 * 4),
        slot_bytes(args.num_kv_heads * args.row_bytes),
        is_in_place(std::is_same_v<C, Bf16> && size % kTileDepth == 0 && args.block_size % kGroupKeys == 0) {
    char* p = static_cast<char*>(scratch);
    auto take = [&p](auto*& part, int64_t bytes) {
      part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(p);
      p += (bytes + 63) / 64 * 64;
    };
    take(scales, sizeof(StepScales));
    take(weights, num_heads * 2 * rows.count * 64);
    take(across, 2 * num_heads * kStepKeys * num_columns * 4);
    take(scores, num_columns * kStepKeys * 4);
    take(values, value_bytes<Bf16>(size));
    take(keys, 2 * kTileBytes);
    take(q, num_heads * query_floats() * 4);
    take(base, num_heads * rows.count * 4);
    take(total, num_heads * rows.count * kLanes * 4);
    take(sums, num_heads * rows.count * size * 4);
    num_bytes = p - static_cast<char*>(scratch);
  }

  int64_t scratch_bytes() const { return num_bytes; }

  void run() {
    const TileSession session = shape_tiles(rows.count, num_columns);
    load_queries();
    std::memset(sums, 0, num_heads * rows.count * size * 4);
    std::fill_n(base, num_heads * rows.count, -INFINITY);
    StepsAhead steps(a, item, after);
    AheadOf keys_ahead(a, steps, a.key_cache, kHalfKeys, item.first_step());
    AheadOf values_ahead(a, steps, a.value_cache, kHalfKeys, item.first_step());
    KeyProducts first(*this, item.first_step(), steps, keys_ahead);
    first.run(first.count());
    ValueProducts packed;
    for (int64_t step = item.first_step(); step < item.last_step(); step++) {
      steps.enter(step);
      KeyProducts coming(*this, step + 1, steps, keys_ahead);
      attend(step, steps.keys(step), packed, coming, values_ahead);
    }
    packed.finish();
    finish();
  }

 private:
  // The products of a step's keys with the queries: of 32 keys of a head a tile of the depth at a time. Behind the last
  // step there are none.
  class KeyProducts {
   public:
    KeyProducts(const FewRows& all, int64_t step, const StepsAhead& steps, AheadOf& ahead)
        : all(all), own(steps.keys(step)), ahead(ahead), step(step),
          num_halves(step < all.item.last_step() ? (own.last + kHalfKeys - 1) / kHalfKeys : 0),
          share(kHalfKeys / all.depth) {
      if (num_halves > 0) enter_half();
    }

    int64_t count() const { return num_halves * all.num_heads * all.depth; }

    void run(int64_t count) {
      for (; count > 0; count--) run_next();
    }

   private:
    void enter_half() {
      head = 0;
      queries = all.q;
      for (int64_t i = 0; i < 2; i++) {
        cache[i] = all.a.key_cache + all.item.first_head * all.a.row_bytes;
        if (!all.is_in_place) continue;
        // The block of the group's first key that the item has; where it has none, what is multiplied is not used.
        const int64_t begin = step * kStepKeys + half * kHalfKeys + i * kGroupKeys;
        const int64_t key = std::clamp(begin, all.item.first_key, all.item.last_key - 1);
        const int64_t offset = own.offset[std::min(std::max(begin, all.item.first_key), begin + kGroupKeys - 1) % kStepKeys];
        cache[i] += offset - key % all.a.block_size % kGroupKeys * all.slot_bytes;
      }
    }

    // Functions of their own: inlined, the tiles' addresses take the registers of the loop that packs (4 % of its time).
    __attribute__((noinline)) void run_next() {
      if (d == 0) {
        TILE_ZERO(0);
        TILE_ZERO(1);
      }
      const char *first = operand(0), *second = operand(1);
      const int64_t stride = all.is_in_place ? all.slot_bytes : 64;
      TILE_LOAD(2, queries, all.num_columns * 4);
      TILE_LOAD(3, first, stride);
      TILE_MULTIPLY(0, 3, 2);
      TILE_LOAD(4, second, stride);
      TILE_MULTIPLY(1, 4, 2);
      queries += kTileUnits * all.num_columns;
      ahead.fetch(++d < all.depth ? share : kHalfKeys - share * (all.depth - 1));
      if (d < all.depth) return;
      float* to = all.across_of(step, head) + half * kHalfKeys * all.num_columns;
      TILE_STORE(to, all.num_columns * 4, 0);
      TILE_STORE(to + kGroupKeys * all.num_columns, all.num_columns * 4, 1);
      d = 0;
      cache[0] += all.a.row_bytes, cache[1] += all.a.row_bytes;
      if (++head == all.num_heads && ++half < num_halves) enter_half();
    }

    // A copy where keys do not lie 16 in a row, or are not bf16, or the head's elements are no whole tiles.
    const char* operand(int64_t group) const {
      if (all.is_in_place) return cache[group] + d * 64;
      const int64_t left = all.size - d * kTileDepth;
      const char* first = cache[group] + d * kTileDepth * sizeof(C);
      const int64_t* offset = own.offset + half * kHalfKeys + group * kGroupKeys;
      float* to = reinterpret_cast<float*>(all.keys + group * kTileBytes);
      if (left >= kTileDepth) copy<kTileDepth>(first, offset, to);
      else copy<kTileDepth / 2>(first, offset, to);
      return reinterpret_cast<const char*>(to);
    }

    template <int64_t kLeft>
    static void copy(const char* first, const int64_t* offset, float* to) {
      LULLM_UNROLL for (int64_t i = 0; i < kGroupKeys; i++)
        store(to + kLanes * i, load_units<Bf16>(reinterpret_cast<const C*>(first + offset[i]), kLeft));
    }

    const FewRows& all;
    const StepKeys& own;
    AheadOf& ahead;
    const int64_t step, num_halves, share;  // of a half's rows, fetched beside a product
    int64_t half = 0, head = 0, d = 0;
    const float* queries = nullptr;
    const char* cache[2];  // of both groups
  };

  int64_t query_floats() const { return depth * kTileUnits * num_columns; }  // of a head
  int64_t state_of(int64_t head, int64_t row) const { return head * rows.count + row; }
  float* sums_of(int64_t head) const { return sums + state_of(head, 0) * size; }
  char* weights_of(int64_t head) const { return weights + head * 2 * rows.count * 64; }
  float* across_of(int64_t step, int64_t head) const {
    return across + (step % 2 * num_heads + head) * kStepKeys * num_columns;
  }

  void load_queries() const {
    for (int64_t head = 0; head < num_heads; head++) {
      for (int64_t d = 0; d < depth; d++) {
        for (int64_t row = 0; row < num_columns; row += 4) {
          V quad[4];
          for (int64_t i = 0; i < 4; i++) quad[i] = row + i < rows.count ? load_query(head, row + i, d) : zero();
          transpose_rows(quad, q + head * query_floats() + d * kTileUnits * num_columns + row, num_columns);
        }
      }
    }
  }
  V load_query(int64_t head, int64_t row, int64_t d) const {
    const Bf16* from = row_of(static_cast<const Bf16*>(a.q), a.q_stride, a, item, item.first_head + head, row);
    return load_units<Bf16>(from + d * kTileDepth, size - d * kTileDepth);
  }

  // A step whose key products are done. `coming`: those of the next one; `packed`: what was packed last, not multiplied yet.
  void attend(int64_t step, const StepKeys& own, ValueProducts& packed, KeyProducts& coming, AheadOf& values_ahead) {
    const int64_t num_halves = (own.last + kHalfKeys - 1) / kHalfKeys, num_columns16 = size / 16;
    const int64_t num_coming = coming.count(), num_units = num_halves * num_heads * kTileUnits;
    int64_t keys_due = 0;
    for (int64_t half = 0; half < num_halves; half++) {
      for (int64_t head = 0; head < num_heads; head++, turn ^= 1) {
        // Fetches in even portions, beside weights too.
        const int64_t num_portions = kTileUnits + (half == 0 ? rows.count : 0);
        int64_t rows_due = 0;
        auto fetch = [&] {
          int64_t num_rows = 0;
          for (rows_due += kHalfKeys; rows_due >= num_portions; rows_due -= num_portions) num_rows++;
          values_ahead.fetch(num_rows);
        };
        if (half == 0) {
          if (num_heads == 1) packed.finish();  // its sums may be revised
          weigh_head(step, own, head, fetch);
        }
        const CacheRows own_values = {a.value_cache + (item.first_head + head) * a.row_bytes, own.offset};
        char* to = values + turn * kTileBytes;  // where the other half of a step is in `packed.h`
        int64_t sums_due = 0;
        for (int64_t unit = 0; unit < kTileUnits; unit++) {
          pack_unit<Bf16, C>(size, own_values, half * kTileUnits + unit, to + unit * 64);
          fetch();
          for (keys_due += num_coming; keys_due >= num_units; keys_due -= num_units) coming.run(1);
          for (sums_due += num_columns16; sums_due >= 2 * kTileUnits; sums_due -= 2 * kTileUnits) packed.run_next();
        }
        packed.finish();
        packed = {weights_of(head) + half * rows.count * 64, to, sums_of(head), rows.count * 16, num_columns16};
      }
    }
  }

  template <class Between>
  void weigh_head(int64_t step, const StepKeys& own, int64_t head, Between&& between) const {
    const float* from = across_of(step, head);
    for (int64_t group = 0; group < kStepKeys / kGroupKeys; group++, from += kGroupKeys * num_columns) {
      for (int64_t row = 0; row < rows.count; row += 4)
        transpose_columns(from + row, num_columns, scores + row * kStepKeys + group * kGroupKeys);
    }
    const Scoring head_scoring = scoring.with(find_scales<Bf16, C>(a, item.first_head + head, own, scales));
    if (std::is_same_v<C, Int8> && head + 1 < num_heads) fetch_scales(own, item.first_head + head + 1);
    for (int64_t row = 0; row < rows.count; row++) {
      weigh(head_scoring, step, head, row);
      between();
    }
  }

  // Scales of all values of a step are wanted before its second half of values is on its way.
  void fetch_scales(const StepKeys& own, int64_t kv_head) const {
    const char* first = a.value_cache + kv_head * a.row_bytes + size;
    for (int64_t i = kHalfKeys; i < own.last; i++) _mm_prefetch(first + own.offset[i], _MM_HINT_T0);
  }

  void weigh(const Scoring& own_scoring, int64_t step, int64_t head, int64_t row) const {
    const int64_t state = state_of(head, row), half = rows.count * 64;
    const uint64_t mask = rows.mask(row, step);
    float* own_scores = scores + row * kStepKeys;
    float &own = base[state], *own_total = total + state * kLanes;
    char* to = weights_of(head) + row * 64;
    bool is_done = true;
    adjust(own_scores, own_scoring);
    if (mask == 0) {
      store(reinterpret_cast<float*>(to), zero());
      store(reinterpret_cast<float*>(to + half), zero());
    } else if (own == -INFINITY) {
      weigh_row<Bf16, true, true>(own_scores, own_scoring, mask, own, own_total, to, half);
    } else if (~mask == 0) {
      is_done = weigh_row<Bf16, false, false>(own_scores, own_scoring, mask, own, own_total, to, half);
    } else {
      is_done = weigh_row<Bf16, false, true>(own_scores, own_scoring, mask, own, own_total, to, half);
    }
    if (!is_done)
      revise<Bf16>(own_scores, own_scoring, mask, own, own_total, to, half, sums_of(head) + row * 16, rows.count * 16, size);
  }

  void finish() const {
    for (int64_t head = 0; head < num_heads; head++) {
      const int64_t kv_head = item.first_head + head;
      for (int64_t row = 0; row < rows.count; row++) {
        const int64_t state = state_of(head, row);
        const float all = base[state] == -INFINITY ? 0 : sum(load(total + state * kLanes));
        const Sums own = {sums_of(head) + row * 16, rows.count * 16};
        if (item.shares == nullptr) {
          write<Bf16>(row_of(static_cast<Bf16*>(a.out), a.num_q_heads * size, a, item, kv_head, row), size,
                      with_sink(all, base[state], sink_of(a, kv_head, row)), own);
          continue;
        }
        float* share = item.shares + (kv_head * rows.count + row) * share_floats(size);
        clear(share, size);
        fold<Bf16>(share, size, base[state], all, own);
      }
    }
  }

  const AttentionArgs& a;
  const AttentionItem& item;
  const AttentionItem* after;
  const Rows rows;
  const Scoring scoring;
  const int64_t size, depth, num_heads;
  const int64_t num_columns;  // of queries and scores: the rows, filled up to a multiple of four
  const int64_t slot_bytes;
  const bool is_in_place;  // can the cache's keys be first operands
  int64_t turn = 0;        // which half of `values` is packed next
  StepScales* scales;
  char* weights;  // [heads][2 x 32 keys][rows][32] bf16
  float* across;  // [2][heads][4 x 16 keys][16][columns], of this step and the next
  float* scores;  // [columns][64]
  char* values;   // two parts, packed as the halves of a step
  char* keys;     // [16][32] bf16, where the cache's cannot be first operands
  float* q;       // [heads][depth][16 pairs][columns], two bf16 each
  float *base, *total, *sums;  // [heads, rows], [heads, rows, 16], [heads][head_size / 16][rows][16]
  int64_t num_bytes;
};

int64_t scratch_bytes(const AttentionArgs& a, const AttentionItem& item) {
  return FewRows<Bf16>(a, item, nullptr, nullptr).scratch_bytes();
}

template <class C>
void attend(const AttentionArgs& a, const AttentionItem& item, const AttentionItem* after, void* scratch) {
  FewRows<C>(a, item, after, scratch).run();
}

}  // namespace

void fill_few_rows(Kernels& kernels) {
  kernels.attend_few[kBFloat16][kPlainCache] = {scratch_bytes, attend<Bf16>};
  kernels.attend_few[kBFloat16][kInt8Cache] = {scratch_bytes, attend<Int8>};
  kernels.attend_few[kBFloat16][kFloat8Cache] = {scratch_bytes, attend<Float8>};
}

}  // namespace amx
}  // namespace lullm
