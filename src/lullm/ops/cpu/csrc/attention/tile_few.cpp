// Attention with AMX for a few query rows of each key/value head, as in a decode.
//
// The same products as for many rows (`tile_attention.cpp`), each sum in the same order, so the same bits. But here keys
// are first operands, which is how they lie in the cache, and queries are packed as second ones: 16 keys times the rows.
// Products of tiles run over the depth in the same order either way, and the scores come out transposed. Weights and sums
// are tiles of as many rows as there are: products, loads and stores of 16 would take longer than all else.
//
// Memory is the limit, so it is read all the time, all heads of a token in one piece. While values are packed, the products of
// the next keys and of the values packed before run in between, and no part waits for what another one stores. Plain caches
// are computed in that order: 32 values of all heads, 32 keys of all heads of the next step. Of 8 bits less is read and more
// computed: a step is fetched a step early and computed head after head (0.93 of the time; plain caches would take 1.1).

#include "../kernel_table.h"
#include "fold.h"
#include "tile_few_products.h"
#include "tile_queries.h"

namespace lullm {
namespace amx {

void fill_few_rows(Kernels&);

namespace {

// C: of the cache. Heads count from the item's first.
template <class C>
class FewRows {
  static constexpr bool kByHeads = sizeof(C) == 1;
  static constexpr int64_t kElementsAtOnce = 64;  // that are packed, by heads
  using FetchesOf = std::conditional_t<kByHeads, StepFetches, HalfFetches>;
  static constexpr bool kIsInteger = std::is_same_v<C, Int8>;
  using K = std::conditional_t<kIsInteger, Int8, Bf16>;  // of queries and keys
  static constexpr int64_t kRowElements = 64 / sizeof(K);  // of a tile

 public:
  FewRows(const AttentionArgs& args, const AttentionItem& item, const AttentionItem* after, void* scratch)
      : a(args), item(item), after(after), rows(args, item), scoring(scoring_of(args)), size(args.head_size),
        depth((size + kRowElements - 1) / kRowElements), num_heads(item.num_heads()),
        heads_at_once(kByHeads ? 1 : num_heads), elements_at_once(kByHeads ? kElementsAtOnce : size),
        num_columns((rows.count + 3) / 4 * 4), all_columns(num_columns * (kIsInteger ? kDigits : 1)),
        num_parts(all_columns > 16 ? 2 : 1), tile_columns(all_columns / num_parts),
        slot_bytes(args.num_kv_heads * args.row_bytes),
        is_in_place(std::is_same_v<C, K> && size % kRowElements == 0 && args.block_size % kGroupKeys == 0) {
    char* p = static_cast<char*>(scratch);
    auto take = [&p](auto*& part, int64_t bytes) {
      part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(p);
      p += (bytes + 63) / 64 * 64;
    };
    take(scales, sizeof(StepScales));
    take(weights, 2 * heads_at_once * 2 * rows.count * 64);
    take(across, 2 * heads_at_once * kStepKeys * all_columns * 4);
    take(scores, all_columns * kStepKeys * 4);
    take(values, (kByHeads ? 2 : 1) * value_bytes<Bf16>(elements_at_once));
    take(keys, 2 * kTileBytes);
    take(q, num_heads * query_floats() * 4);
    take(units, num_heads * rows.count * 4);
    take(base, num_heads * rows.count * 4);
    take(total, num_heads * rows.count * kLanes * 4);
    take(sums, num_heads * rows.count * size * 4);
    num_bytes = p - static_cast<char*>(scratch);
  }

  int64_t scratch_bytes() const { return num_bytes; }

  void run() {
    const TileSession session = shape_tiles(rows.count, tile_columns);
    load_queries();
    std::memset(sums, 0, num_heads * rows.count * size * 4);
    std::fill_n(base, num_heads * rows.count, -INFINITY);
    StepsAhead steps(a, item, after);
    FetchesOf fetches(a, item, steps);
    KeyProducts coming(*this, steps, fetches);
    coming.enter(item.first_step(), 0);
    coming.run(coming.count());
    ValueProducts packed;
    for (int64_t step = item.first_step(); step < item.last_step(); step++) {
      steps.enter(step);
      fetches.enter(step);
      for (int64_t head = 0; head < num_heads; head += heads_at_once) {
        const bool is_last = head + heads_at_once == num_heads;
        coming.enter(is_last ? step + 1 : step, is_last ? 0 : head + heads_at_once);
        attend(step, steps.keys(step), head, packed, coming, fetches);
      }
    }
    packed.finish();
    finish();
  }

