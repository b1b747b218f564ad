// Attention with AMX for many query rows of one key/value head, as in a prefill: FlashAttention over the paged cache.
//
// Rows (tokens times the query heads that share the key/value head) go 32 at a time over the keys, 64 at a time: a step.
// A step has three parts: scores = q k^T into memory; softmax there, weights back as first operands; weights times v,
// added to the sums in memory. Each would wait for the stores of the one before, and products and vectors can run at the
// same time, so the parts of three neighbouring steps are woven into one another: between two rows of the softmax of one
// step come a few products of the scores of the next and of the values of the one before.
//
// Keys and values are packed as second operands once for all rows of the item, a piece at a time. A row whose base has to
// be revised (`softmax.h`) is set aside and done after the others, when nothing of earlier steps is on its way any more.

#include "../kernel_table.h"
#include "fold.h"
#include "rows.h"
#include "softmax.h"
#include "tile_queries.h"

namespace lullm {
namespace amx {

void fill_few_rows(Kernels&);

namespace {

struct Memory {
  char* q;         // [pairs][depth][2][16][32] bf16
  char* keys;      // [kPieceSteps][depth][4 x 16 keys][16 pairs][16][2] bf16
  char* values;    // [kPieceSteps][head_size / 16][2 x 32 keys][16 pairs][16][2] bf16
  char* weights;   // [2][2 x 32 keys][2][16][32] bf16, of this step and the one before
  float* scores;   // [2][32][64], of this step and the next
  float* sums;     // [pairs][head_size / 16][2][16][16]
  float* base;     // [rows], in powers of two
  float* total;    // [rows][16]
  float* shares;   // [rows][share_floats], of several pieces
  StepScales* scales;  // [kPieceSteps]
  int64_t bytes;
};

Memory layout(const AttentionArgs& a, const AttentionItem& item, void* base) {
  const int64_t depth = depth_of<Bf16>(a.head_size), rows = (item.last_row - item.first_row) * a.group();
  const int64_t pairs = (rows + kPairRows - 1) / kPairRows;
  char* p = static_cast<char*>(base);
  Memory m;
  auto take = [&](int64_t bytes) {
    char* taken = p;
    p += (bytes + 63) / 64 * 64;
    return taken;
  };
  m.weights = take(8 * kTileBytes);
  m.scores = reinterpret_cast<float*>(take(2 * kPairRows * kStepKeys * 4));
  m.keys = take(kPieceSteps * key_bytes<Bf16>(a.head_size));
  m.values = take(kPieceSteps * value_bytes<Bf16>(a.head_size));
  m.q = take(pairs * depth * 2 * kTileBytes);
  m.sums = reinterpret_cast<float*>(take(pairs * kPairRows * a.head_size * 4));
  m.base = reinterpret_cast<float*>(take(pairs * kPairRows * 4));
  m.total = reinterpret_cast<float*>(take(pairs * kPairRows * 16 * 4));
  m.shares = reinterpret_cast<float*>(take(item.num_pieces() > 1 ? rows * share_floats(a.head_size) * 4 : 0));
  m.scales = reinterpret_cast<StepScales*>(take(kPieceSteps * sizeof(StepScales)));
  m.bytes = p - static_cast<char*>(base);
  return m;
}

struct Step {
  int64_t pair;
  int64_t keys;  // the number of the 64
};

// An item on its way: where its rows stand and what they see. C: of the cache.
template <class C>
class TileAttention {
 public:
  TileAttention(const AttentionArgs& args, const AttentionItem& item, void* scratch)
      : a(args), item(item), m(layout(args, item, scratch)), rows(args, item), scoring(scoring_of(args)),
        depth(depth_of<Bf16>(args.head_size)), num_pairs((rows.count + kPairRows - 1) / kPairRows),
        has_shares(item.num_pieces() > 1) {}

  void run() {
    load_queries();
    if (has_shares) for_rows([&](int64_t row) { clear(share_of(row), a.head_size); });
    for (int64_t first = item.first_step(), last; first < item.last_step(); first = last) {
      last = std::min(item.last_step(), (first / kPieceSteps + 1) * kPieceSteps);
      for (int64_t step = first; step < last; step++) pack(step);
      std::fill_n(m.base, num_pairs * kPairRows, -INFINITY);
      attend(first, last);
      finish_piece();
    }
    if (has_shares) for_rows([&](int64_t row) {
      float* share = share_of(row);
      const float total = total_of(share, a.head_size), base = base_of(share, a.head_size);
      write<float>(result_of(row), a.head_size, with_sink(total, base, sink_of(a, item.first_head, row)), {share, kLanes});
    });
  }

