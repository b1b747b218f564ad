// Attention with AMX for many query rows of one key/value head, as in a prefill: FlashAttention over the paged cache.
//
// Rows (tokens times the query heads that share the key/value head) go 32 at a time over the keys, 64 at a time: a step.
// A step has three parts: scores = q k^T into memory; softmax there, weights back as first operands; weights times v,
// added to the sums in memory. Each would wait for the stores of the one before, and products and vectors can run at the
// same time, so the parts of three neighbouring steps are woven into one another: between two rows of the softmax of one
// step come a few products of the scores of the next and of the values of the one before.
//
// Keys and values are packed as second operands once for all rows of the item, 1024 keys at a time.
//
// A row's weights are relative to its largest score of the first step that it sees. That is revised only when a score
// exceeds it by 2^60, which is a matter of overflow and not of accuracy; such a row is set aside and done after the
// others, when nothing of earlier steps is on its way any more.

#include <cmath>

#include "attention_piece.h"

namespace lullm {
namespace amx {
namespace {

constexpr int64_t kPackedSteps = 16;  // 512 KiB of keys and values at a head size of 128

struct Memory {
  char* q;         // [pairs][depth][2][16][32] bf16
  char* keys;      // [kPackedSteps][depth][4 x 16 keys][16 pairs][16][2] bf16
  char* values;    // [kPackedSteps][head_size / 16][2 x 32 keys][16 pairs][16][2] bf16
  char* weights;   // [2][2 x 32 keys][2][16][32] bf16, of this step and the one before
  float* scores;   // [2][32][64], of this step and the next
  float* sums;     // [pairs][head_size / 16][2][16][16]
  float* base;     // [rows], in powers of two
  float* total;    // [rows][16]
  int64_t bytes;
};

Memory layout(const AttentionArgs& a, void* base) {
  const int64_t depth = depth_of(a.head_size), group = a.num_q_heads / a.num_kv_heads;
  const int64_t pairs = ((group > kAttendTileRows ? group : kAttendTileRows) + kPairRows - 1) / kPairRows;
  char* p = static_cast<char*>(base);
  Memory m;
  auto take = [&](int64_t bytes) {
    char* taken = p;
    p += (bytes + 63) / 64 * 64;
    return taken;
  };
  m.weights = take(8 * kTileBytes);
  m.scores = reinterpret_cast<float*>(take(2 * kPairRows * kStepKeys * 4));
  m.keys = take(kPackedSteps * depth * 4 * kTileBytes);
  m.values = take(kPackedSteps * a.head_size / 16 * 2 * kTileBytes);
  m.q = take(pairs * depth * 2 * kTileBytes);
  m.sums = reinterpret_cast<float*>(take(pairs * kPairRows * a.head_size * 4));
  m.base = reinterpret_cast<float*>(take(pairs * kPairRows * 4));
  m.total = reinterpret_cast<float*>(take(pairs * kPairRows * 16 * 4));
  m.bytes = p - static_cast<char*>(base);
  return m;
}

int64_t attend_tile_scratch_bytes(const AttentionArgs& a) { return layout(a, nullptr).bytes; }

constexpr float kLog2E = 1.44269504f;
constexpr float kReviseAbove = 60;  // in powers of two
constexpr float kUnit = 1 << 23;    // a power of two, in the bits of a float
constexpr float kBias = 254;        // what a float adds to its exponent, and the exponent of what is subtracted below

// The bits of 2**x for x = t / kUnit - kBias, off by 8e-5 of itself at most (what becomes of it is rounded to bf16, to
// 2e-3), down to 2**-125. Taken as a number, t is nearly there: between powers of two it is linear where it should be
// 2**f, f being the low 23 bits. A polynomial of 1 + f gives the difference of the two plus 1, and the bits of that plus
// the 127 of its exponent are subtracted.
inline V power_of_two(V t) {
  const __m512i bits = _mm512_cvtps_epu32(max(t, set1((kBias - 125) * kUnit)));
  const V m = _mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(bits, _mm512_set1_epi32(0x7fffff), _mm512_set1_epi32(0x3f800000), 0xea));
  V y = fma(set1(-0.07802455f), m, set1(0.008006471f));
  y = fma(y, m, set1(0.52222723f));
  y = fma(y, m, set1(1 - 0.45213437f));
  return _mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_castps_si512(y)));
}

// Which of 64 keys a row sees that sees those before `visible`, `window` of them at most.
inline uint64_t mask_of(int64_t visible, int64_t window) {
  auto below = [](int64_t count) {
    return count >= 64 ? ~uint64_t{0} : count <= 0 ? 0 : (uint64_t{1} << count) - 1;
  };
  return below(visible) & ~below(visible - window);
}