 private:
  // The products of a step's keys with the queries of the heads that are computed at once: of 32 keys of a head a tile of the
  // depth at a time. Behind the last step there are none.
  class KeyProducts {
   public:
    KeyProducts(const FewRows& all, const StepsAhead& steps, FetchesOf& fetches) : all(all), steps(steps), fetches(fetches) {}

    void enter(int64_t new_step, int64_t new_head) {
      step = new_step, first_head = new_head, turn ^= 1;
      own = &steps.keys(step), half = 0;
      num_halves = step < all.item.last_step() ? (own->last + kHalfKeys - 1) / kHalfKeys : 0;
      share = kHalfKeys / (all.num_parts * all.depth);
      if (num_halves > 0) enter_half();
    }

    int64_t count() const { return num_halves * all.heads_at_once * all.num_parts * all.depth; }

    void run(int64_t count) {
      for (; count > 0; count--) run_next();
    }

   private:
    void enter_half() {
      head = first_head;
      queries = all.q + head * all.query_floats();
      for (int64_t i = 0; i < 2; i++) {
        cache[i] = all.a.key_cache + (all.item.first_head + head) * all.a.row_bytes;
        if (!all.is_in_place) continue;
        // The block of the group's first key that the item has; where it has none, what is multiplied is not used.
        const int64_t begin = step * kStepKeys + half * kHalfKeys + i * kGroupKeys;
        const int64_t key = std::clamp(begin, all.item.first_key, all.item.last_key - 1);
        const int64_t offset = own->offset[std::min(std::max(begin, all.item.first_key), begin + kGroupKeys - 1) % kStepKeys];
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
      TILE_LOAD(2, queries, all.tile_columns * 4);
      TILE_LOAD(3, first, stride);
      TILE_LOAD(4, second, stride);
      if constexpr (kIsInteger) {
        TILE_MULTIPLY_SIGNED(0, 3, 2);
        TILE_MULTIPLY_SIGNED(1, 4, 2);
      } else {
        TILE_MULTIPLY(0, 3, 2);
        TILE_MULTIPLY(1, 4, 2);
      }
      queries += kTileUnits * all.tile_columns;
      const bool is_last = part + 1 == all.num_parts && d + 1 == all.depth;
      fetches.fetch_keys(is_last ? kHalfKeys - share * (all.num_parts * all.depth - 1) : share);
      if (++d < all.depth) return;
      float* to = all.across_of(turn, head - first_head) + half * kHalfKeys * all.all_columns + part * all.tile_columns;
      TILE_STORE(to, all.all_columns * 4, 0);
      TILE_STORE(to + kGroupKeys * all.all_columns, all.all_columns * 4, 1);
      d = 0;
      if (++part < all.num_parts) return;
      part = 0;
      cache[0] += all.a.row_bytes, cache[1] += all.a.row_bytes;
      if (++head == first_head + all.heads_at_once && ++half < num_halves) enter_half();
    }

    // A copy where keys do not lie 16 in a row, or are neither bf16 nor integers, or the head's elements are no whole tiles.
    const char* operand(int64_t group) const {
      if (all.is_in_place) return cache[group] + d * 64;
      float* to = reinterpret_cast<float*>(all.keys + group * kTileBytes);
      copy_keys<C>(cache[group] + d * kRowElements * sizeof(C), own->offset + half * kHalfKeys + group * kGroupKeys,
                   all.size - d * kRowElements, to);
      return reinterpret_cast<const char*>(to);
    }

    const FewRows& all;
    const StepsAhead& steps;
    FetchesOf& fetches;
    const StepKeys* own;
    int64_t step, first_head, num_halves, share, turn = 0;  // `share`: of a half's rows, fetched beside a product
    int64_t half, head, part = 0, d = 0;
    const float* queries;
    const char* cache[2];  // of both groups
  };

