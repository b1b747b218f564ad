// Attention with AMX for a few query rows of each key/value head, as in a decode.
//
// The same products as for many rows (`tile_attention.cpp`), each sum in the same order, so the same bits. But here keys
// are first operands, which is how they lie in the cache, and queries are packed as second ones: 16 keys times 16 rows.
// Products of tiles run over the depth in the same order either way, and the scores come out transposed.

#include "../kernel_table.h"
#include "fold.h"
#include "rows.h"
#include "softmax.h"
#include "tile_products.h"

namespace lullm {
namespace amx {

void fill_few_rows(Kernels&);

namespace {

constexpr int64_t kScoreFloats = kFewQueries * kStepKeys;

// C: of the cache.
template <class C>
class FewRows {
 public:
  FewRows(const AttentionArgs& args, const AttentionItem& item, const AttentionItem* after, void* scratch)
      : a(args), item(item), after(after), rows(args, item), scoring(scoring_of(args)), size(args.head_size),
        depth(depth_of<Bf16>(size)), num_heads(item.last_head - item.first_head) {
    char* p = static_cast<char*>(scratch);
    auto take = [&p](auto*& part, int64_t bytes) {
      part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(p);
      p += (bytes + 63) / 64 * 64;
    };
    take(scales, sizeof(StepScales));
    take(weights, 2 * kTileBytes);
    take(across, kScoreFloats * 4);
    take(scores, kScoreFloats * 4);
    take(values, value_bytes<Bf16>(size));
    take(keys, kStepKeys * depth * kTileDepth * 2);
    take(q, num_heads * depth * kTileBytes);
    take(base, num_heads * kFewQueries * 4);
    take(total, num_heads * kFewQueries * kLanes * 4);
    take(sums, num_heads * kFewQueries * size * 4);
    num_bytes = p - static_cast<char*>(scratch);
  }

  int64_t scratch_bytes() const { return num_bytes; }

  void run() {
    load_queries();
    std::memset(weights, 0, 2 * kTileBytes);  // rows past the end stay zero
    std::memset(sums, 0, num_heads * kFewQueries * size * 4);
    std::fill_n(base, num_heads * kFewQueries, -INFINITY);
    StepKeys found[2];
    find_keys(a, item, item.first_step(), found[0]);
    for (int64_t step = item.first_step(), turn = 0; step < item.last_step(); step++, turn ^= 1) {
      const AttentionItem& coming = step + 1 < item.last_step() || after == nullptr ? item : *after;
      find_keys(a, coming, step + 1 < item.last_step() ? step + 1 : coming.first_step(), found[turn ^ 1]);
      Ahead ahead(a, found[turn ^ 1], coming.first_head, coming.last_head);
      const int64_t num_lines = ahead.num_lines() / num_heads;
      for (int64_t head = item.first_head; head < item.last_head; head++) attend(step, head, found[turn], ahead, num_lines);
    }
    finish();
  }

 private:
  float* sums_of(int64_t head) const { return sums + (head - item.first_head) * kFewQueries * size; }

  void load_queries() const {
    for (int64_t head = item.first_head; head < item.last_head; head++) {
      for (int64_t d = 0; d < depth; d++) {
        V units[kFewQueries];
        for (int64_t row = 0; row < kFewQueries; row++) {
          units[row] = zero();
          if (row < rows.count)
            units[row] = load_units<Bf16>(
                row_of(static_cast<const Bf16*>(a.q), a.q_stride, a, item, head, row) + d * kTileDepth,
                size - d * kTileDepth);
        }
        transpose_units(units, q + ((head - item.first_head) * depth + d) * kTileBytes);
      }
    }
  }

  // A step of a head. So many lines of what comes next are fetched meanwhile.
  void attend(int64_t step, int64_t head, const StepKeys& own, Ahead& ahead, int64_t num_lines) const {
    const int64_t head_at = head * a.row_bytes, share = num_lines / 4 + 1;
    const CacheRows own_values = {a.value_cache + head_at, own.offset};
    const int64_t num_blocks = 4 * depth;
    int64_t block = 0;
    multiply_keys(step, head, {a.key_cache + head_at, own.offset}, [&] {
      pack_values<Bf16, C>(size, own_values, kStepUnits<Bf16> * block / num_blocks,
                           kStepUnits<Bf16> * (block + 1) / num_blocks, values);
      block++;
      ahead.fetch(3 * share / num_blocks + 1);
    });
    for (int64_t group = 0; group < 4; group++) {
      for (int64_t row = 0; row < rows.count; row += 4) transpose_quad(across + group * 256 + row, scores + row * kStepKeys + group * 16);
    }
    const Scoring head_scoring = scoring.with(find_scales<C>(a, head, own, scales));
    for (int64_t row = 0; row < rows.count; row++) weigh(head_scoring, step, head, row);
    multiply_values(sums_of(head), [&] { ahead.fetch(share * 16 / size + 1); });
  }