// The scores of a row become bf16 weights. If these are the first, they set the base; else it returns false and has done
// nothing where one exceeds the base by too much.
template <bool kIsFirst, bool kMasked>
inline bool weigh_row(const float* scores, float scale, uint64_t mask, float& base, float* total, char* weights) {
  const V factor = set1(scale * kLog2E * kUnit);
  V t[4];
  if constexpr (kIsFirst) {
    V top = set1(-INFINITY);
    LULLM_UNROLL for (int j = 0; j < 4; j++) {
      const V s = mul(load(scores + 16 * j), set1(scale * kLog2E));
      top = kMasked ? _mm512_mask_max_ps(top, mask >> 16 * j, top, s) : max(top, s);
    }
    base = largest(top);
  }
  const V offset = mul(sub(set1(kBias), set1(base)), set1(kUnit));
  LULLM_UNROLL for (int j = 0; j < 4; j++) {
    t[j] = fma(load(scores + 16 * j), factor, offset);
    if constexpr (kMasked) t[j] = _mm512_mask_blend_ps(mask >> 16 * j, set1(-INFINITY), t[j]);
  }
  if constexpr (!kIsFirst) {
    const V top = max(max(t[0], t[1]), max(t[2], t[3]));
    if (_mm512_cmp_ps_mask(top, set1((kBias + kReviseAbove) * kUnit), _CMP_GT_OQ) != 0) return false;
  }
  LULLM_UNROLL for (int j = 0; j < 4; j++) {
    t[j] = power_of_two(t[j]);
    if constexpr (kMasked) t[j] = _mm512_maskz_mov_ps(mask >> 16 * j, t[j]);
  }
  const V sum = add(add(t[0], t[1]), add(t[2], t[3]));
  store(total, kIsFirst ? sum : add(load(total), sum));
  _mm512_store_si512(weights, (__m512i)_mm512_cvtne2ps_pbh(t[1], t[0]));
  _mm512_store_si512(weights + 2 * kTileBytes, (__m512i)_mm512_cvtne2ps_pbh(t[3], t[2]));
  return true;
}

struct Step {
  int64_t pair;
  int64_t keys;  // number of the 64 from the item's first key
};

// An item on its way: where its rows stand and what they see.
class TileAttention {
 public:
  TileAttention(const AttentionArgs& args, const AttentionItem& item, void* scratch)
      : a(args), item(item), m(layout(args, scratch)), group(a.num_q_heads / a.num_kv_heads),
        depth(depth_of(a.head_size)), num_rows((item.last_row - item.first_row) * group),
        num_pairs((num_rows + kPairRows - 1) / kPairRows), first_limit(0) {
    const int64_t begin = a.query_starts[item.span];
    const int64_t start = a.context_lens[item.span] - (a.query_starts[item.span + 1] - begin);
    first_limit = start + item.first_row - begin + 1 - item.first_key;
  }

  void run() {
    load_queries();
    const int64_t num_steps = (item.last_key - item.first_key + kStepKeys - 1) / kStepKeys;
    for (int64_t first = 0; first < num_steps; first += kPackedSteps) {
      const int64_t last = first + kPackedSteps < num_steps ? first + kPackedSteps : num_steps;
      for (int64_t keys = first; keys < last; keys++) pack(keys);
      attend(first, last);
    }
    write();
  }

 private:
  // Row r is token r / group, query head r % group of this key/value head; rows past the end repeat the last one. It
  // sees the keys before its limit, counted from the item's first.
  int64_t limit_of(int64_t r) const { return first_limit + (r < num_rows ? r : num_rows - 1) / group; }
  int64_t first_step(int64_t pair) const {
    const int64_t key = limit_of(pair * kPairRows) - a.window;
    return key <= 0 ? 0 : key / kStepKeys;
  }
  int64_t last_step(int64_t pair) const {
    return (limit_of(pair * kPairRows + kPairRows - 1) + kStepKeys - 1) / kStepKeys;
  }

  void load_queries() const {
    for (int64_t r = 0; r < num_pairs * kPairRows; r++) {
      char* to = m.q + (r / kPairRows * depth * 2 + r % kPairRows / 16) * kTileBytes + r % 16 * 64;
      const int64_t real = r < num_rows ? r : num_rows - 1;
      const Bf16* q = static_cast<const Bf16*>(a.q) + (item.first_row + real / group) * a.q_stride +
                      (item.first_head * group + real % group) * a.head_size;
      for (int64_t d = 0; d < depth; d++)
        _mm512_store_si512(to + 2 * d * kTileBytes, load_elements(q + d * kTileDepth, a.head_size - d * kTileDepth));
    }
  }

  char* keys_of(int64_t keys) const { return m.keys + keys % kPackedSteps * depth * 4 * kTileBytes; }
  char* values_of(int64_t keys) const { return m.values + keys % kPackedSteps * a.head_size / 16 * 2 * kTileBytes; }

  void pack(int64_t step) const {
    const Bf16 *keys[kStepKeys], *values[kStepKeys];
    const int64_t first = item.first_key + step * kStepKeys;
    for (int64_t i = 0; i < kStepKeys; i++) {  // past the end the last key again: finite, and of no weight
      const int64_t key = first + i < item.last_key ? first + i : item.last_key - 1;
      const int64_t offset = (slot_of(a, item.span, key) * a.num_kv_heads + item.first_head) * a.head_size;
      keys[i] = static_cast<const Bf16*>(a.key_cache) + offset;
      values[i] = static_cast<const Bf16*>(a.value_cache) + offset;
    }
    pack_keys(a, keys, keys_of(step));
    pack_values(a, values, values_of(step));
  }