  int64_t query_floats() const { return depth * kTileUnits * all_columns; }  // of a head
  int64_t state_of(int64_t head, int64_t row) const { return head * rows.count + row; }
  float* sums_of(int64_t head) const { return sums + state_of(head, 0) * size; }
  // `head`: of those at once.
  char* weights_of(int64_t head) const { return weights + (turn * heads_at_once + head) * 2 * rows.count * 64; }
  float* across_of(int64_t which, int64_t head) const {
    return across + (which * heads_at_once + head) * kStepKeys * all_columns;
  }

  void load_queries() const {
    for (int64_t head = 0; head < num_heads; head++) {
      for (int64_t row = 0; kIsInteger && row < rows.count; row++)
        units[state_of(head, row)] = query_unit(query_of(head, row), size);
      for (int64_t column = 0; column < all_columns; column += 4) {
        float* to = q + head * query_floats() + column / tile_columns * depth * kTileUnits * tile_columns;
        for (int64_t d = 0; d < depth; d++, to += kTileUnits * tile_columns) {
          V quad[4];
          for (int64_t i = 0; i < 4; i++) quad[i] = load_query(head, column + i, d);
          transpose_rows(quad, to + column % tile_columns, tile_columns);
        }
      }
    }
  }
  const Bf16* query_of(int64_t head, int64_t row) const {
    return row_of(static_cast<const Bf16*>(a.q), a.q_stride, a, item, item.first_head + head, row);
  }
  V load_query(int64_t head, int64_t column, int64_t d) const {
    const int64_t row = column % num_columns, left = size - d * kRowElements;
    if (row >= rows.count) return zero();
    const Bf16* from = query_of(head, row) + d * kRowElements;
    if constexpr (kIsInteger) return load_digits(from, left, units[state_of(head, row)], column / num_columns);
    else return load_units<Bf16>(from, left);
  }

  // Heads of a step whose key products are done. `coming`: the next ones'; `packed`: what was packed last, not multiplied yet.
  void attend(int64_t step, const StepKeys& own, int64_t first_head, ValueProducts& packed, KeyProducts& coming,
              FetchesOf& fetches) {
    const int64_t num_halves = (own.last + kHalfKeys - 1) / kHalfKeys, halves_at_once = kByHeads ? num_halves : 1;
    const int64_t num_turns = num_halves / halves_at_once * ((size + elements_at_once - 1) / elements_at_once);
    const int64_t units_at_once = halves_at_once * kTileUnits, num_units = num_turns * heads_at_once * units_at_once;
    const int64_t num_coming = coming.count();
    int64_t keys_due = 0;
    turn ^= 1;
    for (int64_t i = 0; i < num_turns * heads_at_once; i++, value_turn ^= 1) {
      const int64_t half = kByHeads ? 0 : i / heads_at_once, d = kByHeads ? i * elements_at_once : 0;
      const int64_t place = i % heads_at_once, head = first_head + place, num_elements = std::min(size - d, elements_at_once);
      fetches.enter_part(units_at_once + (i == place ? rows.count : 0), (num_heads - first_head) * num_turns - i);
      if (i == place) {
        if (num_heads == 1) packed.finish();  // its sums may be revised
        weigh_head(step, own, head, fetches);
      }
      const CacheRows own_values = {a.value_cache + (item.first_head + head) * a.row_bytes + d * sizeof(C), own.offset};
      char* to = values + (kByHeads ? value_turn * value_bytes<Bf16>(elements_at_once) : value_turn * kTileBytes);
      int64_t sums_due = 0;
      auto pack = [&](auto elements) {
        for (int64_t unit = 0; unit < units_at_once; unit += 2) {
          char* pair = to + unit / kTileUnits * kTileBytes + unit % kTileUnits * 64;
          LULLM_UNROLL for (int64_t j = 0; j < 2; j++) {
            pack_unit<Bf16, C>(elements, own_values, half * kTileUnits + unit + j, pair + j * 64);
            fetches.fetch();
          }
          for (keys_due += 2 * num_coming; keys_due >= num_units; keys_due -= num_units) coming.run(1);
          for (sums_due += elements_at_once / 8; sums_due >= units_at_once; sums_due -= units_at_once) packed.run_next();
        }
      };
      if (kByHeads && num_elements == kElementsAtOnce) pack(std::integral_constant<int64_t, kElementsAtOnce>());
      else pack(num_elements);
      packed.finish();
      packed = {weights_of(place) + half * rows.count * 64, to, sums_of(head) + d * rows.count, rows.count, halves_at_once,
                num_elements / 16};
    }
  }