  // Four of 16 columns become rows.
  static void transpose_quad(const float* from, float* to) {
    V lanes[4];
    LULLM_UNROLL for (int i = 0; i < 4; i++) {
      lanes[i] = _mm512_castps128_ps512(_mm_loadu_ps(from + 16 * i));
      lanes[i] = _mm512_mask_broadcast_f32x4(lanes[i], 0x00f0, _mm_loadu_ps(from + 16 * (4 + i)));
      lanes[i] = _mm512_mask_broadcast_f32x4(lanes[i], 0x0f00, _mm_loadu_ps(from + 16 * (8 + i)));
      lanes[i] = _mm512_mask_broadcast_f32x4(lanes[i], 0xf000, _mm_loadu_ps(from + 16 * (12 + i)));
    }
    const V a = _mm512_unpacklo_ps(lanes[0], lanes[1]), b = _mm512_unpackhi_ps(lanes[0], lanes[1]);
    const V c = _mm512_unpacklo_ps(lanes[2], lanes[3]), d = _mm512_unpackhi_ps(lanes[2], lanes[3]);
    store(to, _mm512_shuffle_ps(a, c, 0x44));
    store(to + kStepKeys, _mm512_shuffle_ps(a, c, 0xee));
    store(to + 2 * kStepKeys, _mm512_shuffle_ps(b, d, 0x44));
    store(to + 3 * kStepKeys, _mm512_shuffle_ps(b, d, 0xee));
  }

  // Keys lie 16 rows in a row, `stride` bytes apart, or are copied there: the elements of the head are whole tiles then.
  template <class Between>
  void multiply_keys(int64_t step, int64_t head, const CacheRows& cache, Between&& between) const {
    const char* queries = q + (head - item.first_head) * depth * kTileBytes;
    const char* first[4];
    int64_t stride = a.num_kv_heads * a.row_bytes;
    if (std::is_same_v<C, Bf16> && size % kTileDepth == 0 && a.block_size % 16 == 0) {
      for (int64_t group = 0; group < 4; group++) {
        // The block of the group's first key that the item has; where it has none, what is multiplied is not used.
        const int64_t begin = step * kStepKeys + 16 * group;
        const int64_t key = std::clamp(begin, item.first_key, item.last_key - 1);
        const int64_t own = std::min(std::max(begin, item.first_key), begin + 15);
        first[group] = cache.first + cache.offset[own % kStepKeys] - (key % a.block_size % 16) * stride;
      }
    } else {
      stride = depth * kTileDepth * 2;
      for (int64_t i = 0; i < kStepKeys; i++) {
        for (int64_t d = 0; d < size; d += kTileDepth) {
          store(reinterpret_cast<float*>(keys + i * stride + 2 * d), load_units<Bf16>(cache.row<C>(i) + d, size - d));
        }
      }
      for (int64_t group = 0; group < 4; group++) first[group] = keys + 16 * group * stride;
    }
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (int64_t d = 0; d < depth; d++) {
      TILE_LOAD(4, queries + d * kTileBytes, 64);
      TILE_LOAD(5, first[0] + d * 64, stride);
      TILE_MULTIPLY(0, 5, 4);
      between();
      TILE_LOAD(6, first[1] + d * 64, stride);
      TILE_MULTIPLY(1, 6, 4);
      between();
      TILE_LOAD(7, first[2] + d * 64, stride);
      TILE_MULTIPLY(2, 7, 4);
      between();
      TILE_LOAD(5, first[3] + d * 64, stride);
      TILE_MULTIPLY(3, 5, 4);
      between();
    }
    TILE_STORE(across, 64, 0);
    TILE_STORE(across + 256, 64, 1);
    TILE_STORE(across + 512, 64, 2);
    TILE_STORE(across + 768, 64, 3);
  }