 private:
  float* share_of(int64_t row) const { return m.shares + row * share_floats(a.head_size); }
  Bf16* result_of(int64_t row) const {
    return row_of(static_cast<Bf16*>(a.out), a.num_q_heads * a.head_size, a, item, item.first_head, row);
  }
  float* sums_of(int64_t row) const {
    return m.sums + row / kPairRows * kPairRows * a.head_size + row % kPairRows * 16;
  }
  template <class Body>
  void for_rows(Body&& body) const {
    for (int64_t row = 0; row < rows.count; row++) body(row);
  }

  // A function of its own: inlined, it makes all else slower (3 % over integers).
  __attribute__((noinline)) void load_queries() const {
    for (int64_t r = 0; r < num_pairs * kPairRows; r++) {
      char* to = m.q + (r / kPairRows * depth * 2 + r % kPairRows / 16) * kTileBytes + r % 16 * 64;
      const Bf16* q = row_of(static_cast<const Bf16*>(a.q), a.q_stride, a, item, item.first_head,
                             std::min(r, rows.count - 1));
      const float unit = std::is_same_v<C, Int8> ? query_unit(q, a.head_size) : 1;
      for (int64_t d = 0; d < depth; d++)
        store(reinterpret_cast<float*>(to + 2 * d * kTileBytes),
              load_query<C>(q + d * kTileDepth, a.head_size - d * kTileDepth, unit));
    }
  }

  char* keys_of(int64_t step) const { return m.keys + step % kPieceSteps * key_bytes<Bf16>(a.head_size); }
  char* values_of(int64_t step) const { return m.values + step % kPieceSteps * value_bytes<Bf16>(a.head_size); }

  void pack(int64_t step) const {
    StepKeys own, next;
    find_keys(a, item, step, own);
    find_keys(a, item, std::min(step + 1, item.last_step() - 1), next);
    Ahead ahead(a, next, item.first_head, item.last_head);
    const int64_t head_at = item.first_head * a.row_bytes, num_lines = ahead.num_lines() / (4 * depth) + 1;
    find_scales<Bf16, C>(a, item.first_head, own, m.scales + step % kPieceSteps);
    pack_keys<Bf16, C>(a.head_size, {a.key_cache + head_at, own.offset}, keys_of(step), [&] { ahead.fetch(num_lines); });
    pack_values<Bf16, C>(a.head_size, {a.value_cache + head_at, own.offset}, 0, kStepUnits<Bf16>, values_of(step));
  }

  // The next step of these keys, pair after pair.
  bool advance(Step& step, int64_t first, int64_t last) const {
    step.keys++;
    while (step.pair < 0 || step.keys >= last || step.keys >= rows.last_step(step.pair * kPairRows + kPairRows - 1)) {
      if (++step.pair >= num_pairs) return false;
      step.keys = std::max(first, rows.first_step(step.pair * kPairRows));
    }
    return true;
  }

  // Is it the pair's first step of the piece?
  bool is_first(const Step& step) const {
    return step.keys % kPieceSteps == 0 || step.keys == rows.first_step(step.pair * kPairRows);
  }

  ScorePieces scores_of(const Step& step, int64_t turn) const {
    return {m.q + step.pair * depth * 2 * kTileBytes, keys_of(step.keys), depth,
            m.scores + turn % 2 * kPairRows * kStepKeys};
  }
  ValuePieces values_of(const Step& step, int64_t turn) const {
    return {m.weights + turn % 2 * 4 * kTileBytes, values_of(step.keys), a.head_size / 16,
            m.sums + step.pair * kPairRows * a.head_size, is_first(step)};
  }