  // The next step of these keys, pair after pair.
  bool advance(Step& step, int64_t first, int64_t last) const {
    step.keys++;
    while (step.pair < 0 || step.keys >= last || step.keys >= last_step(step.pair)) {
      if (++step.pair >= num_pairs) return false;
      const int64_t keys = first_step(step.pair);
      step.keys = keys > first ? keys : first;
    }
    return true;
  }

  ScorePieces scores_of(const Step& step, int64_t turn) const {
    return {m.q + step.pair * depth * 2 * kTileBytes, keys_of(step.keys), depth,
            m.scores + turn % 2 * kPairRows * kStepKeys};
  }
  ValuePieces values_of(const Step& step, int64_t turn) const {
    return {m.weights + turn % 2 * 4 * kTileBytes, values_of(step.keys), a.head_size / 16,
            m.sums + step.pair * kPairRows * a.head_size, step.keys == first_step(step.pair)};
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
    const bool sees_all = limit_of(row) >= key + kStepKeys && limit_of(row + kPairRows - 1) - a.window <= key;
    const bool is_first = step.keys == first_step(step.pair);
    if (is_first && sees_all) weigh_rows<true, false>(step, turn, between);
    else if (is_first) weigh_rows<true, true>(step, turn, between);
    else if (sees_all) weigh_rows<false, false>(step, turn, between);
    else weigh_rows<false, true>(step, turn, between);
  }

  template <bool kIsFirst, bool kMasked, class Between>
  void weigh_rows(const Step& step, int64_t turn, Between&& between) const {
    const float* scores = m.scores + turn % 2 * kPairRows * kStepKeys;
    char* weights = m.weights + turn % 2 * 4 * kTileBytes;
    const int64_t first = step.pair * kPairRows;
    float *base = m.base + first, *total = m.total + first * 16;
    uint32_t set_aside = 0;
    for (int64_t i = 0; i < kPairRows; i += 2) {
      between();
      LULLM_UNROLL for (int64_t r = i; r < i + 2; r++) {
        const uint64_t mask = kMasked ? mask_of(limit_of(first + r) - step.keys * kStepKeys, a.window) : 0;
        if (!weigh_row<kIsFirst, kMasked>(scores + r * kStepKeys, a.scale, mask, base[r], total + r * 16,
                                       weights + r / 16 * kTileBytes + r % 16 * 64))
          set_aside |= 1u << r;
      }
    }
    for (; set_aside != 0; set_aside &= set_aside - 1) {
      const int64_t r = __builtin_ctz(set_aside);
      const uint64_t mask = kMasked ? mask_of(limit_of(first + r) - step.keys * kStepKeys, a.window) : ~uint64_t{0};
      revise(scores + r * kStepKeys, mask, first + r, weights + r / 16 * kTileBytes + r % 16 * 64);
    }
  }

  // What the row has so far, and then this step, relative to the step's largest score.
  __attribute__((noinline)) void revise(const float* scores, uint64_t mask, int64_t row, char* weights) const {
    const float before = m.base[row];
    alignas(64) float earlier[16], now[16];
    std::memcpy(earlier, m.total + row * 16, sizeof earlier);
    weigh_row<true, true>(scores, a.scale, mask, m.base[row], now, weights);
    const V factor = set1(std::exp2(before - m.base[row]));
    store(m.total + row * 16, fma(load(earlier), factor, load(now)));
    float* sums = m.sums + row / kPairRows * kPairRows * a.head_size + row % kPairRows * 16;
    for (int64_t d = 0; d < a.head_size; d += 16, sums += 512) store(sums, mul(load(sums), factor));
  }

  void write() const {
    for (int64_t r = 0; r < num_rows; r++) {
      Bf16* out = static_cast<Bf16*>(a.out) +
                  ((item.first_row + r / group) * a.num_q_heads + item.first_head * group + r % group) * a.head_size;
      const float* sums = m.sums + r / kPairRows * kPairRows * a.head_size + r % kPairRows * 16;
      const V factor = set1(1.0f / sum(load(m.total + r * 16)));
      for (int64_t d = 0; d < a.head_size; d += 16, sums += 512) store(out + d, mul(load(sums), factor));
    }
  }

  const AttentionArgs& a;
  const AttentionItem& item;
  const Memory m;
  const int64_t group, depth, num_rows, num_pairs;
  int64_t first_limit;
};

void attend_tile(const AttentionArgs& a, const AttentionItem& item, void* scratch) {
  TileSession session;
  TileAttention(a, item, scratch).run();
}

}  // namespace

void fill_attention(Kernels& kernels) {
  kernels.attend_tile = attend_tile;
  kernels.attend_tile_scratch_bytes = attend_tile_scratch_bytes;
}

}  // namespace amx
}  // namespace lullm