  void weigh(const Scoring& own_scoring, int64_t step, int64_t head, int64_t row) const {
    const int64_t state = (head - item.first_head) * kFewQueries + row;
    const uint64_t mask = rows.mask(row, step);
    float* own_scores = scores + row * kStepKeys;
    float &own = base[state], *own_total = total + state * kLanes;
    char* to = weights + row * 64;
    bool is_done = true;
    adjust(own_scores, own_scoring);
    if (mask == 0) {
      store(reinterpret_cast<float*>(to), zero());
      store(reinterpret_cast<float*>(to + kTileBytes), zero());
    } else if (own == -INFINITY) {
      weigh_row<Bf16, true, true>(own_scores, own_scoring, mask, own, own_total, to, kTileBytes);
    } else if (~mask == 0) {
      is_done = weigh_row<Bf16, false, false>(own_scores, own_scoring, mask, own, own_total, to, kTileBytes);
    } else {
      is_done = weigh_row<Bf16, false, true>(own_scores, own_scoring, mask, own, own_total, to, kTileBytes);
    }
    if (!is_done)
      revise<Bf16>(own_scores, own_scoring, mask, own, own_total, to, kTileBytes, sums_of(head) + row * 16, 256, size);
  }

  template <class Between>
  void multiply_values(float* to, Between&& between) const {
    TILE_LOAD(6, weights, 64);
    TILE_LOAD(7, weights + kTileBytes, 64);
    const char* from = values;
    int64_t left = size / 16;
    for (; left >= 2; left -= 2, from += 4 * kTileBytes, to += 512) {
      TILE_LOAD(0, to, 64);
      TILE_LOAD(2, from, 64);
      TILE_MULTIPLY(0, 6, 2);
      TILE_LOAD(1, to + 256, 64);
      TILE_LOAD(3, from + 2 * kTileBytes, 64);
      TILE_MULTIPLY(1, 6, 3);
      between();
      TILE_LOAD(4, from + kTileBytes, 64);
      TILE_MULTIPLY(0, 7, 4);
      TILE_LOAD(5, from + 3 * kTileBytes, 64);
      TILE_MULTIPLY(1, 7, 5);
      TILE_STORE(to, 64, 0);
      TILE_STORE(to + 256, 64, 1);
      between();
    }
    if (left == 0) return;
    TILE_LOAD(0, to, 64);
    TILE_LOAD(2, from, 64);
    TILE_MULTIPLY(0, 6, 2);
    TILE_LOAD(4, from + kTileBytes, 64);
    TILE_MULTIPLY(0, 7, 4);
    TILE_STORE(to, 64, 0);
  }

  void finish() const {
    for (int64_t head = item.first_head; head < item.last_head; head++) {
      for (int64_t row = 0; row < rows.count; row++) {
        const int64_t state = (head - item.first_head) * kFewQueries + row;
        const float all = base[state] == -INFINITY ? 0 : sum(load(total + state * kLanes));
        const Sums own = {sums_of(head) + row * 16, 256};
        if (item.shares == nullptr) {
          write<Bf16>(row_of(static_cast<Bf16*>(a.out), a.num_q_heads * size, a, item, head, row), size,
                      with_sink(all, base[state], sink_of(a, head, row)), own);
          continue;
        }
        float* share = item.shares + (head * rows.count + row) * share_floats(size);
        clear(share, size);
        fold(share, size, base[state], all, own);
      }
    }
  }

  const AttentionArgs& a;
  const AttentionItem& item;
  const AttentionItem* after;
  const Rows rows;
  const Scoring scoring;
  const int64_t size, depth, num_heads;
  StepScales* scales;
  char* weights;  // [2 x 32 keys][16][32] bf16
  float* across;  // [4 x 16 keys][16][16]
  float* scores;  // [16][64]
  char* values;   // packed, of a step
  char* keys;     // [64, depth * 32] bf16, where the cache's cannot be first operands
  char* q;        // [heads][depth][16 pairs][16][2] bf16
  float *base, *total, *sums;  // [heads, 16], [heads, 16, 16], [heads][head_size / 16][16][16]
  int64_t num_bytes;
};

int64_t scratch_bytes(const AttentionArgs& a, const AttentionItem& item) {
  return FewRows<Bf16>(a, item, nullptr, nullptr).scratch_bytes();
}

template <class C>
void attend(const AttentionArgs& a, const AttentionItem& item, const AttentionItem* after, void* scratch) {
  TileSession session;
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