  void weigh_head(int64_t step, const StepKeys& own, int64_t head, FetchesOf& fetches) const {
    const float* from = across_of(turn, head % heads_at_once);
    for (int64_t group = 0; group < kStepKeys / kGroupKeys; group++, from += kGroupKeys * all_columns) {
      for (int64_t column = 0; column < all_columns; column += 4)
        transpose_columns(from + column, all_columns, scores + column * kStepKeys + group * kGroupKeys);
    }
    Scoring head_scoring = scoring.with(find_scales<Bf16, C>(a, item.first_head + head, own, scales));
    if (kIsInteger) head_scoring.key_scales = nullptr;  // the scores have them already
    for (int64_t row = 0; row < rows.count; row++) {
      weigh(head_scoring, step, head, row);
      fetches.fetch();
    }
  }

  void weigh(const Scoring& own_scoring, int64_t step, int64_t head, int64_t row) const {
    const int64_t state = state_of(head, row), half = rows.count * 64;
    const uint64_t mask = rows.mask(row, step);
    float* own_scores = scores + row * kStepKeys;
    float &own = base[state], *own_total = total + state * kLanes;
    char* to = weights_of(head % heads_at_once) + row * 64;
    bool is_done = true;
    if constexpr (kIsInteger) {
      join_digits(own_scores, num_columns * kStepKeys, units[state] / unit_of<Bf16, C>(), scales->keys);
    }
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
  const int64_t heads_at_once, elements_at_once;
  const int64_t num_columns;  // of queries and scores: the rows, filled up to a multiple of four
  const int64_t all_columns, num_parts, tile_columns;  // with all digits, and what of those is a tile
  const int64_t slot_bytes;
  const bool is_in_place;  // can the cache's keys be first operands
  int64_t turn = 0, value_turn = 0;  // which half of `across` and `weights`, and of `values`, is used
  StepScales* scales;
  char* weights;  // [heads][2 x 32 keys][rows][32] bf16
  float* across;  // [2][heads][4 x 16 keys][16][all columns], of this step and the next; of digits, integers
  float* scores;  // [all columns][64]
  char* values;   // two parts, packed as the halves of a step
  char* keys;     // [16][32] bf16 or [16][64] bytes, where the cache's cannot be first operands
  float* q;       // [heads][parts][depth][16 units][tile columns], two bf16 or four digits each
  float* units;   // [heads, rows], of integers
  float *base, *total, *sums;  // [heads, rows], [heads, rows, 16], [heads][head_size / 16][rows][16]
  int64_t num_bytes;
};

template <class C>
int64_t scratch_bytes(const AttentionArgs& a, const AttentionItem& item) {
  return FewRows<C>(a, item, nullptr, nullptr).scratch_bytes();
}

template <class C>
void attend(const AttentionArgs& a, const AttentionItem& item, const AttentionItem* after, void* scratch) {
  FewRows<C>(a, item, after, scratch).run();
}

}  // namespace

void fill_few_rows(Kernels& kernels) {
  kernels.attend_few[kBFloat16][kPlainCache] = {scratch_bytes<Bf16>, attend<Bf16>};
  kernels.attend_few[kBFloat16][kInt8Cache] = {scratch_bytes<Int8>, attend<Int8>};
  kernels.attend_few[kBFloat16][kFloat8Cache] = {scratch_bytes<Float8>, attend<Float8>};
}

}  // namespace amx
}  // namespace lullm