  void attend(int64_t first, int64_t last) const {
    Step before = {0, 0}, step = {-1, 0};
    if (!advance(step, first, last)) return;
    ScorePieces scores = scores_of(step, 0);
    for (int64_t i = scores.count(); i > 0; i--) scores.run_next();
    bool is_more = true;
    for (int64_t turn = 0; is_more; turn++) {
      Step next = step;
      is_more = advance(next, first, last);
      ScorePieces next_scores = scores_of(is_more ? next : step, turn + 1);
      ValuePieces values = values_of(before, turn + 1);
      int64_t scores_left = is_more ? next_scores.count() : 0, values_left = turn > 0 ? values.count() : 0;
      const int64_t at_once = (scores_left + values_left + kPairRows / 2 - 1) / (kPairRows / 2);
      weigh(step, turn, [&] {
        for (int64_t i = 0; i < at_once; i++) {
          if (scores_left > 0) next_scores.run_next(), scores_left--;
          else if (values_left > 0) values.run_next(), values_left--;
        }
      });
      before = step;
      step = next;
      if (!is_more) {
        ValuePieces rest = values_of(before, turn);
        for (int64_t i = rest.count(); i > 0; i--) rest.run_next();
      }
    }
  }

  // The softmax of a step; `between` is called before every second row.
  template <class Between>
  void weigh(const Step& step, int64_t turn, Between&& between) const {
    const int64_t key = step.keys * kStepKeys, row = step.pair * kPairRows;
    const bool sees_all = rows.limit(row) >= key + kStepKeys && rows.first_seen(row + kPairRows - 1) <= key;
    if (is_first(step) && sees_all) weigh_rows<true, false>(step, turn, between);
    else if (is_first(step)) weigh_rows<true, true>(step, turn, between);
    else if (sees_all) weigh_rows<false, false>(step, turn, between);
    else weigh_rows<false, true>(step, turn, between);
  }

  template <bool kIsFirst, bool kMasked, class Between>
  void weigh_rows(const Step& step, int64_t turn, Between&& between) const {
    float* scores = m.scores + turn % 2 * kPairRows * kStepKeys;
    const Scoring step_scoring = scoring.with(has_scales<Bf16, C>(a) ? m.scales + step.keys % kPieceSteps : nullptr);
    char* weights = m.weights + turn % 2 * 4 * kTileBytes;
    const int64_t first = step.pair * kPairRows;
    float *base = m.base + first, *total = m.total + first * 16;
    uint32_t set_aside = 0;
    for (int64_t i = 0; i < kPairRows; i += 2) {
      between();
      LULLM_UNROLL for (int64_t r = i; r < i + 2; r++) {
        const uint64_t mask = kMasked ? rows.mask(first + r, step.keys) : 0;
        adjust(scores + r * kStepKeys, step_scoring);
        if (!weigh_row<Bf16, kIsFirst, kMasked>(scores + r * kStepKeys, step_scoring, mask, base[r], total + r * 16,
                                                weights + r / 16 * kTileBytes + r % 16 * 64, 2 * kTileBytes))
          set_aside |= 1u << r;
      }
    }
    for (; set_aside != 0; set_aside &= set_aside - 1) {
      const int64_t r = __builtin_ctz(set_aside);
      revise<Bf16>(scores + r * kStepKeys, step_scoring, rows.mask(first + r, step.keys), base[r], total + r * 16,
                   weights + r / 16 * kTileBytes + r % 16 * 64, 2 * kTileBytes, sums_of(first + r), 512, a.head_size);
    }
  }

  void finish_piece() const {
    for_rows([&](int64_t row) {
      const float base = m.base[row], total = sum(load(m.total + row * 16));
      const Sums sums = {sums_of(row), 512};
      if (has_shares) fold<Bf16>(share_of(row), a.head_size, base, total, sums);
      else write<Bf16>(result_of(row), a.head_size, with_sink(total, base, sink_of(a, item.first_head, row)), sums);
    });
  }

  const AttentionArgs& a;
  const AttentionItem& item;
  const Memory m;
  const Rows rows;
  const Scoring scoring;
  const int64_t depth, num_pairs;
  const bool has_shares;
};

int64_t scratch_bytes(const AttentionArgs& a, const AttentionItem& item) { return layout(a, item, nullptr).bytes; }

template <class C>
void attend(const AttentionArgs& a, const AttentionItem& item, const AttentionItem*, void* scratch) {
  TileSession session;
  TileAttention<C>(a, item, scratch).run();
}

}  // namespace

void fill_attention(Kernels& kernels) {
  kernels.attend_many[kBFloat16][kPlainCache] = {scratch_bytes, attend<Bf16>};
  kernels.attend_many[kBFloat16][kInt8Cache] = {scratch_bytes, attend<Int8>};
  kernels.attend_many[kBFloat16][kFloat8Cache] = {scratch_bytes, attend<Float8>};
  fill_few_rows(kernels);
}

}  // namespace amx
}  // namespace lullm
